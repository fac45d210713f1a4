"""Convolutions and dense layers of int8 against sums in whole numbers and ONNX Runtime, on every variant of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.cpu.routines.int8.weighted import gains_by_narrow_weights
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa
from nnstretch.errors import PackageError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import conv_layer, reference
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.cpu_features import runnable_isas, variant_masks
from tests.kits.kernels.cpu_routines import compute_bound_routines
from tests.kits.kernels.int8_layers import (
    SLACK,
    check_int8,
    clips,
    exact_range,
    exact_steps,
    int8_convolutions,
    int8_feeds,
    quantized,
    steps_beyond,
    summed,
    whole_channels,
    whole_quads,
    with_float_result,
    zero_points,
)
from tests.kits.kernels.kernel_driver import run_lowering

VARIANTS = [(isa, mask) for isa in runnable_isas() for mask in variant_masks(isa, "int8") if mask != "-avx512vbmi"]

few = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
kernels = st.tuples(st.integers(1, 5), st.integers(1, 5))
any_channels = st.tuples(st.integers(1, 50), st.sampled_from([1, 7, 16, 24, 33, 48, 64, 100]), st.just(1))
grouped_channels = st.builds(
    lambda groups, inputs, outputs: (groups * inputs, groups * outputs, groups),
    st.integers(2, 5),
    st.sampled_from([1, 2, 3, 4, 8, 16, 24, 32]),
    st.sampled_from([2, 4, 5, 8, 16, 24, 32]),
)
few_channels = st.tuples(st.integers(1, 3), st.sampled_from([5, 16, 24, 32, 33, 64]), st.just(1))
depthwise_channels = st.builds(lambda channels: (channels,) * 3, st.sampled_from([2, 8, 16, 20, 33, 40]))


@pytest.fixture(scope="module", params=VARIANTS, ids=[f"{isa.name}{mask}" for isa, mask in VARIANTS])
def variant(request: pytest.FixtureRequest) -> tuple[Isa, str]:
    """Each instruction set in turn, and the features to hide so that each variant of the int8 kernels is chosen once."""
    isa, mask = request.param
    return isa, mask


def variants_of(routine: Routine, layer: Layer) -> list[Parameters]:
    """The routine's settings, and small units."""
    space = list(routine.parameter_space(layer))
    if "order" in space[0]:
        space += [{**setting, "tiles": 2, "order": 1} for setting in space]
    if "rows" in space[0]:
        space += [{**space[0], "rows": rows} for rows in (1, 3)]
    if "split" in space[0]:
        space += [{**space[0], "split": 3}]
    return space


def check(routines: Sequence[Routine], layer: Layer, algorithm: str, *, in_place: bool = False) -> None:
    """Compares all settings of the routines that support `layer`, `algorithm` among them, with the exact results."""
    supporting = [routine for routine in routines if routine.supports(layer)]
    assert f"cpu:int8/{algorithm}" in {str(routine.descriptor) for routine in supporting}
    wanted = exact_range(layer, int8_feeds(layer))
    for routine in supporting:
        for parameters in variants_of(routine, layer):
            check_int8(routine, layer, parameters, wanted, in_place=in_place)


@few
@given(layer=int8_convolutions(any_channels, kernels))
def test_any_convolution(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "direct")


@few
@given(layer=int8_convolutions(any_channels, st.just((1, 1))))
def test_pointwise_convolutions(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "direct")


@few
@given(layer=int8_convolutions(grouped_channels, kernels))
def test_grouped_convolutions(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "direct")


@few
@given(layer=int8_convolutions(whole_quads, kernels))
def test_groups_of_whole_quads(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "rows")


@few
@given(layer=int8_convolutions(whole_channels, kernels | st.just((1, 1))))
def test_converted_rows_without_groups(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "direct")


@few
@given(layer=int8_convolutions(whole_channels | whole_quads, kernels, residual=st.just(True)), first=st.booleans())
def test_sums_that_are_rounded_before_the_residual_is_added(
    routines: Sequence[Routine], layer: Layer, *, first: bool
) -> None:
    check(routines, summed(layer, first=first), "direct_add")


@few
@given(layer=int8_convolutions(depthwise_channels, kernels | st.sampled_from([(3, 3), (5, 5), (7, 7)])))
def test_depthwise_convolutions(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "depthwise")


