"""Tensors without negative values, for which 0 is neutral in a maximum."""

from __future__ import annotations

from nnstretch.graph.activation import NO_ACTIVATION, ActivationKind
from nnstretch.graph.dtypes import LOWEST
from nnstretch.graph.layers import GraphNode

_NEVER_NEGATIVE = (
    ActivationKind.RELU,
    ActivationKind.SIGMOID,
    ActivationKind.HARD_SIGMOID,
    ActivationKind.EXP,
    ActivationKind.SOFTPLUS,
)
_PASSING_ON = ("Concat", "MaxPool", "AveragePool", "Reshape")


class Ranges:
    """Which tensors of a graph hold no negative values; layers are recorded in topological order."""

    def __init__(self) -> None:
        self._never_negative: set[str] = set()

    def record(self, node: GraphNode) -> None:
        """Derives the range of a layer's results."""
        activation = node.layer.activation
        clipped = activation.kind == ActivationKind.CLIP and activation.a >= 0
        passes_on = activation == NO_ACTIVATION and node.layer.op in _PASSING_ON
        inherits = passes_on and all(name in self._never_negative for name in node.inputs)
        if activation.kind in _NEVER_NEGATIVE or clipped or inherits:
            self._never_negative.update(node.outputs)

    def is_zero_least(self, node: GraphNode) -> bool:
        """Whether no value of a layer's first input is below 0."""
        quantization = node.layer.type_of(0).quantization
        return node.inputs[0] in self._never_negative or (
            quantization is not None and quantization.zero_point == LOWEST
        )
