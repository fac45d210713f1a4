"""Layers by products of bfloat16 against references with rounded operands, on every variant of their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.cpu.routines.bfloat16.attention import AttentionOfBfloat16
from nnstretch.devices.cpu.routines.bfloat16.convolution import (
    Bfloat16Convolution,
    Bfloat16PatchConvolution,
    rounded,
)
from nnstretch.devices.cpu.routines.bfloat16.dense import LEAST_ROWS, DenseOfBfloat16
from nnstretch.devices.cpu.routines.bfloat16.pair import PairOfBfloat16
from nnstretch.devices.cpu.routines.convolution.pair import ExpandDepthwise
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa, cpu_features
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import BFLOAT16
from nnstretch.graph.layer import Layer
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import check_setting, conv_layer, feeds_of, reference, variants
from tests.kits.kernels.convolution_shapes import dense_layers
from tests.kits.kernels.cpu_features import runnable_isas, variant_masks
from tests.kits.kernels.fused_shapes import depthwise_project, expand_depthwise
from tests.kits.kernels.rounded_layers import (
    any_convolution,
    reference_of_pair,
    reference_of_rounded,
)
from tests.kits.kernels.rounded_layers import rounded as nearest
from tests.kits.kernels.token_layers import attention_layer, attention_layers, reference_of_attention

VARIANTS = [(isa, mask) for isa in runnable_isas() for mask in variant_masks(isa, "bfloat16")]
SAME = 1e-5
"""Error from the order of sums, relative to the largest output."""
ROUNDING = 4e-3
"""The same from operands with 8 bits."""


@pytest.fixture(scope="module", params=VARIANTS, ids=[f"{isa.name}{mask}" for isa, mask in VARIANTS])
def variant(request: pytest.FixtureRequest) -> tuple[Isa, str]:
    """Each instruction set in turn, and the features to hide so that each variant of these kernels is chosen once."""
    isa, mask = request.param
    return isa, mask


@pytest.fixture(scope="module")
def routines(isa: Isa, native: Engine) -> tuple[Routine, ...]:
    """The routines for a CPU with all features, which also take kernels that need none."""
    assert native.block == isa.block
    return native_routines(isa, features=cpu_features(), products=(BFLOAT16,))


@pytest.fixture(scope="module")
def routine(routines: Sequence[Routine]) -> Bfloat16Convolution:
    """The one for any convolution."""
    return the_routine(routines)


def the_routine(routines: Sequence[Routine]) -> Bfloat16Convolution:
    (found,) = (one for one in routines if isinstance(one, Bfloat16Convolution))
    return found


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(layer=any_convolution)
def test_any_convolution(routine: Bfloat16Convolution, layer: Layer) -> None:
    check(routine, layer)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(layer=expand_depthwise() | depthwise_project())
def test_pairs(routines: Sequence[Routine], layer: Layer) -> None:
    found = [one for one in routines if isinstance(one, PairOfBfloat16) and one.supports(layer)]
    assert found
    # Few results are rounded to another number than the reference's, since sums have another order.
    for one in found:
        wanted = reference_of_pair(layer, 0 if isinstance(one, ExpandDepthwise) else 1)
        for parameters in (*one.parameter_space(layer), {"band": 1}, {"band": 3}):
            check_setting(one, layer, parameters, wanted, tolerance=ROUNDING)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(layer=dense_layers)
def test_dense(routines: Sequence[Routine], layer: Layer) -> None:
    (dense,) = (one for one in routines if isinstance(one, DenseOfBfloat16))
    assert dense.supports(layer) == (layer.type_of(0).shape[0] >= LEAST_ROWS)
    if dense.supports(layer):
        wanted = reference_of_rounded(layer)
        for parameters in (*dense.parameter_space(layer), {"rows": 3, "split": 2}):
            check_setting(dense, layer, parameters, wanted, tolerance=SAME)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(layer=attention_layers())
def test_attention(routines: Sequence[Routine], layer: Layer) -> None:
    check_attention(routines, layer)


def test_attention_of_many_keys_and_channels(routines: Sequence[Routine]) -> None:
    """Odd numbers of keys that pass in tiles, and of channels that are multiplied in parts."""
    check_attention(routines, attention_layer((1, 1, 20, 601, 7, 9), heads=2, groups=1))
    check_attention(routines, attention_layer((1, 2, 9, 31, 603, 5), heads=1, groups=1, scale=0.05))
    check_attention(routines, attention_layer((1, 2, 9, 31, 603, 5), heads=1, groups=1, scale=3.0, epsilon=1e-12))


def check_attention(routines: Sequence[Routine], layer: Layer) -> None:
    (attention,) = (one for one in routines if isinstance(one, AttentionOfBfloat16))
    assert attention.supports(layer)
    wanted = reference_of_attention(layer, feeds_of(layer), nearest)
    # Where keys pass in tiles, weights are rounded relative to another maximum than the reference's.
    for parameters in attention.parameter_space(layer):
        check_setting(attention, layer, parameters, wanted, tolerance=ROUNDING)


@pytest.mark.parametrize(("channels", "kernel"), [(3, (16, 16)), (5, (4, 4))])
def test_patches(routines: Sequence[Routine], isa: Isa, channels: int, kernel: tuple[int, int]) -> None:
    (patches,) = (one for one in routines if isinstance(one, Bfloat16PatchConvolution))
    layer = conv_layer((2, channels, 35, 48), 20, kernel, strides=kernel, pads=(0, 0, 0, 0))
    assert patches.supports(layer) == (kernel[0] * kernel[1] % isa.block == 0)
    for parameters in patches.search_space(layer):
        check_setting(patches, layer, parameters, reference_of_rounded(layer), tolerance=SAME)


def check(routine: Bfloat16Convolution, layer: Layer, *, in_place: bool = False) -> None:
    assert routine.supports(layer)
    wanted = reference_of_rounded(layer)
    shared = {**routine.parameter_space(layer)[0], "split": 3}
    for parameters in (*variants(routine, layer), shared):
        check_setting(routine, layer, parameters, wanted, tolerance=SAME, in_place=in_place)


@pytest.mark.parametrize("columns", [1, 4, 7, 8, 14, 15, 33])
def test_rows_of_any_width(routine: Bfloat16Convolution, columns: int) -> None:
    """Narrow rows are computed several at a time."""
    check(routine, conv_layer((1, 34, 9, columns), 48, residual=True, activation=Activation(ActivationKind.SILU)))


def test_sums_may_be_made_in_the_residuals_memory(routine: Bfloat16Convolution) -> None:
    check(routine, conv_layer((1, 40, 9, 9), 64, residual=True), in_place=True)


def test_rounding_costs_little(routine: Bfloat16Convolution) -> None:
    """An error beside that of other routines, and not more of it than eight bits explain."""
    layer = conv_layer((1, 256, 14, 14), 64)
    wanted = reference(layer, feeds_of(layer))
    for parameters in routine.parameter_space(layer):
        check_setting(routine, layer, parameters, wanted, tolerance=ROUNDING)
    assert np.abs(reference_of_rounded(layer) - wanted).max() > 10 * SAME * np.abs(wanted).max()


def test_weights_are_rounded_to_the_nearest_number() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32)
    halves = (np.arange(2000, dtype=np.uint32) << 16) + 0x3F808000  # as near to two numbers
    numbers = np.concatenate([bits, halves, halves - 1, halves + 1]).view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    found = (rounded(numbers).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, nearest(numbers))


@pytest.mark.parametrize(
    ("layer", "supported"),
    [
        (conv_layer((1, 8, 9, 9), 32, groups=2), True),
        (conv_layer((1, 48, 9, 9), 48, groups=2), True),
        (conv_layer((1, 32, 9, 9), 32, groups=8), False),
        (conv_layer((1, 3, 9, 9), 5), True),
        (conv_layer((1, 33, 9, 9), 33, groups=33), False),
        (conv_layer((1, 4096, 1, 100_000), 16, pads=(0, 0, 0, 0), kernel=(1, 1)), False),
    ],
    ids=["groups", "groups of part of a vector", "narrow groups", "few channels", "depthwise", "rows of gigabytes"],
)
def test_what_the_kernel_takes(layer: Layer, supported: bool) -> None:
    every = native_routines(ISAS[0], features={"avx512_bf16"}, products=(BFLOAT16,))
    assert the_routine(every).supports(layer) == supported


def test_only_where_it_is_asked_for_and_the_cpu_has_instructions_for_it() -> None:
    layer = conv_layer((1, 8, 9, 9), 32)
    slow = the_routine(native_routines(ISAS[0], features={"avx512_vnni"}, products=(BFLOAT16,)))
    assert not slow.supports(layer)
    exact = native_routines(ISAS[0], features={"avx512_bf16"})
    assert not any(isinstance(one, Bfloat16Convolution) for one in exact)
