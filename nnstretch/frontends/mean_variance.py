"""MeanVarianceNormalization as the operators that it stands for.

ONNX infers its shapes from a function body of operator set 18, which does not fit models of older ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

_AXES = (0, 2, 3)
_AXES_ARE_INPUTS = 18  # first operator set in which ReduceMean reads its axes
_EPSILON = 1e-9


def expand_mean_variance(model: ir.Model) -> None:
    """Replaces every MeanVarianceNormalization of the main graph by means, differences and a quotient."""
    for node in [node for node in model.graph if node.domain == "" and node.op_type == "MeanVarianceNormalization"]:
        _Expansion(model, node).replace()


class _Expansion:
    """The operators of one node: `(x - mean) / (sqrt(mean of squares - squared mean) + 1e-9)`."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self._graph, self._node = model.graph, node
        self._version = model.graph.opset_imports.get("", _AXES_ARE_INPUTS)
        axes = node.attributes.get("axes")
        self._axes = list(_AXES if axes is None else axes.as_ints())
        self._result = node.outputs[0].name
        self._made: list[ir.Node] = []

    def replace(self) -> None:
        x = self._node.inputs[0]
        mean = self._mean(x)
        variance = self._add("Sub", [self._mean(self._add("Mul", [x, x])), self._add("Mul", [mean, mean])])
        deviation = self._add("Add", [self._add("Sqrt", [variance]), self._constant("epsilon", np.float32(_EPSILON))])
        result = self._add("Div", [self._add("Sub", [x, mean]), deviation])
        ir.convenience.replace_nodes_and_values(
            self._graph, self._node, [self._node], self._made, self._node.outputs, [result]
        )

    def _mean(self, value: ir.Value | None) -> ir.Value:
        if self._version >= _AXES_ARE_INPUTS:
            return self._add("ReduceMean", [value, self._constant("axes", np.array(self._axes, np.int64))])
        return self._add("ReduceMean", [value], {"axes": self._axes})

    def _add(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Sequence[int]] | None = None
    ) -> ir.Value:
        name = f"{self._result}/{op}{len(self._made)}"
        made = ir.node(op, inputs, attributes, name=name)
        made.outputs[0].name = name
        self._made.append(made)
        return made.outputs[0]

    def _constant(self, role: str, array: np.ndarray | np.float32) -> ir.Value:
        name = f"{self._result}/{role}"
        known = self._graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.Tensor(np.asarray(array), name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value