@few
@given(layer=int8_convolutions(few_channels, kernels | st.just((7, 7)), st.tuples(st.integers(1, 3), st.just(1))))
def test_first_layers(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, "planar")


@few
@given(
    shape=st.tuples(st.sampled_from([1, 2, 6, 7, 13]), st.integers(1, 70), st.sampled_from([1, 15, 16, 17, 64, 130])),
    bias=st.booleans(),
    residual=st.booleans(),
    activation=clips,
    zeros=st.tuples(zero_points, zero_points, zero_points),
    seed=st.integers(0, 999),
    narrow=st.booleans(),
)
def test_dense(
    routines: Sequence[Routine],
    shape: tuple[int, int, int],
    *,
    bias: bool,
    residual: bool,
    activation: Activation,
    zeros: tuple[int, int, int],
    seed: int,
    narrow: bool,
) -> None:
    layer = dense_layer(*shape, bias=bias, residual=residual, activation=activation)
    check(routines, quantized(layer, seed, zeros, narrow=narrow), "dense")


LAYERS_WITHOUT_PADS = {
    "direct": conv_layer((1, 22, 6, 9), 40, pads=(0,) * 4),
    "rows": conv_layer((1, 136, 6, 9), 40, pads=(0,) * 4),
    "rows of two groups": conv_layer((1, 48, 6, 9), 48, pads=(0,) * 4, groups=4),
    "planar": conv_layer((1, 3, 9, 9), 32, pads=(0,) * 4),
    "depthwise": conv_layer((1, 40, 9, 9), 40, pads=(0,) * 4, groups=40),
    "dense": dense_layer(3, 67, 70, bias=True, residual=False, activation=NO_ACTIVATION),
}


def with_equal_products(layer: Layer, weight: int, number: int) -> Layer:
    """A layer whose weights are `weight` and its negative in turn by outputs; biases keep results near 0, unrounded.

    Args:
        layer: int8, without pads.
        weight: at most 127.
        number: the only one that it reads.
    """
    outputs, *rest = layer.type_of(1).shape
    signs = np.where(np.arange(outputs) % 2, -1, 1)
    source = layer.type_of(0).quantization
    assert source is not None
    sums = signs * weight * int(np.prod(rest)) * (number - source.zero_point)
    weights = np.broadcast_to((signs * weight).astype(np.int8).reshape(-1, *(1,) * len(rest)), (outputs, *rest)).copy()
    bias = (np.arange(outputs) % 100 - sums).astype(np.int32)
    constants = MappingProxyType({1: weights, 2: bias, 4: np.ones(outputs, np.float32)})
    steps = QuantizationParameters(source.scale, 0)
    return replace(layer, constants=constants, outputs=(replace(layer.outputs[0], quantization=steps),))


@pytest.mark.parametrize("number", [-128, 127])
@pytest.mark.parametrize("weight", [64, 65, 127])
@pytest.mark.parametrize("name", LAYERS_WITHOUT_PADS)
def test_sums_at_the_bounds_of_weights_and_inputs(
    routines: Sequence[Routine], isa: Isa, name: str, weight: int, number: int
) -> None:
    """Two products of bytes with weights within ±64 are added in 16 bits; those with larger weights do not fit there."""
    layer = with_equal_products(quantized(LAYERS_WITHOUT_PADS[name], 1), weight, number)
    assert layer.has_narrow_weights == (weight == 64)
    feeds = [np.full(layer.type_of(0).shape, number, np.int8)]
    wanted = exact_steps(layer, feeds)
    kernels = set()
    for routine in routines:
        if not routine.supports(layer):
            continue
        for parameters in variants_of(routine, layer):
            lowering, layouts = routine.lower(layer, parameters), routine.layouts(layer, parameters)
            kernels |= {call.kernel for call in lowering.calls}
            (found,) = run_lowering(lowering, layer, feeds, *layouts)
            assert np.array_equal(found, wanted), f"{routine.descriptor} {dict(parameters)}"
    of_int8 = {kernel for kernel in kernels if "int8" in kernel and "/" not in kernel}
    assert of_int8
    narrow = weight == 64 and isa.block > 4 and name != "depthwise"
    assert all(kernel.endswith("_narrow") == narrow for kernel in of_int8), of_int8


