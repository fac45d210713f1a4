"""Constant weights of layers, and their axes of channels."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

Side = Literal["inputs", "outputs"]


class ChannelView:
    """The weights of a layer by input or output channel, in float64.

    Weights of Conv are ``outputs × inputs/groups × …``, those of ConvTranspose ``inputs × outputs/groups × …``, those of Gemm
    ``outputs × inputs`` or the transposition of that.

    Args:
        node: Conv, ConvTranspose, or Gemm without transposed input; with constant weights.
    """

    def __init__(self, node: ir.Node) -> None:
        array = initializer(node, 1)
        assert array is not None
        self.node, self.weights = node, array.astype(np.float64)
        self._groups = node.attributes.get_int("group", 1)
        outputs_first = node.op_type == "Conv" or bool(node.attributes.get_int("transB", 0))
        self._axes = {"outputs": 1, "inputs": 2} if outputs_first else {"inputs": 1, "outputs": 2}

    def count(self, side: Side) -> int:
        """Number of channels."""
        return self._groups * int(self._grouped().shape[self._axes[side]])

    def ranges(self, side: Side) -> np.ndarray:
        """Largest absolute weight of every channel."""
        others = tuple({1, 2, 3} - {self._axes[side]})
        return np.asarray(np.abs(self._grouped()).max(axis=others, initial=0.0).reshape(-1))

    def scale(self, side: Side, factors: np.ndarray) -> None:
        """Multiplies every channel by its factor."""
        shape = [self._groups, 1, 1, 1]
        shape[self._axes[side]] = -1
        self.weights = (self._grouped() * factors.reshape(shape)).reshape(self.weights.shape)

    def _grouped(self) -> np.ndarray:
        """The weights as ``groups × first axis / groups × second axis × rest``."""
        first, second = self.weights.shape[:2]
        return self.weights.reshape(self._groups, first // self._groups, second, -1)


def initializer(node: ir.Node, index: int) -> np.ndarray | None:
    """A constant input of a node; None if it is absent or computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or not value.is_initializer() or value.const_value is None:
        return None
    return value.const_value.numpy()


def set_initializer(node: ir.Node, index: int, array: np.ndarray, name: str) -> None:
    """Gives a node a constant input of its own, as float32; the input may have been absent.

    Args:
        node: of the graph.
        index: of the input.
        array: its values.
        name: of the new constant, which no other value may have.
    """
    value = ir.Value(name=name, const_value=ir.tensor(array.astype(np.float32), name=name))
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(array.shape)
    assert node.graph is not None
    node.graph.register_initializer(value)
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
