"""Cross-layer equalisation (Nagel et al., Data-free quantization, ICCV 2019, section 4.1).

An activation f with f(s·x) = s·f(x) for all s > 0 lets a channel's scale wander from one layer to the next:
W₂ f(W₁x + b₁) = (W₂S) f(S⁻¹W₁x + S⁻¹b₁) for every positive diagonal S. With sᵢ = √(r₁ᵢ r₂ᵢ) / r₂ᵢ, the ranges r₁
of a channel's weights in the first layer and r₂ in the second become equal. Pairs of layers are equalised in turn until
nothing changes. Here r₁ counts the channel's bias, too: the paper removes large biases by a step of its own, without which
a channel of nearly constant value would widen the range of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.graph.metadata import unused_name
from nnstretch.quantization.weights import ChannelView, initializer, set_initializer

_HOMOGENEOUS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
_FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
_SWEEPS = 50
_CONVERGED = 1e-3
"""Largest relative change of a channel in a sweep that ends the work."""


@dataclass
class _Layer:
    """A layer whose weights are scaled.

    Attributes:
        view: its weights.
        bias: one number per output channel; None if there is none.
    """

    view: ChannelView
    bias: np.ndarray | None


@dataclass(frozen=True)
class _Pair:
    """Two layers between which the scales of channels may wander.

    Attributes:
        first, second: the layers.
        repeats: inputs of the second per output of the first: a flattened map has several.
    """

    first: _Layer
    second: _Layer
    repeats: int

    def equalize(self) -> float:
        """Makes the ranges equal; returns the largest relative change of a channel."""
        outputs = self.first.view.ranges("outputs")
        if self.first.bias is not None:
            outputs = np.maximum(outputs, np.abs(self.first.bias))
        inputs = self.second.view.ranges("inputs").reshape(-1, self.repeats).max(axis=1)
        used = (outputs > 0) & (inputs > 0)
        # Roots before the quotient: products of two small ranges would vanish.
        scales = np.where(used, np.sqrt(outputs) / np.sqrt(np.where(used, inputs, 1.0)), 1.0)
        scales[~used] = 1.0
        self.first.view.scale("outputs", 1 / scales)
        if self.first.bias is not None:
            self.first.bias = self.first.bias / scales
        self.second.view.scale("inputs", np.repeat(scales, self.repeats))
        return float(np.abs(scales - 1).max(initial=0.0))


def equalize(model: ir.Model) -> int:
    """Equalises the weights of all pairs of layers in place; the network computes the same.

    Returns:
        Number of pairs.
    """
    layers = {node: layer for node in model.graph if (layer := _layer(node)) is not None}
    pairs = [pair for layer in layers.values() if (pair := _pair(layer, layers)) is not None]
    for _ in range(_SWEEPS):
        if max((pair.equalize() for pair in pairs), default=0.0) < _CONVERGED:
            break
    changed = {id(layer): layer for pair in pairs for layer in (pair.first, pair.second)}
    names = {str(name) for name in model.graph.initializers}
    for layer in changed.values():
        node = layer.view.node
        for index, array in ((1, layer.view.weights), (2, layer.bias)):
            if array is not None:
                name = unused_name(f"{node.name}/equalised{index}", names, "#")
                names.add(name)
                set_initializer(node, index, array, name)
    return len(pairs)


def _layer(node: ir.Node) -> _Layer | None:
    """A node as a layer; None if it is none, or its weights or bias are not constant or of another shape."""
    transposed = bool(node.attributes.get_int("transA", 0))
    if node.op_type not in _LAYERS or initializer(node, 1) is None or transposed:
        return None
    view, bias = ChannelView(node), initializer(node, 2)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if has_bias and (bias is None or bias.shape != (view.count("outputs"),)):
        return None
    return _Layer(view, None if bias is None else bias.astype(np.float64))


def _pair(first: _Layer, layers: dict[ir.Node, _Layer]) -> _Pair | None:
    """The layer with the next that reads its output, through what keeps scales of channels; None if there is none."""
    value, repeats = first.view.node.outputs[0], 1
    while (reader := _only_reader(value)) is not None:
        second = layers.get(reader)
        if second is not None and reader.inputs[0] is value:
            fits = second.view.count("inputs") == first.view.count("outputs") * repeats
            return _Pair(first, second, repeats) if fits else None
        before, after = _shape(value), _shape(reader.outputs[0])
        if reader.op_type in _FLATTENING and _is_flattened(before, after):
            repeats *= int(np.prod(before[2:]))
        elif not (reader.op_type in _HOMOGENEOUS and reader.inputs[0] is value) and not _is_spatial_mean(reader, value):
            return None
        value = reader.outputs[0]
    return None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _shape(value: ir.Value) -> tuple[int, ...]:
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else ()


def _is_flattened(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether N × C × … became N × C·…, channel by channel."""
    return len(before) > 2 and tuple(after) == (before[0], int(np.prod(before[1:])))


def _is_spatial_mean(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node is the mean over height and width."""
    axes = initializer(node, 1)
    if axes is None:
        axes = np.array(node.attributes.get_ints("axes", ()))
    rank = len(_shape(value))
    return node.op_type == "ReduceMean" and rank == 4 and sorted(axis % rank for axis in axes.tolist()) == [2, 3]