FLOAT_RESULTS = {
    "direct": (any_channels | grouped_channels, kernels | st.just((1, 1))),
    "rows": (whole_quads | whole_channels, kernels | st.just((1, 1))),
    "depthwise": (depthwise_channels, kernels | st.sampled_from([(3, 3), (5, 5), (7, 7)])),
    "planar": (few_channels, kernels | st.just((7, 7))),
}


@pytest.mark.parametrize("algorithm", FLOAT_RESULTS)
@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_results_that_stay_float32(routines: Sequence[Routine], algorithm: str, data: st.DataObject) -> None:
    channels, sizes = FLOAT_RESULTS[algorithm]
    spread = st.tuples(st.integers(1, 3), st.just(1))
    layer = with_float_result(data.draw(int8_convolutions(channels, sizes, spread, residual=st.just(False))))
    check(routines, layer, "direct" if algorithm == "rows" else algorithm)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("outputs", [15, 64, 130])
def test_dense_results_that_stay_float32(routines: Sequence[Routine], rows: int, outputs: int) -> None:
    for activation in (NO_ACTIVATION, Activation(ActivationKind.CLIP, -0.4, 0.9)):
        layer = dense_layer(rows, 37, outputs, bias=True, residual=False, activation=activation)
        check(routines, with_float_result(quantized(layer, outputs)), "dense")


