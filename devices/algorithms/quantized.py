"""Quantization parameters as kernels take them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind, float_bits
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType


def is_quantized(tensor: TensorType) -> bool:
    """Whether a tensor is int8 and stands for float32 numbers."""
    return tensor.dtype == "int8" and tensor.quantization is not None


def parameters_of(tensor: TensorType) -> QuantizationParameters:
    """The quantization parameters of a tensor that has some."""
    assert tensor.quantization is not None
    return tensor.quantization


def only_clips(activation: Activation) -> bool:
    """Whether the bounds of a result are all that an activation changes."""
    return activation == NO_ACTIVATION or activation.kind in (ActivationKind.RELU, ActivationKind.CLIP)


def limits(activation: Activation) -> tuple[float, float]:
    """Least and largest result of an activation that only clips."""
    if activation == NO_ACTIVATION:
        return -math.inf, math.inf
    return (0.0, math.inf) if activation.kind is ActivationKind.RELU else (activation.a, activation.b)


def bounds(layer: Layer) -> tuple[int, int]:
    """Lowest and highest int8 of a layer whose activation only clips."""
    if layer.activation == NO_ACTIVATION:
        return LOWEST, HIGHEST
    low, high = (int(parameters_of(layer.outputs[0]).quantize(limit)) for limit in limits(layer.activation))
    return low, high


_USUAL_SCALES = 2.0**-100, 2.0**100


def has_usual_scale(tensor: TensorType) -> bool:
    """Whether a scale is far from the ends of float32, so that no step of a division by it overflows or becomes 0."""
    least, most = _USUAL_SCALES
    return least <= parameters_of(tensor).scale <= most


_MOST = float(np.finfo(np.float32).max)


def scale_bits(scale: float) -> int:
    """A scale as the bits of a float32: finite, so that 0 times it is 0."""
    return float_bits(max(-_MOST, min(scale, _MOST)))


def ratio_bits(source: QuantizationParameters, result: QuantizationParameters, divisor: int = 1) -> int:
    """The scale of a source over that of the result and over a divisor, as the bits of a float32."""
    return scale_bits(source.scale / result.scale / divisor)


def result_of(layer: Layer) -> Mapping[str, int]:
    """The parameters by which kernels round: zero point of the result, and bounds."""
    low, high = bounds(layer)
    return {"zero": parameters_of(layer.outputs[0]).zero_point, "low": low, "high": high}
