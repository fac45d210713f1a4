"""int8 layers that TFLite supports, and float32 replacements of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.external.litert.operators.activation import FIXED_QUANTIZATION
from nnstretch.devices.external.litert.operators.resize import is_bilinear
from nnstretch.graph.activation import ActivationKind
from nnstretch.graph.dtypes import LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.layers import GraphNode

_FINEST = 0.5
"""Minimum ratio of a result's scale to an operator's scale at which the error is negligible."""
_CLIPPED = (ActivationKind.NONE, ActivationKind.RELU, ActivationKind.CLIP, ActivationKind.LEAKY_RELU)
_FIXED = {ActivationKind.SIGMOID: "LOGISTIC", ActivationKind.TANH: "TANH"}


def supports_int8(layer: Layer) -> bool:
    """Whether TFLite files have int8 operators for an int8 layer."""
    known = _KNOWN.get(layer.op)
    return layer.op in _ALWAYS or (known is not None and known(layer))


def _weighted(layer: Layer) -> bool:
    """TFLite's int8 weights exclude -128. A residual needs a separate ADD, whose input would be rounded, as is every result."""
    return layer.outputs[0].quantization is not None and not layer.has(3) and not (layer.constants[1] == LOWEST).any()


def _average_pool(layer: Layer) -> bool:
    """A mean that excludes pads needs a factor per pixel unless TFLite's SAME applies."""
    if not _keeps_enough(layer):
        return False
    window = KernelGeometry.of(layer)
    return window.is_valid or window.is_same or bool(layer.attributes["count_include_pad"])


def _activation(layer: Layer) -> bool:
    kind = layer.activation.kind
    return kind in _CLIPPED or (kind in _FIXED and _is_fine_enough(layer, _FIXED[kind]))


def _keeps_enough(layer: Layer) -> bool:
    """Whether the input's scale is fine enough for the result; some TFLite operators compute with it."""
    return _is_finer(layer.type_of(0).quantization, layer.outputs[0].quantization)


def _softmax(layer: Layer) -> bool:
    return _is_fine_enough(layer, "SOFTMAX")


def _is_fine_enough(layer: Layer, name: str) -> bool:
    """Whether the fixed scale of an operator is fine enough for the result."""
    return _is_finer(FIXED_QUANTIZATION[name], layer.outputs[0].quantization)


def _is_finer(made: QuantizationParameters | None, wanted: QuantizationParameters | None) -> bool:
    return made is not None and wanted is not None and wanted.scale >= _FINEST * made.scale


def _resize(layer: Layer) -> bool:
    """Linear interpolation that TFLite does not have needs products with fractions."""
    return _keeps_enough(layer) and (layer.attributes["mode"] == "nearest" or is_bilinear(layer))


_ALWAYS = frozenset(
    {"Add", "Sub", "Mul", "Concat", "GlobalPool", "MaxPool", "Reshape", "Transpose", "Slice", "Quantize", "Dequantize"}
)
"""Operators with int8 operators in all their forms."""

_KNOWN: Mapping[str, Callable[[Layer], bool]] = {
    "Conv": _weighted,
    "Dense": _weighted,
    "AveragePool": _average_pool,
    "Resize": _resize,
    "Activation": _activation,
    "Softmax": _softmax,
}


def in_float32(node: GraphNode) -> tuple[Sequence[GraphNode], GraphNode, Sequence[GraphNode]]:
    """Replaces an int8 layer by Dequantize layers of its inputs, the layer in float32, and Quantize if its result is int8."""
    layer = node.layer
    (result,) = layer.outputs
    names = [
        n if t is None or t.quantization is None else f"{n}:float32"
        for n, t in zip(node.inputs, layer.inputs, strict=True)
    ]
    before = [
        replace(
            node,
            layer=Layer(str(name), "Dequantize", (kind,), (_float32(kind),)),
            inputs=(node.inputs[index],),
            outputs=(str(name),),
        )
        for index, (name, kind) in enumerate(zip(names, layer.inputs, strict=True))
        if kind is not None and kind.quantization is not None
    ]
    if result.quantization is None:
        return before, replace(node, layer=_layer_in_float32(layer), inputs=tuple(names)), ()
    made = f"{node.outputs[0]}:float32"
    computed = replace(node, layer=_layer_in_float32(layer), inputs=tuple(names), outputs=(made,))
    after = replace(node, layer=Layer(made, "Quantize", (_float32(result),), (result,)), inputs=(made,))
    return before, computed, (after,)


def _layer_in_float32(layer: Layer) -> Layer:
    constants = dict(layer.constants)
    scales, quantization = constants.pop(4, None), layer.type_of(0).quantization
    if scales is not None and quantization is not None:
        rank = constants[1].ndim - 1
        constants[1] = constants[1].astype(np.float32) * scales.reshape(-1, *(1,) * rank)
        if layer.has(2):
            constants[2] = constants[2].astype(np.float32) * scales * np.float32(quantization.scale)
    return replace(
        layer,
        inputs=tuple(None if kind is None else _float32(kind) for kind in layer.inputs[:4]),
        outputs=tuple(map(_float32, layer.outputs)),
        constants=MappingProxyType(constants),
    )


def _float32(kind: TensorType) -> TensorType:
    return TensorType(kind.shape)
