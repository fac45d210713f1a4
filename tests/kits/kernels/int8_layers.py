"""Int8 layers with weights for tests of routines, and what they compute in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType, fused_layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.kernels.convolution_parity import conv_layer, pads, pairs
from tests.kits.kernels.kernel_driver import run_lowering

SLACK = 1e-3
"""How far beyond half a step a result may be from the exact one: ties, in float32."""
FLOAT_ERROR = 2.0**-22
"""Relative error of results in float32: three roundings of half a unit in the last place, and somewhat more."""

zero_points = st.sampled_from([-128, -7, 0, 5, 127])
either = st.booleans()
whole_quads = st.builds(
    lambda groups, inputs, outputs: (groups * inputs, groups * outputs, groups),
    st.integers(2, 7),
    st.sampled_from([4, 8, 12, 24, 40, 72]),
    st.sampled_from([4, 8, 12, 16, 20, 24, 40]),
)
whole_channels = st.tuples(
    st.sampled_from([4, 8, 20, 64, 72, 132]), st.sampled_from([5, 16, 24, 33, 48, 64, 100]), st.just(1)
)
clips = st.sampled_from([NO_ACTIVATION, Activation(ActivationKind.RELU), Activation(ActivationKind.CLIP, -0.4, 0.9)])


def typed_layer(
    op: str,
    inputs: Sequence[TensorType],
    output: TensorType,
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    """A layer without constants, of tensors of these types."""
    return Layer("tested", op, tuple(inputs), (output,), MappingProxyType(dict(attributes or {})), activation)


def quantized(
    layer: Layer, seed: int, zeros: tuple[int, int, int] = (3, -5, 9), *, all_zero: bool = False, narrow: bool = False
) -> Layer:
    """A Conv or Dense layer of float32 as one of int8 of the same shapes, with random weights, biases and scales.

    Args:
        layer: gives shapes, attributes, activation, and which optional inputs there are.
        seed: of the random numbers.
        zeros: zero points of input, output and residual.
        all_zero: whether all weights are 0.
        narrow: whether weights are within ±64.
    """
    rng = np.random.default_rng(seed)
    shape = layer.type_of(1).shape
    outputs, products = shape[0], int(np.prod(shape[1:]))
    low, high = (-64, 64) if narrow else (-128, 127)
    weight = np.zeros(shape, np.int8) if all_zero else rng.integers(low, high, shape, np.int8, endpoint=True)
    weight.reshape(outputs, -1)[0] = 0 if all_zero else rng.choice([low, high])
    scales = rng.uniform(0.5, 2, outputs).astype(np.float32) / 128
    spread = products**0.5 * 74  # of sums, in steps
    bias = rng.integers(-int(spread * 99), int(spread * 99) + 1, outputs).astype(np.int32)
    x, y = (
        QuantizationParameters(1 / 64, zeros[0]),
        QuantizationParameters(float(np.float32(spread / 64 / 64)), zeros[1]),
    )
    residual = QuantizationParameters(float(np.float32(y.scale * 0.7)), zeros[2])
    types: list[TensorType | None] = [
        TensorType(layer.type_of(0).shape, "int8", x),
        TensorType(shape, "int8"),
        TensorType((outputs,), "int32") if layer.has(2) else None,
        TensorType(layer.outputs[0].shape, "int8", residual) if layer.has(3) else None,
        TensorType((outputs,)),
    ]
    constants = {1: weight, 4: scales} | ({2: bias} if layer.has(2) else {})
    made = (TensorType(layer.outputs[0].shape, "int8", y),)
    return replace(layer, inputs=tuple(types), outputs=made, constants=MappingProxyType(constants))


@st.composite
def int8_convolutions(
    draw: st.DrawFn,
    channels: st.SearchStrategy[tuple[int, int, int]],
    kernels: st.SearchStrategy[tuple[int, int]],
    dilations: st.SearchStrategy[tuple[int, int]] = pairs,
    residual: st.SearchStrategy[bool] = either,
) -> Layer:
    """Convolutions of (inputs, outputs, groups) with awkward shapes and zero points."""
    inputs, outputs, groups = draw(channels)
    kernel, spread, padding = draw(kernels), draw(dilations), draw(pads)
    height, width = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 6, 7, 9, 13, 14, 15, 28, 29]))
    extent = (height + padding[0] + padding[2], width + padding[1] + padding[3])
    assume(all((k - 1) * d < r for k, d, r in zip(kernel, spread, extent, strict=True)))
    layer = conv_layer(
        (draw(st.integers(1, 2)), inputs, height, width),
        outputs,
        kernel,
        strides=draw(pairs),
        pads=padding,
        dilations=spread,
        groups=groups,
        bias=draw(st.booleans()),
        residual=draw(residual),
        activation=draw(clips),
        weight=np.zeros((outputs, inputs // groups, *kernel), np.float32),
    )
    zeros = draw(st.tuples(zero_points, zero_points, zero_points))
    seed, all_zero, narrow = draw(st.integers(0, 999)), draw(st.integers(0, 9)) == 0, draw(either)
    return quantized(layer, seed, zeros, all_zero=all_zero, narrow=narrow)


def with_float_result(layer: Layer) -> Layer:
    """An int8 Conv or Dense layer without a residual whose result is not rounded."""
    return replace(layer, outputs=(TensorType(layer.outputs[0].shape),))


def summed(layer: Layer, *, first: bool = True) -> Layer:
    """An int8 convolution with a residual as a group of one that rounds its result and the Add of the residual.

    Args:
        layer: the convolution.
        first: whether the Add reads the convolution first.
    """
    result = layer.outputs[0].quantization
    assert result is not None
    between = TensorType(
        layer.outputs[0].shape,
        "int8",
        QuantizationParameters(float(np.float32(result.scale * 0.6)), -result.zero_point // 2),
    )
    inputs = (*layer.inputs[:3], None, *layer.inputs[4:])
    conv = replace(layer, inputs=inputs, outputs=(between,), activation=NO_ACTIVATION)
    addends = (between, layer.type_of(3)) if first else (layer.type_of(3), between)
    add = typed_layer("Add", addends, layer.outputs[0], activation=layer.activation)
    return fused_layer((conv, add), ((0,), (-1, 1) if first else (1, -1)))


def int8_feeds(layer: Layer, seed: int = 5) -> list[np.ndarray]:
    """Random run-time inputs over the whole range, in the order of `layer.activations`; a third of them at its ends.

    They cannot be written.
    """
    return list(_feeds(tuple(layer.type_of(index).shape for index in layer.activations), seed))


@lru_cache(4)
def _feeds(shapes: tuple[tuple[int, ...], ...], seed: int) -> tuple[np.ndarray, ...]:
    """Drawn once for all settings of a layer."""
    rng = np.random.default_rng(seed)
    feeds = []
    for shape in shapes:
        ends = rng.choice(np.array([-128, 127], np.int8), shape)
        feeds.append(np.where(rng.random(shape) < 0.3, ends, rng.integers(-128, 128, shape, np.int8)))
        feeds[-1].flags.writeable = False
    return tuple(feeds)


def exact_range(layer: Layer, feeds: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest result in steps before rounding. They differ where the tensor between two parts is at a tie."""
    if not layer.parts:
        exact = exact_steps(layer, feeds)
        return exact, exact
    conv, add = layer.parts
    between, residual = conv.outputs[0].quantization, layer.type_of(1).quantization
    result = add.outputs[0].quantization
    assert between is not None and residual is not None and result is not None
    sums = exact_steps(conv, feeds[:1])
    rest = (feeds[1].astype(np.float64) - residual.zero_point) * residual.scale
    low, high = (
        _in_steps((np.clip(np.rint(sums + slack), -128, 127) - between.zero_point) * between.scale + rest, add)
        for slack in (-SLACK, SLACK)
    )
    return low, high


