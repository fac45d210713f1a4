"""Elementwise layers and Softmax in TFLite."""

from __future__ import annotations

from collections.abc import Mapping

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import Form
from nnstretch.graph.activation import NO_ACTIVATION, Activation
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


class Arithmetic(OperatorFamily):
    """Layers of one result element per position."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {
            **dict.fromkeys(_BINARY, self._binary),
            "Activation": self._activation,
            "Affine": self._affine,
            "Softmax": self._softmax,
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
        operands = [self._tensors.read(node, i, form) for i in (0, 1)]
        name, table = _BINARY[layer.op]
        self._activations.emit(name, operands, self._tensors.result(node, form), layer.activation, {}, table)

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
        """Writes a softmax; TFLite's works on the last axis, so another axis is transposed there and back."""
        layer = node.layer
        shape = layer.outputs[0].shape
        axis, rank = layer.integer("axis"), len(shape)
        form: Form = "last" if rank == 4 and axis == 1 else "plain"
        source = self._tensors.read(node, 0, form)
        if form == "last" or axis == rank - 1:
            self._over_last_axis(source, self._tensors.result(node, form), layer.activation)
            return
        order = [*(a for a in range(rank) if a != axis), axis]
        moved = self._tensors.transposed(source, order, f"{layer.name}:moved")
        computed = self._file.tensor(self._file.shape(moved), f"{layer.name}:softmax")
        self._over_last_axis(moved, computed, layer.activation)
        back = [order.index(a) for a in range(rank)]
        self._tensors.put(node.outputs[0], "plain", self._tensors.transposed(computed, back, node.outputs[0]))

    def _over_last_axis(self, source: int, result: int, activation: Activation) -> None:
        assert activation == NO_ACTIVATION  # only layers that compute sums have an activation
        self._activations.emit_fixed("SOFTMAX", source, result, {"beta": 1.0}, "SoftmaxOptions")
