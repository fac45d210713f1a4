"""Reductions in TFLite."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.devices.external.litert.tensors import TO_LAST, Form
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layers import GraphNode

_OPERATORS = {
    "sum": "SUM",
    "mean": "MEAN",
    "max": "REDUCE_MAX",
    "min": "REDUCE_MIN",
    "product": "REDUCE_PROD",
    "l1": "SUM",
    "l2": "SUM",
    "squares": "SUM",
}
"""Mode of a reduction -> TFLite's operator, on sizes for l1 and on squares for l2 and squares."""


class Reductions(OperatorFamily):
    """Sums, means, extrema, products and norms over axes."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"Reduce": self._reduce}

    def _reduce(self, node: GraphNode) -> None:
        layer, axes = node.layer, node.layer.ints("axes")
        shape, result_shape = layer.type_of(0).shape, layer.outputs[0].shape
        kept = len(result_shape) == len(shape)
        form = self._form(node, kept=kept)
        source = self._tensors.read(node, 0, form)
        if len(shape) > 4:
            # The axes are neighbours: one axis between all before and all after them.
            middle = prod(shape[axis] for axis in axes)
            source = self._reshaped(source, (prod(shape[: axes[0]]), middle, prod(shape[axes[-1] + 1 :])))
            axes, kept = (1,), False
        elif form == "last":
            axes = tuple(TO_LAST.index(axis) for axis in axes)
        small = [
            1 if axis in axes else extent
            for axis, extent in enumerate(self._file.shape(source))
            if kept or axis not in axes
        ]
        mode = str(layer.attributes["mode"])
        if mode == "l1":
            source = self._computed("ABS", [source], self._file.shape(source), table="AbsOptions")
        elif mode in ("l2", "squares"):
            source = self._computed("MUL", [source, source], self._file.shape(source), table="MulOptions")
        operands = [source, self._integers(axes, f"{layer.name}:axes")]
        with self._before_activation(node, form if len(result_shape) == 4 else "plain") as result:
            needs_shape, needs_root = self._file.shape(result) != tuple(small), mode == "l2"
            made = self._file.tensor(small, f"{layer.name}:{mode}") if needs_shape or needs_root else result
            self._activations.emit(
                _OPERATORS[mode], operands, made, NO_ACTIVATION, {"keepDims": kept}, "ReducerOptions"
            )
            if needs_root and needs_shape:
                made = self._computed("SQRT", [made], small)
            elif needs_root:
                self._file.operator("SQRT", [made], [result])
            if needs_shape:
                self._tensors.reshaped(made, result)

    def _form(self, node: GraphNode, *, kept: bool) -> Form:
        """Channels last if the input is stored so and the remaining axes keep the graph's order, or stay four."""
        layer = node.layer
        if len(layer.type_of(0).shape) != 4 or self._stored_form(node) == "plain":
            return "plain"
        left = [axis for axis in TO_LAST if axis not in layer.ints("axes")]
        return "last" if kept or left == sorted(left) else "plain"
