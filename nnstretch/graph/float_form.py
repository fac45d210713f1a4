"""Float forms of int8 layers: the same layers on float32 tensors, so that a network may mix both (SoftNeuro, section VI-A).

A quantised network says of each tensor how it is rounded. Its float form drops the rounding and keeps what else the integers
do: weights stand for themselves times their scales, and results are clipped to what the integers can stand for. The latter
matters because quantisers drop a ReLU in front of integers whose least one stands for 0. Only results that lie between the
numbers of the inputs, as those of pools do, are not clipped.
"""

from __future__ import annotations

import math
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import DEFAULT_DTYPE, HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType, fused_layer

_WEIGHTED = frozenset({"Conv", "Dense"})
_CLIPPING = frozenset({*_WEIGHTED, "Add", "Sub", "Mul"})
"""Operators whose float form clips its result in the same step."""
_AVERAGING = frozenset({"AveragePool", "GlobalPool", "Concat", "Resize"})
"""Operators whose results lie between the numbers of their inputs, but for the rounding."""
_OTHERS = frozenset({"Activation", "MaxPool", "Reshape", "Slice", "Softmax", "Transpose"})

_forms: WeakKeyDictionary[Layer, Layer | None] = WeakKeyDictionary()


def float_form(layer: Layer) -> Layer | None:
    """The layer with float32 tensors in place of int8 ones, under the same name; the same object for the same layer.

    None if the layer is not int8, or if its integers do what the operator on float32 cannot: a pool, concat or resize whose
    result may have lost a ReLU.
    """
    if layer not in _forms:
        _forms[layer] = _made(layer) if layer.is_int8 else None
    return _forms[layer]


def _made(layer: Layer) -> Layer | None:
    if layer.parts:
        parts = [float_form(part) if part.is_int8 else part for part in layer.parts]
        forms = [part for part in parts if part is not None]
        return fused_layer(forms, layer.wiring, layer.results) if len(forms) == len(parts) else None
    quantization = layer.outputs[0].quantization
    floating = replace(
        layer,
        inputs=tuple(None if t is None else _floating(t) for t in layer.inputs),
        outputs=tuple(map(_floating, layer.outputs)),
    )
    if layer.op == "Dequantize":
        return replace(floating, op="Reshape")
    if quantization is None:
        return _with_float_weights(layer, floating) if layer.op in _WEIGHTED else None
    if layer.op == "Quantize" or layer.op in _CLIPPING:
        bounds = _bounds(layer.activation)
        if bounds is None:
            return None
        clipped = replace(floating, activation=_clip(bounds, quantization))
        if layer.op == "Quantize":
            return replace(clipped, op="Activation")
        if layer.op in _WEIGHTED:
            return _with_float_weights(layer, clipped)
        return None if layer.constants else clipped
    if layer.constants or (layer.op in _AVERAGING and _may_hide_relu(layer, quantization)):
        return None
    if "cubic_coefficient" in layer.attributes:  # its results may lie beyond the numbers of its input
        return None
    return floating if layer.op in _AVERAGING | _OTHERS else None


def _floating(tensor: TensorType) -> TensorType:
    return TensorType(tensor.shape, DEFAULT_DTYPE)


def _with_float_weights(layer: Layer, floating: Layer) -> Layer | None:
    """A layer whose int8 weights and int32 bias became float32, without their scales."""
    source = layer.type_of(0).quantization
    if source is None or 1 not in layer.constants or 4 not in layer.constants:
        return None
    weights, scales = layer.constants[1], layer.constants[4].reshape(-1).astype(np.float64)
    per_channel = scales.reshape(-1, *(1,) * (weights.ndim - 1))
    constants = {1: (weights * per_channel).astype(np.float32)}
    if layer.has(2):
        if 2 not in layer.constants:
            return None
        constants[2] = (layer.constants[2] * (scales * source.scale)).astype(np.float32)
    return replace(floating, inputs=floating.inputs[:4], constants=constants)


def _bounds(activation: Activation) -> tuple[float, float] | None:
    """Least and largest result of an activation that only clips; None for others."""
    return {
        ActivationKind.NONE: (-math.inf, math.inf),
        ActivationKind.RELU: (0.0, math.inf),
        ActivationKind.CLIP: (activation.a, activation.b),
    }.get(activation.kind)


def _clip(bounds: tuple[float, float], quantization: QuantizationParameters) -> Activation:
    """The activation that clips to bounds, and to what integers stand for."""
    lowest, highest = (float(number) for number in quantization.dequantize(np.array([LOWEST, HIGHEST])))
    low, high = (min(max(bound, lowest), highest) for bound in bounds)
    return Activation(ActivationKind.CLIP, low, high)


def _may_hide_relu(layer: Layer, quantization: QuantizationParameters) -> bool:
    """Whether integers that stand for no negative numbers are made from some that do."""
    inputs = (layer.type_of(index).quantization for index in layer.activations)
    negative = any(found is not None and found.zero_point > LOWEST for found in inputs)
    return negative and quantization.zero_point == LOWEST
