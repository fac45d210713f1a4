"""ONNX operators that select elements by constants, in TFLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.errors import ModelError
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode


class Selections(OperatorFamily):
    """Gathers by constant indices, slices that go backwards, and choices by a constant condition."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {
            "onnx:Gather": self._gather,
            "onnx:GatherND": self._gather_nd,
            "onnx:Slice": self._slice,
            "onnx:Where": self._where,
        }

    def _gather(self, node: GraphNode) -> None:
        layer = node.layer
        source = self._tensors.read(node, 0, "plain")
        shape = self._file.shape(source)
        axis = layer.integer("axis", 0) % len(shape)
        taken = self._taken(source, axis, (_constant(layer, 1).astype(np.int64) % shape[axis]).ravel())
        self._tensors.reshaped(taken, self._tensors.result(node, "plain"))

    def _gather_nd(self, node: GraphNode) -> None:
        """Writes a gather of rows: the axes that the indices name are one, and so are the others."""
        layer, indices = node.layer, _constant(node.layer, 1)
        if layer.integer("batch_dims", 0):
            raise ModelError(f"layer {layer.name} (GatherND) has batch axes; TFLite files have none of these")
        source = self._tensors.read(node, 0, "plain")
        shape = self._file.shape(source)
        named, rest = shape[: indices.shape[-1]], shape[indices.shape[-1] :]
        places = np.moveaxis(indices % np.array(named), -1, 0)
        rows = self._reshaped(source, (prod(named), prod(rest)))
        taken = self._taken(rows, 0, np.ravel_multi_index(tuple(places), named).ravel())
        self._tensors.reshaped(taken, self._tensors.result(node, "plain"))

    def _slice(self, node: GraphNode) -> None:
        """Writes a slice as gathers; along an axis it may go backwards."""
        layer = node.layer
        source = self._tensors.read(node, 0, "plain")
        shape = self._file.shape(source)
        starts, ends = _integers(layer, 1, ()), _integers(layer, 2, ())
        axes, steps = _integers(layer, 3, range(len(starts))), _integers(layer, 4, (1,) * len(starts))
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            source = self._taken(source, axis % len(shape), np.arange(shape[axis])[start:end:step])
        self._tensors.reshaped(source, self._tensors.result(node, "plain"))

    def _where(self, node: GraphNode) -> None:
        condition = self._file.constant(_constant(node.layer, 0), f"{node.layer.name}:condition")
        operands = [condition, *(self._tensors.read(node, index, "plain") for index in (1, 2))]
        self._file.operator("SELECT_V2", operands, [self._tensors.result(node, "plain")], table="SelectV2Options")

    def _taken(self, source: int, axis: int, indices: np.ndarray) -> int:
        """The elements at `indices` along an axis."""
        shape = list(self._file.shape(source))
        if np.array_equal(indices, np.arange(shape[axis])):
            return source
        shape[axis] = len(indices)
        result = self._file.like(source, f"taken:{source}", shape)
        operands = [source, self._integers(indices, f"indices:{result}")]
        self._file.operator("GATHER", operands, [result], {"axis": axis}, table="GatherOptions")
        return result


def _constant(layer: Layer, index: int) -> np.ndarray:
    """Input `index`, which must be known.

    Raises:
        ModelError: it is computed in the run.
    """
    if index not in layer.constants:
        raise ModelError(
            f"layer {layer.name} ({layer.op.removeprefix('onnx:')}) selects by what is computed in the run; TFLite files "
            "are written for constants"
        )
    return layer.constants[index]


def _integers(layer: Layer, index: int, default: Sequence[int]) -> Sequence[int]:
    return [int(n) for n in _constant(layer, index)] if layer.has(index) else default