def exact_steps(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    """The results in steps from 0 before they are rounded, as float64: sums of whole numbers, which float64 keeps exactly.

    Results that stay float32 are in numbers.
    """
    source = layer.type_of(0).quantization
    assert source is not None
    x = feeds[0].astype(np.float64) - source.zero_point
    weight = layer.constants[1].astype(np.float64)
    sums = _convolved(layer, x, weight) if layer.op == "Conv" else x @ weight.T
    per_channel = (1, -1, *(1,) * (sums.ndim - 2))
    if layer.has(2):
        sums = sums + layer.constants[2].reshape(per_channel)
    values = sums * (layer.constants[4].astype(np.float64) * source.scale).reshape(per_channel)
    if layer.has(3):
        residual = layer.type_of(3).quantization
        assert residual is not None
        values = values + (feeds[1].astype(np.float64) - residual.zero_point) * residual.scale
    return _in_steps(values, layer)


def _in_steps(values: np.ndarray, layer: Layer) -> np.ndarray:
    """Values after the activation of a layer, in steps of its output."""
    result = layer.outputs[0].quantization
    if layer.activation.kind == ActivationKind.RELU:
        values = np.maximum(values, 0)
    elif layer.activation.kind == ActivationKind.CLIP:
        values = np.minimum(np.maximum(values, layer.activation.a), layer.activation.b)
    if result is None:
        return np.asarray(values)
    return np.asarray(np.clip(values / result.scale + result.zero_point, -128, 127))


def _convolved(layer: Layer, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    geometry = KernelGeometry.of(layer)
    (top, left), (bottom, right) = geometry.pads, geometry.ends
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (sh, sw), (dh, dw) = geometry.strides, geometry.dilations
    batch, outputs, height, width = layer.outputs[0].shape
    grouped = weight.reshape(geometry.groups, geometry.group_out, geometry.group_in, *geometry.kernel)
    sums = np.zeros((batch, geometry.groups, geometry.group_out, height * width))
    for i in range(geometry.kernel[0]):
        for j in range(geometry.kernel[1]):
            rows = slice(i * dh, i * dh + (height - 1) * sh + 1, sh)
            columns = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
            taken = padded[:, :, rows, columns].reshape(batch, geometry.groups, geometry.group_in, height * width)
            sums += grouped[..., i, j] @ taken
    return sums.reshape(batch, outputs, height, width)


def check_int8(
    routine: Routine,
    layer: Layer,
    parameters: Parameters,
    wanted: tuple[np.ndarray, np.ndarray],
    *,
    in_place: bool = False,
) -> None:
    """Compares a routine on `int8_feeds(layer)` with `exact_range`, with two threads.

    Results in float32 are the exact sums times a scale: three numbers are rounded to float32, sum, scale and product.

    A bound of the activation may be rounded before the result is: both are within half a step then.
    """
    layouts = routine.layouts(layer, parameters)
    lowering = routine.lower(layer, parameters)
    feeds = int8_feeds(layer)
    (found,) = run_lowering(lowering, layer, feeds, *layouts, cores=(OWN_CORE, OWN_CORE), in_place=in_place)
    if layer.outputs[0].quantization is None:
        np.testing.assert_allclose(found, wanted[0], rtol=FLOAT_ERROR, atol=0, err_msg=str(routine.descriptor))
        return
    error = steps_beyond(found, *wanted)
    assert error <= 0.5 + SLACK, f"{routine.descriptor} {dict(parameters)}: {error:.3f} steps"


def steps_beyond(found: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Largest distance of results from their ranges."""
    return float(np.maximum(low - found, found - high).max(initial=0))
