"""Int8 forms of float32 layers: what stands in a quantised network in place of a layer.

A search needs latencies of networks that nobody has quantised yet. Latency depends on types and shapes, not on scales, so the
scales here are nominal: results of random inputs fill their range. The forms are those that quantisers make and
`nnstretch.passes.quantization` reads: a convolution takes a clipping activation along, other activations and the addition of
a residual are layers of their own, and what has no form in int8 stays between Dequantize and Quantize.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType

INT8 = "int8"
_WEIGHTED = frozenset({"Conv", "Dense"})
_COMPUTED = frozenset({"Add", "Sub", "Mul", "Concat", "AveragePool", "GlobalPool", "Resize", "Activation", "Softmax"})
_MOVING = frozenset({"Reshape", "Transpose", "Slice", "MaxPool"})
_CLIPPING = frozenset({ActivationKind.RELU, ActivationKind.CLIP})
_STEP = 1 / 32
"""Nominal step of tensors: int8 then covers four standard deviations of what a batch norm makes."""
_SIGNED, _POSITIVE = QuantizationParameters(_STEP), QuantizationParameters(_STEP, LOWEST)
_BIAS, _RESIDUAL, _SCALES = 2, 3, 4  # inputs of Conv and Dense


def int8_form(layer: Layer) -> tuple[Layer, ...]:
    """The layers that compute a float32 layer in a quantised network, one after another. Weights are quantised.

    Args:
        layer: no fusion group.
    """
    if layer.op in _WEIGHTED and 1 in layer.constants and layer.constants.keys() <= {1, _BIAS}:
        return tuple(_weighted(layer))
    if not layer.constants and (layer.op in _COMPUTED | _MOVING) and _has_floats_only(layer):
        return tuple(_unweighted(layer))
    return tuple(_between_roundings(layer))


def int8_tensor(tensor: TensorType) -> TensorType:
    """A tensor of the same shape that is rounded."""
    return TensorType(tensor.shape, INT8, _SIGNED)


def _has_floats_only(layer: Layer) -> bool:
    return all(t is None or t.dtype == "float32" for t in (*layer.inputs, *layer.outputs))


def _weighted(layer: Layer) -> Iterator[Layer]:
    """A Conv or Dense; then the addition of its residual and an activation that does not only clip, if it has these."""
    clips = layer.activation == NO_ACTIVATION or layer.activation.kind in _CLIPPING
    alone = clips and not layer.has(_RESIDUAL)
    shape = layer.outputs[0].shape
    result = TensorType(shape, INT8, _nominal(layer.activation) if alone else _SIGNED)
    weight, scales = _rounded_weight(layer.constants[1])
    outputs = weight.shape[0]
    constants = {1: weight, _SCALES: scales}
    if _BIAS in layer.constants:
        constants[_BIAS] = np.rint(layer.constants[_BIAS] / (scales.astype(np.float64) * _STEP)).astype(np.int32)
    inputs = (
        int8_tensor(layer.type_of(0)),
        TensorType(weight.shape, INT8),
        TensorType((outputs,), "int32") if _BIAS in constants else None,
        None,
        TensorType((outputs,)),
    )
    yield replace(
        layer,
        inputs=inputs,
        outputs=(result,),
        activation=NO_ACTIVATION,  # integers clip by themselves
        constants=MappingProxyType(constants),
    )
    if layer.has(_RESIDUAL):
        sums = TensorType(shape, INT8, _nominal(layer.activation) if clips else _SIGNED)
        yield Layer(f"{layer.name}/add", "Add", (result, int8_tensor(layer.type_of(_RESIDUAL))), (sums,))
        result = sums
    if not clips:
        yield from _activation(layer, result)


def _unweighted(layer: Layer) -> Iterator[Layer]:
    """A layer without weights; then its activation, if it has one that does not only clip."""
    own = layer.op == "Activation"
    clips = layer.activation == NO_ACTIVATION or layer.activation.kind in _CLIPPING
    steps = _SIGNED if layer.op in _MOVING or not clips else _nominal(layer.activation)
    results = tuple(TensorType(t.shape, INT8, steps) for t in layer.outputs)
    inputs = tuple(None if t is None else int8_tensor(t) for t in layer.inputs)
    yield replace(layer, inputs=inputs, outputs=results, activation=layer.activation if own else NO_ACTIVATION)
    if not own and (not clips or (layer.op in _MOVING and layer.activation != NO_ACTIVATION)):
        yield from _activation(layer, results[0])


def _activation(layer: Layer, tensor: TensorType) -> Iterator[Layer]:
    """The activation of a layer as quantisers leave it: of x times sigmoid(x), each factor and the product are rounded."""
    silu = layer.activation.kind == ActivationKind.SILU
    kind = Activation(ActivationKind.SIGMOID) if silu else layer.activation
    yield Layer(f"{layer.name}/activation", "Activation", (tensor,), (tensor,), activation=kind)
    if silu:
        yield Layer(f"{layer.name}/product", "Mul", (tensor, tensor), (tensor,))


def _between_roundings(layer: Layer) -> Iterator[Layer]:
    """A layer in float32 that reads and makes rounded tensors."""
    for index in layer.activations:
        tensor = layer.type_of(index)
        if tensor.dtype == "float32":
            yield Layer(f"{layer.name}/dequantize{index}", "Dequantize", (int8_tensor(tensor),), (tensor,))
    yield layer
    for index, tensor in enumerate(layer.outputs):
        if tensor.dtype == "float32":
            yield Layer(f"{layer.name}/quantize{index}", "Quantize", (tensor,), (int8_tensor(tensor),))


def _nominal(activation: Activation) -> QuantizationParameters:
    """Parameters of what an activation that clips makes: of no negative numbers after a ReLU."""
    if activation.kind == ActivationKind.RELU or (activation.kind == ActivationKind.CLIP and activation.a == 0):
        return _POSITIVE
    return _SIGNED


def _rounded_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Int8 weights and the scale of each output channel; scales of results so that a result has the nominal step."""
    products = max(1, math.prod(weight.shape[1:]))
    largest = np.abs(weight.reshape(len(weight), -1)).max(axis=1, initial=0.0)
    steps = np.where(largest > 0, largest, 1.0) / HIGHEST
    rounded = np.rint(weight / steps.reshape(-1, *(1,) * (weight.ndim - 1))).astype(np.int8)
    scales = np.full(len(weight), 1 / (math.sqrt(products) * HIGHEST / 2), np.float32)
    return rounded, scales
