"""Elementwise layers and Softmax in TFLite."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import Form
from nnstretch.errors import ModelError
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layers import GraphNode

_BINARY = {
    "Add": ("ADD", "AddOptions"),
    "Sub": ("SUB", "SubOptions"),
    "Mul": ("MUL", "MulOptions"),
    "Div": ("DIV", "DivOptions"),
    "Max": ("MAXIMUM", "MaximumMinimumOptions"),
    "Min": ("MINIMUM", "MaximumMinimumOptions"),
}
"""Operator of a layer -> TFLite's operator and the table of its options."""
_STANDARD_BINARY = {**_BINARY, "Pow": ("POW", "PowOptions")}
_STANDARD_UNARY = {
    "Abs": ("ABS", "AbsOptions"),
    "Ceil": ("CEIL", ""),
    "Cos": ("COS", "CosOptions"),
    "Exp": ("EXP", "ExpOptions"),
    "Floor": ("FLOOR", ""),
    "Log": ("LOG", ""),
    "Neg": ("NEG", "NegOptions"),
    "Round": ("ROUND", ""),
    "Sign": ("SIGN", "SignOptions"),
    "Sin": ("SIN", ""),
    "Sqrt": ("SQRT", ""),
}
"""Operators that no pass has made layers of the table: as in `_BINARY`."""


class Arithmetic(OperatorFamily):
    """Layers of one result element per position."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {
            **dict.fromkeys(_BINARY, self._binary),
            **{f"onnx:{op}": self._binary for op in _STANDARD_BINARY},
            **{f"onnx:{op}": self._unary for op in _STANDARD_UNARY},
            "Activation": self._activation,
            "Affine": self._affine,
            "Softmax": self._softmax,
            "onnx:LogSoftmax": self._softmax,
            "onnx:Reciprocal": self._reciprocal,
        }

    def _activation(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        self._activations.apply(
            self._tensors.read(node, 0, form), self._tensors.result(node, form), node.layer.activation
        )

    def _binary(self, node: GraphNode) -> None:
        """Writes an operator of two operands, channels last if all run-time operands are images and one is stored so."""
        layer = node.layer
        images = all(len(layer.type_of(i).shape) == 4 for i in layer.activations)
        form: Form = self._stored_form(node) if images else "plain"
        operands = [self._tensors.read(node, i, form) for i in range(min(2, len(layer.inputs)))]
        name, table = _STANDARD_BINARY[layer.op.removeprefix("onnx:")]
        if len(operands) != len(layer.inputs):
            raise ModelError(f"layer {layer.name} ({name}) has {len(layer.inputs)} operands; TFLite takes two")
        self._activations.emit(name, operands, self._tensors.result(node, form), layer.activation, {}, table)

    def _unary(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        name, table = _STANDARD_UNARY[node.layer.op.removeprefix("onnx:")]
        operands = [self._tensors.read(node, 0, form)]
        self._file.operator(name, operands, [self._tensors.result(node, form)], table=table)

    def _reciprocal(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        one = self._file.constant(np.array(1.0, np.float32), f"{node.layer.name}:one")
        operands = [one, self._tensors.read(node, 0, form)]
        self._file.operator("DIV", operands, [self._tensors.result(node, form)], table="DivOptions")

    def _affine(self, node: GraphNode) -> None:
        layer = node.layer
        result = self._tensors.result(node)
        scaled = self._file.tensor(self._file.shape(result), f"{layer.name}:scaled")
        scale, shift = (self._file.constant(layer.constants[i].reshape(-1), f"{layer.name}:{i}") for i in (1, 2))
        self._activations.emit(
            "MUL", [self._tensors.read(node, 0, "last"), scale], scaled, NO_ACTIVATION, {}, "MulOptions"
        )
        self._activations.emit("ADD", [scaled, shift], result, layer.activation, {}, "AddOptions")

    def _softmax(self, node: GraphNode) -> None:
        """Writes a (logarithmic) softmax; TFLite's works on the last axis, so another axis is moved there and back."""
        layer = node.layer
        shape = layer.outputs[0].shape
        rank = len(shape)
        axis = layer.integer("axis", -1) % rank
        form: Form = "last" if rank == 4 and axis == 1 else "plain"
        source = self._tensors.read(node, 0, form)
        if form == "last" or axis == rank - 1:
            self._over_last_axis(node, source, self._tensors.result(node, form))
            return
        order = [*(a for a in range(rank) if a != axis), axis]
        moved = self._tensors.transposed(source, order, f"{layer.name}:moved")
        computed = self._file.tensor(self._file.shape(moved), f"{layer.name}:softmax")
        self._over_last_axis(node, moved, computed)
        back = [order.index(a) for a in range(rank)]
        self._tensors.put(node.outputs[0], "plain", self._tensors.transposed(computed, back, node.outputs[0]))

    def _over_last_axis(self, node: GraphNode, source: int, result: int) -> None:
        assert node.layer.activation == NO_ACTIVATION  # only layers that compute sums have an activation
        if node.layer.op == "Softmax":
            self._activations.emit_fixed("SOFTMAX", source, result, {"beta": 1.0}, "SoftmaxOptions")
        else:
            self._file.operator("LOG_SOFTMAX", [source], [result], table="LogSoftmaxOptions")