LAYERS = {
    "stem": (conv_layer((1, 3, 30, 30), 64, (7, 7), strides=(2, 2), pads=(3,) * 4), "planar"),
    "3x3": (conv_layer((1, 64, 14, 14), 128, residual=True, activation=Activation(ActivationKind.RELU)), "direct"),
    "downsample": (conv_layer((1, 64, 14, 14), 128, (1, 1), strides=(2, 2), pads=(0,) * 4), "direct"),
    "one column": (conv_layer((1, 48, 6, 1), 20, (1, 1), strides=(1, 2), pads=(0, 0, 1, 0)), "direct"),
    "wide": (conv_layer((2, 192, 7, 7), 64, (1, 1), pads=(0,) * 4, residual=True), "direct"),
    "regnet": (conv_layer((1, 72, 14, 14), 72, groups=3), "rows"),
    "resnext": (conv_layer((1, 128, 15, 15), 128, groups=32, strides=(2, 2)), "rows"),
    "multiplier": (conv_layer((1, 20, 9, 9), 40, groups=20), "direct"),
    "mobilenet": (conv_layer((1, 40, 28, 28), 40, groups=40, activation=Activation(ActivationKind.RELU)), "depthwise"),
    "efficientnet": (
        conv_layer((1, 40, 29, 29), 40, (5, 5), pads=(1, 1, 2, 2), strides=(2, 2), groups=40),
        "depthwise",
    ),
    "head": (dense_layer(1, 512, 1000, bias=True, residual=False, activation=NO_ACTIVATION), "dense"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks_are_within_one_step_of_onnx_runtime(routines: Sequence[Routine], name: str) -> None:
    layer, algorithm = LAYERS[name]
    layer = quantized(layer, 1)
    check(routines, layer, algorithm)
    feeds = int8_feeds(layer)
    assert np.abs(reference(layer, feeds) - exact_steps(layer, feeds)).max() <= 1


def test_results_may_be_made_in_the_residuals_memory(routines: Sequence[Routine]) -> None:
    """A planner may give the output the residual's memory: every kernel reads a residual before it writes there."""
    check(routines, quantized(conv_layer((1, 40, 9, 9), 72, residual=True), 1), "direct", in_place=True)
    check(routines, quantized(conv_layer((1, 40, 9, 9), 40, groups=40, residual=True), 1), "depthwise", in_place=True)
    check(routines, quantized(conv_layer((1, 48, 9, 9), 48, groups=2, residual=True), 1), "rows", in_place=True)
    check(routines, summed(quantized(conv_layer((1, 40, 9, 9), 72, residual=True), 1)), "direct_add", in_place=True)
    check(routines, quantized(conv_layer((1, 3, 9, 9), 16, residual=True), 1), "planar", in_place=True)
    dense = dense_layer(3, 33, 70, bias=True, residual=True, activation=NO_ACTIVATION)
    check(routines, quantized(dense, 1), "dense", in_place=True)


@pytest.mark.parametrize("groups", [1, 3])
def test_steps_of_earlier_versions_lack_the_last_parameters(routines: Sequence[Routine], groups: int) -> None:
    """Packages hold steps of kernels that got parameters since."""
    layer = quantized(conv_layer((1, 72, 9, 9), 72, groups=groups, residual=True), 1)
    wanted, lacking = exact_range(layer, int8_feeds(layer)), {"cpu:int8/direct": (3, 5), "cpu:int8/rows": (3, 7)}
    for routine in routines:
        if not routine.supports(layer):
            continue
        parameters = {**routine.parameter_space(layer)[0]} | {"split": 1}
        lowering, layouts = routine.lower(layer, parameters), routine.layouts(layer, parameters)
        call = lowering.calls[0]
        for count in lacking[str(routine.descriptor)]:
            if call.kernel == "rows_int8" and count > 3 and call.parameters[-4]:  # packed weights
                continue
            earlier = replace(call, parameters=call.parameters[:-count])
            (found,) = run_lowering(replace(lowering, calls=(earlier,)), layer, int8_feeds(layer), *layouts)
            assert steps_beyond(found, *wanted) <= 0.5 + SLACK
        damaged = replace(call, parameters=call.parameters[:-1])
        with pytest.raises(PackageError, match="wrong number"):
            run_lowering(replace(lowering, calls=(damaged,)), layer, int8_feeds(layer), *layouts)


def test_narrow_weights_are_another_workload() -> None:
    """Their times differ from those of other weights."""
    wide, narrow, zeros = (
        quantized(conv_layer((1, 8, 5, 5), 8), 1, all_zero=all_zero, narrow=narrow)
        for narrow, all_zero in ((False, False), (True, False), (True, True))
    )
    assert [layer.has_narrow_weights for layer in (wide, narrow, zeros)] == [False, True, False]
    assert wide.workload == zeros.workload != narrow.workload
    assert summed(quantized(conv_layer((1, 8, 5, 5), 8, residual=True), 1, narrow=True)).parts[0].has_narrow_weights


def test_cpus_that_gain_by_narrow_weights() -> None:
    gaining = {isa.name for isa in ISAS if gains_by_narrow_weights(isa, ("avx2", "asimddp"))}
    assert gaining == {"x86-64-v4", "x86-64-v3"}
    assert not any(gains_by_narrow_weights(isa, (one,)) for isa in ISAS for one in ("avx512_vnni", "avx_vnni"))


def test_layers_beyond_the_kernels_are_left_to_others() -> None:
    routines = compute_bound_routines(ISAS[0])
    layer = quantized(conv_layer((1, 8, 5, 5), 8), 1)
    assert any(routine.supports(layer) for routine in routines)
    huge = MappingProxyType({**layer.constants, 2: np.full(8, 2**31 - 1, np.int32)})
    other = MappingProxyType({**layer.constants, 1: layer.constants[1].astype(np.uint8)})
    unsigned = (layer.inputs[0], replace(layer.type_of(1), dtype="uint8"), *layer.inputs[2:])
    floating = with_float_result(quantized(conv_layer((1, 8, 5, 5), 8, residual=True), 1))
    for wrong in (
        replace(layer, constants=huge),
        replace(layer, constants=other, inputs=unsigned),
        floating,
        replace(layer, activation=Activation(ActivationKind.SIGMOID)),
    ):
        assert not any(routine.supports(wrong) for routine in routines)


@pytest.mark.parametrize("isa", ISAS, ids=[isa.name for isa in ISAS])
@pytest.mark.parametrize("channels", [8, 24, 40, 64, 72, 112, 272, 512])
def test_few_distinct_settings_are_offered(isa: Isa, channels: int) -> None:
    layer = quantized(conv_layer((1, channels, 14, 14), channels, (1, 1), pads=(0,) * 4), 1)
    for routine in compute_bound_routines(isa):
        if not routine.supports(layer):
            continue
        usual, space = list(routine.parameter_space(layer)), list(routine.search_space(layer))
        assert 1 <= len(usual) <= 4
        assert space[: len(usual)] == usual
        assert len({tuple(sorted(setting.items())) for setting in space}) == len(space)
