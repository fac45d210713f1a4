"""Layers by products of float16 against references with rounded operands; test_arm_parity.py has sums of float16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.cpu.routines.float16.convolution import (
    Float16Convolution,
    Float16PatchConvolution,
    prepared_weights,
    weight_factors,
)
from nnstretch.devices.cpu.routines.float16.dense import LEAST_ROWS, DenseOfFloat16
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build.instruction_sets import Isa, cpu_features, parse_target
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import FLOAT16
from nnstretch.graph.layer import Layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import check_setting, conv_layer, feeds_of, random, reference, variants
from tests.kits.kernels.convolution_shapes import dense_layer, dense_layers
from tests.kits.kernels.cpu_features import runnable_isas
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.rounded_layers import any_convolution, reference_of_rounded, rounded_to_float16

SAME = 1e-5
"""Error from the order of sums, relative to the largest output."""
ARM = parse_target("aarch64-linux-musl").isa


@pytest.fixture(scope="module", params=runnable_isas(), ids=lambda isa: isa.name)
def variant(request: pytest.FixtureRequest) -> tuple[Isa, str]:
    """Each instruction set in turn; features make no difference to these kernels here."""
    return request.param, ""


@pytest.fixture(scope="module")
def routines(isa: Isa, native: Engine) -> tuple[Routine, ...]:
    """The routines for a CPU with all features, which also take kernels that need none."""
    assert native.block == isa.block
    return native_routines(isa, features=cpu_features(), products=(FLOAT16,))


@pytest.fixture(scope="module")
def routine(routines: Sequence[Routine]) -> Float16Convolution:
    """The one for any convolution."""
    return the_routine(routines)


def the_routine(routines: Sequence[Routine]) -> Float16Convolution:
    (found,) = (one for one in routines if isinstance(one, Float16Convolution))
    return found


def check(routine: Float16Convolution, layer: Layer, *, in_place: bool = False) -> None:
    """Also of layers that the routine leaves to others because it would multiply too many zeros."""
    wanted = reference_of_rounded(layer, nearest=rounded_to_float16)
    shared = {**routine.parameter_space(layer)[0], "split": 3}
    for parameters in (*variants(routine, layer), shared):
        check_setting(routine, layer, parameters, wanted, tolerance=SAME, in_place=in_place)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(layer=any_convolution)
def test_any_convolution(routine: Float16Convolution, layer: Layer) -> None:
    check(routine, layer)


@pytest.mark.parametrize("columns", [1, 7, 9, 18, 33])
def test_rows_of_any_width(routine: Float16Convolution, columns: int) -> None:
    check(routine, conv_layer((1, 34, 9, columns), 48, residual=True, activation=Activation(ActivationKind.SILU)))


def test_pixels_that_a_pointwise_convolution_skips(routine: Float16Convolution) -> None:
    check(routine, conv_layer((2, 40, 9, 9), 40, (1, 1), strides=(2, 2), pads=(1, 1, 1, 1)))


def test_taps_outside_the_image(routine: Float16Convolution) -> None:
    """Rows of taps that no pixel of a tile needs are left out, all of them where the padding is large."""
    check(routine, conv_layer((1, 32, 2, 5), 20, (3, 3), pads=(7, 2, 7, 2), dilations=(2, 1)))


def test_sums_may_be_made_in_the_residuals_memory(routine: Float16Convolution) -> None:
    check(routine, conv_layer((1, 40, 9, 9), 64, residual=True), in_place=True)


@pytest.mark.parametrize(("channels", "kernel"), [(3, (16, 16)), (5, (4, 4))])
def test_patches(routines: Sequence[Routine], isa: Isa, channels: int, kernel: tuple[int, int]) -> None:
    (patches,) = (one for one in routines if isinstance(one, Float16PatchConvolution))
    layer = conv_layer((2, channels, 35, 48), 20, kernel, strides=kernel, pads=(0, 0, 0, 0))
    assert patches.supports(layer) == (kernel[0] * kernel[1] % isa.block == 0)
    for parameters in patches.search_space(layer):
        wanted = reference_of_rounded(layer, nearest=rounded_to_float16)
        check_setting(patches, layer, parameters, wanted, tolerance=SAME)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(layer=dense_layers)
def test_dense(routines: Sequence[Routine], layer: Layer) -> None:
    (dense,) = (one for one in routines if isinstance(one, DenseOfFloat16))
    assert dense.supports(layer) == (layer.type_of(0).shape[0] >= LEAST_ROWS)
    if dense.supports(layer):
        wanted = reference_of_rounded(layer, nearest=rounded_to_float16)
        shared = {"rows": 3, "split": 2, "terms": 16}
        for parameters in (*dense.parameter_space(layer), shared):
            check_setting(dense, layer, parameters, wanted, tolerance=SAME)


def test_rows_beyond_the_range_of_float16(routines: Sequence[Routine]) -> None:
    (dense,) = (one for one in routines if isinstance(one, DenseOfFloat16))
    layer = dense_layer(9, 70, 33, bias=False, residual=False, activation=NO_ACTIVATION)
    for size in (1e-12, 1e12):
        rows = (feeds_of(layer)[0] * size).astype(np.float32)
        wanted = reference_of_rounded(layer, [rows], rounded_to_float16)
        found = computed(dense, layer, rows, dense.default_parameters(layer))
        assert np.abs(found - wanted).max() < 10 * SAME * np.abs(wanted).max()


def computed(routine: Routine, layer: Layer, image: np.ndarray, parameters: Parameters) -> np.ndarray:
    """The output for an image, or for rows."""
    layouts = routine.layouts(layer, parameters)
    (found,) = run_lowering(routine.lower(layer, parameters), layer, [image], *layouts, cores=(OWN_CORE,))
    return found


@pytest.mark.parametrize("of_inputs", [1e-20, 1e-6, 1e6, 1e20])
@pytest.mark.parametrize("of_weights", [1e-7, 1.0, 1e7])
def test_inputs_and_weights_beyond_the_range_of_float16(
    routine: Float16Convolution, of_inputs: float, of_weights: float
) -> None:
    weight = random((24, 40, 3, 3), 1) * of_weights * np.logspace(-6, 0, 24).reshape(24, 1, 1, 1)
    layer = conv_layer((1, 40, 6, 7), 24, bias=False, weight=weight.astype(np.float32))
    image = (feeds_of(layer)[0] * of_inputs).astype(np.float32)
    wanted = reference_of_rounded(layer, [image], rounded_to_float16)
    found = computed(routine, layer, image, {**routine.parameter_space(layer)[0], "rows": 2})
    largest = np.abs(wanted).max(axis=(0, 2, 3), keepdims=True)
    np.testing.assert_array_less(np.abs(found - wanted) / largest, 10 * SAME)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_inputs_that_are_no_finite_number_spoil_what_reads_them(routine: Float16Convolution, what: float) -> None:
    layer = conv_layer((1, 40, 6, 7), 24)
    image = feeds_of(layer)[0].copy()
    image[0, 3, 0, 0] = what
    found = computed(routine, layer, image, routine.parameter_space(layer)[0])
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(reference(layer, [image])))


def test_weights_are_stored_with_a_power_of_two_per_output() -> None:
    weight = np.array([0.75, -3e5, 1.0, 3e-9, 0, 3e38], np.float32).reshape(6, 1, 1, 1)
    np.testing.assert_array_equal(weight_factors(weight), np.ldexp(1.0, [0, 19, 1, -28, 0, 127]))
    stored = prepared_weights(weight, 1, 8).__array__()
    factors, numbers = stored[:16].view(np.float32), stored[16:].reshape(8, 8)
    np.testing.assert_array_equal(factors, [*weight_factors(weight), 1, 1])
    assert not numbers[1:].any()
    found = factors[:6] * numbers[0, :6].astype(np.float64)
    np.testing.assert_allclose(found, weight.reshape(-1), rtol=2**-11)


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (conv_layer((1, 16, 9, 9), 16, groups=2), True),
        (conv_layer((1, 40, 9, 9), 16, groups=2), True),
        (conv_layer((1, 48, 9, 9), 48, groups=4), False),
        (conv_layer((1, 32, 9, 9), 32, groups=8), False),
        (conv_layer((1, 3, 9, 9), 16), False),
        (conv_layer((1, 33, 9, 9), 33, groups=33), False),
        (conv_layer((1, 4096, 1, 100_000), 16, pads=(0, 0, 0, 0), kernel=(1, 1)), False),
    ],
    ids=[
        "groups",
        "groups that share a part",
        "vectors of two groups",
        "narrow groups",
        "few channels",
        "depthwise",
        "rows of gigabytes",
    ],
)
def test_what_the_kernel_takes(layer: Layer, supported: bool) -> None:
    assert the_routine(native_routines(ARM, features={"asimdhp"}, products=(FLOAT16,))).supports(layer) == supported


def test_only_where_it_is_asked_for_and_the_cpu_has_instructions_for_it() -> None:
    layer = conv_layer((1, 8, 9, 9), 32)
    slow = the_routine(native_routines(ARM, features={"asimddp"}, products=(FLOAT16,)))
    assert not slow.supports(layer)
    exact = native_routines(ARM, features={"asimdhp"})
    assert not any(isinstance(one, Float16Convolution) for one in exact)


def test_more_products_at_a_time_are_tried_where_outputs_have_more() -> None:
    routine = the_routine(native_routines(ARM, features={"asimdhp"}, products=(FLOAT16,)))
    for channels, terms in ((14, [64]), (16, [64, 128])):
        space = routine.parameter_space(conv_layer((1, channels, 9, 9), 32))
        assert list(dict.fromkeys(one["terms"] for one in space)) == terms
