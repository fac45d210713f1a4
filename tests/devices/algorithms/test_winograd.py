"""Winograd convolution against exact sums in float64, on every instruction set that runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nnstretch.devices.algorithms.winograd import (
    INT16_GROUP,
    POINTS,
    division_of,
    kernel_transform,
    prepared_int16_panels,
)
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.cpu.routines.convolution.winograd import (
    WinogradConvolution,
    WinogradConvolutionOfInt16Weights,
    transforms,
)
from nnstretch.errors import PackageError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import check_setting, conv_layer, feeds_of, kept_by_int16
from tests.kits.kernels.kernel_driver import run_lowering

ERRORS = {4: 4e-6, 6: 2e-5, 7: 8e-5, 8: 8e-5}
"""Largest error by positions of a tile, relative to the largest output; untuned routines may have 1e-4."""

RELU = Activation(ActivationKind.RELU)
SILU = Activation(ActivationKind.SILU)
CLIP = Activation(ActivationKind.CLIP, -0.5, 0.75)


@pytest.fixture(scope="module")
def routine(routines: Sequence[Routine]) -> WinogradConvolution:
    (found,) = [r for r in routines if type(r) is WinogradConvolution]
    return found


@pytest.fixture(scope="module")
def of_int16(routines: Sequence[Routine]) -> WinogradConvolutionOfInt16Weights:
    (found,) = [r for r in routines if isinstance(r, WinogradConvolutionOfInt16Weights)]
    return found


def exact(layer: Layer, feeds: list[np.ndarray]) -> np.ndarray:
    """Output of a convolution without dilation, summed in float64."""
    pads, groups = layer.ints("pads"), layer.attributes["groups"]
    down, across = layer.ints("strides")
    assert isinstance(groups, int)
    x = np.pad(feeds[0].astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    weight = layer.constants[1].astype(np.float64)
    batch, outputs, height, width = layer.outputs[0].shape
    x = x.reshape(batch, groups, -1, *x.shape[2:])
    weight = weight.reshape(groups, outputs // groups, -1, *weight.shape[2:])
    y = np.zeros((batch, groups, outputs // groups, height * width))
    for i, j in np.ndindex(*weight.shape[3:]):
        shifted = x[..., i : i + down * height : down, j : j + across * width : across][..., :height, :width]
        y += np.ascontiguousarray(weight[..., i, j]) @ shifted.reshape(*shifted.shape[:3], -1)
    y = y.reshape(layer.outputs[0].shape)
    if 2 in layer.constants:
        y += layer.constants[2][:, None, None]
    if layer.has(3):
        y += feeds[1]
    return activated(y, layer.activation)


def activated(y: np.ndarray, activation: Activation) -> np.ndarray:
    if activation == RELU:
        return np.asarray(np.maximum(y, 0))
    if activation == CLIP:
        return np.asarray(np.clip(y, -0.5, 0.75))
    if activation == SILU:
        return np.asarray(y / (1 + np.exp(-y)))
    assert activation == NO_ACTIVATION
    return y


def variants(routine: WinogradConvolution, layer: Layer) -> list[Parameters]:
    """Every transform that divides the kernel, with the register tile on offer and that of one vector, in blocks of few
    tiles and of all."""
    geometry = KernelGeometry.of(layer)
    offered = routine.parameter_space(layer)[0]
    register_tiles = {(offered["tiles"], offered["vectors"]), routine.tiles[-1]}
    return [
        {
            "alpha": d.down.alpha,
            "taps": d.down.taps,
            "tiles": tiles,
            "vectors": vectors,
            "block": block,
            "panels": panels,
        }
        for d in routine.divisions(geometry)
        for tiles, vectors in sorted(register_tiles)
        for block, panels in ((3, 1), (1000, 2))
    ]


def check(routine: WinogradConvolution, layer: Layer) -> None:
    wanted = exact(layer, feeds_of(layer))
    for parameters in variants(routine, layer):
        check_setting(routine, layer, parameters, wanted, tolerance=ERRORS[parameters["alpha"]], least_span=1.0)


dense_channels = st.tuples(st.integers(4, 70), st.sampled_from([1, 5, 16, 31, 32, 48, 64, 77, 96]), st.just(1))
grouped_channels = st.builds(
    lambda groups, inputs, outputs: (groups * inputs, groups * outputs, groups),
    st.integers(2, 7),
    st.sampled_from([4, 5, 8, 12, 16, 24, 32]),
    st.sampled_from([1, 4, 5, 8, 12, 16, 24, 32]),
)


@st.composite
def layers(draw: st.DrawFn, channels: st.SearchStrategy[tuple[int, int, int]]) -> Layer:
    """Layers of (inputs, outputs, groups) whose planes are a few tiles, give or take a pixel, with any padding."""
    inputs, outputs, groups = draw(channels)
    pads = draw(st.sampled_from([(1, 1, 1, 1), (0, 0, 0, 0)]) | st.tuples(*[st.integers(0, 9)] * 4))
    height, width = draw(st.integers(1, 20)), draw(st.integers(1, 30))
    assume(height + pads[0] + pads[2] >= 3 and width + pads[1] + pads[3] >= 3)
    return conv_layer(
        (draw(st.integers(1, 3)), inputs, height, width),
        outputs,
        pads=pads,
        groups=groups,
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from([NO_ACTIVATION, RELU, CLIP, SILU])),
    )


@st.composite
def other_layers(draw: st.DrawFn) -> Layer:
    """Layers with any kernel of several taps, strides up to 2, and few or many channels in groups or not."""
    kernel = draw(st.tuples(*[st.sampled_from([1, 2, 3, 4, 5, 6, 7])] * 2).filter(lambda k: k != (1, 1)))
    inputs, outputs, groups = draw(grouped_channels | st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(1)))
    pads = draw(st.tuples(*[st.integers(0, 6)] * 4))
    height, width = draw(st.integers(1, 17)), draw(st.integers(1, 25))
    assume(height + pads[0] + pads[2] >= kernel[0] and width + pads[1] + pads[3] >= kernel[1])
    return conv_layer(
        (draw(st.integers(1, 2)), inputs, height, width),
        outputs,
        kernel=kernel,
        strides=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        pads=pads,
        groups=groups,
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from([NO_ACTIVATION, CLIP, SILU])),
    )


many = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])


@many
@given(layer=layers(dense_channels))
def test_any_layer(routine: WinogradConvolution, layer: Layer) -> None:
    check(routine, layer)


@many
@given(layer=other_layers())
def test_other_kernels_and_strides(routine: WinogradConvolution, layer: Layer) -> None:
    assume(routine.divisions(KernelGeometry.of(layer)))
    check(routine, layer)


@many
@given(layer=layers(grouped_channels))
def test_grouped_layers(routine: WinogradConvolution, layer: Layer) -> None:
    check(routine, layer)


@many
@given(layer=layers(dense_channels))
def test_int16_weights_of_any_layer(of_int16: WinogradConvolutionOfInt16Weights, layer: Layer) -> None:
    assume(of_int16.supports(layer))
    check(of_int16, kept_by_int16(layer))


@pytest.mark.parametrize("name", ["resnet", "resnet_last", "tails", "wide_padding", "one_pixel"])
def test_int16_weights_of_layers_of_networks(of_int16: WinogradConvolutionOfInt16Weights, name: str) -> None:
    assert of_int16.supports(LAYERS[name])
    check(of_int16, kept_by_int16(LAYERS[name]))


@pytest.mark.parametrize(("alpha", "error"), [(4, 5e-5), (6, 1.5e-4)])
def test_rounding_to_int16_is_a_small_error(
    of_int16: WinogradConvolutionOfInt16Weights, alpha: int, error: float
) -> None:
    layer = conv_layer((1, 512, 12, 12), 32)
    for parameters in variants(of_int16, layer):
        if parameters["alpha"] == alpha:
            check_setting(of_int16, layer, parameters, exact(layer, feeds_of(layer)), tolerance=error)


def test_int16_weights_are_encoded_ones_in_steps() -> None:
    """Half a step is the largest difference; a group of zeros has no step, and the last group is not full."""
    weight = np.random.default_rng(5).standard_normal((20, 37, 3, 3)).astype(np.float32)
    weight[4, 16:32] = 0
    division = division_of(KernelGeometry.of(conv_layer((1, 37, 9, 9), 20)), 6, 3)
    prepared = np.asarray(prepared_int16_panels(weight, 16, division))
    panels = prepared.reshape(2, 36, -1)
    encoded = np.pad(division.encoded(weight)[:, 0], ((0, 0), (0, 12), (0, 0))).reshape(36, 2, 16, 37)
    at = 0
    for first in range(0, 37, INT16_GROUP):
        wanted = encoded[..., first : first + INT16_GROUP].transpose(1, 0, 3, 2)
        scales = np.ascontiguousarray(panels[..., at : at + 32]).view(np.float32)[:, :, None]
        steps = panels[..., at + 32 : at + 32 + 16 * wanted.shape[2]].reshape(wanted.shape)
        assert (np.abs(steps * scales - wanted) <= scales * 0.51).all()
        at += 32 + 16 * wanted.shape[2]
    assert at == panels.shape[2]


def test_only_layers_that_read_many_weights_store_them_as_int16(
    of_int16: WinogradConvolutionOfInt16Weights,
) -> None:
    peaks = np.zeros((64, 64, 3, 3), np.float32)
    peaks[:, :, 1, 1], peaks[:, 0, 1, 1] = 1e-4, 1
    assert of_int16.supports(conv_layer((1, 64, 14, 14), 64))
    assert not of_int16.supports(conv_layer((1, 64, 14, 14), 64, weight=peaks))
    assert not of_int16.supports(conv_layer((1, 64, 56, 56), 64))
    assert not of_int16.supports(conv_layer((1, 64, 14, 14), 64, strides=(2, 2)))
    assert not of_int16.supports(conv_layer((1, 64, 14, 14), 64, groups=2))
    assert not of_int16.supports(conv_layer((1, 64, 14, 14), 64, kernel=(5, 5)))
    assert not of_int16.supports(conv_layer((1, 3, 14, 14), 64))


LAYERS = {
    "resnet": conv_layer((1, 64, 28, 28), 64, residual=True, activation=RELU),
    "resnet_last": conv_layer((1, 128, 7, 7), 128, residual=True, activation=RELU),
    "densenet": conv_layer((1, 128, 14, 14), 32, bias=False),
    "inception": conv_layer((1, 64, 35, 35), 96, activation=RELU),
    "squeezenet": conv_layer((1, 16, 27, 27), 64, activation=RELU),
    "tails": conv_layer((2, 51, 13, 13), 279),
    "regnet": conv_layer((1, 168, 14, 14), 168, groups=7, activation=RELU),
    "resnext": conv_layer((1, 128, 14, 14), 128, groups=32),
    "wide_padding": conv_layer((1, 16, 3, 5), 16, pads=(20, 0, 3, 30)),
    "one_pixel": conv_layer((1, 16, 1, 1), 16),
    "even_kernel": conv_layer((1, 51, 14, 14), 77, kernel=(6, 6), pads=(2, 2, 3, 3)),
    "one_row": conv_layer((1, 64, 17, 17), 48, kernel=(1, 7), pads=(0, 3, 0, 3), activation=RELU),
    "one_column": conv_layer((1, 64, 8, 8), 48, kernel=(3, 1), pads=(1, 0, 1, 0), activation=SILU),
    "padded_row": conv_layer((1, 16, 5, 9), 16, kernel=(1, 5), pads=(2, 2, 1, 2), strides=(2, 1)),
    "halved": conv_layer((1, 64, 28, 28), 128, strides=(2, 2), activation=RELU),
    "halved_groups": conv_layer((1, 168, 28, 28), 168, strides=(2, 2), groups=7),
    "first": conv_layer((1, 3, 56, 60), 64, kernel=(7, 7), strides=(2, 2), pads=(3, 3, 3, 3), activation=RELU),
    "first_of_large_kernels": conv_layer((2, 3, 40, 40), 51, kernel=(14, 14), strides=(2, 2), pads=(6, 6, 6, 6)),
    "first_row": conv_layer((1, 2, 9, 20), 16, kernel=(1, 5), pads=(1, 2, 0, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks(routine: WinogradConvolution, name: str) -> None:
    check(routine, LAYERS[name])


@pytest.mark.parametrize(("alpha", "taps"), transforms())
def test_errors_stay_small_over_many_channels(routine: WinogradConvolution, alpha: int, taps: int) -> None:
    layer = conv_layer((1, 512, 12, 12), 16, kernel=(taps, taps))
    parameters = {**routine.parameter_space(layer)[0], "alpha": alpha, "taps": taps}
    check_setting(routine, layer, parameters, exact(layer, feeds_of(layer)), tolerance=ERRORS[alpha] / 2)


@pytest.mark.parametrize(("alpha", "taps"), transforms())
def test_kernels_of_one_tap_are_encoded_as_powers_of_the_points(alpha: int, taps: int) -> None:
    """The transform evaluates the kernel's polynomial at every point, up to one factor per point."""
    transform = kernel_transform(alpha, taps)
    assert transform.shape == (alpha, taps)
    for row, point in zip(transform, POINTS[alpha], strict=False):
        np.testing.assert_allclose(row / row[0], point ** np.arange(taps), atol=1e-12)
    np.testing.assert_array_equal(transform[-1], np.eye(taps)[-1])


def test_parts_of_a_kernel_add_up_to_it() -> None:
    """Every tap belongs to one part, and parts that are 0 at infinity are left out there."""
    division = division_of(KernelGeometry.of(conv_layer((1, 4, 30, 30), 4, kernel=(7, 3), strides=(2, 1))), 6, 2)
    weight = np.random.default_rng(2).standard_normal((1, 1, 7, 3)).astype(np.float32)
    encoded = division.encoded(weight)
    assert len(division.parts) == 8
    for position in range(division.positions):
        left_out = np.ones(len(division.parts), bool)
        left_out[division.parts_at(position)] = False
        np.testing.assert_array_equal(encoded[position, left_out], 0)
    origin = encoded[0].sum(axis=0).item() * 1.265625**2
    taken = weight[0, 0][np.ix_([0, 4, 1, 5], [0, 2])]
    np.testing.assert_allclose(origin, taken.sum(), rtol=1e-5)


@pytest.mark.parametrize("outputs", [64, 40])
def test_the_output_may_be_the_residuals_memory(routine: WinogradConvolution, outputs: int) -> None:
    layer = conv_layer((2, 40, 9, 11), outputs, residual=True, activation=SILU)
    wanted = exact(layer, feeds_of(layer))
    for parameters in variants(routine, layer):
        check_setting(routine, layer, parameters, wanted, tolerance=ERRORS[parameters["alpha"]], in_place=True)


def test_only_what_is_worth_it_is_supported(routine: WinogradConvolution) -> None:
    shape = (1, 64, 18, 18)
    assert routine.supports(conv_layer(shape, 64))
    assert routine.supports(conv_layer(shape, 64, kernel=(7, 1)))
    assert routine.supports(conv_layer(shape, 64, kernel=(5, 5)))
    assert routine.supports(conv_layer((1, 64, 56, 56), 64, strides=(2, 2)))
    assert routine.supports(conv_layer((1, 3, 224, 224), 64, kernel=(7, 7), strides=(2, 2)))
    assert not routine.supports(conv_layer((1, 3, 224, 224), 16, strides=(2, 2)))
    assert not routine.supports(conv_layer(shape, 64, kernel=(1, 1)))
    assert not routine.supports(conv_layer(shape, 64, kernel=(5, 5), strides=(3, 1)))
    assert not routine.supports(conv_layer(shape, 64, dilations=(2, 2)))
    assert not routine.supports(conv_layer(shape, 64, groups=64))
    assert not routine.supports(conv_layer((1, 256, 2, 2), 256, strides=(2, 2)))


@pytest.mark.parametrize("name", ["resnet", "resnet_last", "tails", "regnet", "resnext", "one_pixel"])
def test_small_kernels_are_worth_it(routine: WinogradConvolution, name: str) -> None:
    assert routine.supports(LAYERS[name])


@pytest.mark.parametrize(
    ("word", "value", "complaint"),
    [
        (7, 100, "parts"),
        (8, 17, "too small"),
        (9, 3, "strides"),
        (14, 2, "dilation"),
        (15, 3, "groups"),
        (15, 0, "groups"),
        (16, 2, "out of range"),
        (16, -1, "out of range"),
        (17, 0, "out of range"),
        (17, 1 << 21, "out of range"),
        (18, 0, "out of range"),
        (19, 77, "out of range"),
        (5, 1 << 20, "too small"),
        (4, 1 << 16, "too small"),
    ],
)
def test_parameters_that_no_routine_writes_are_refused(
    routine: WinogradConvolution, word: int, value: int, complaint: str
) -> None:
    layer = conv_layer((1, 16, 9, 9), 16)
    parameters = routine.parameter_space(layer)[0]
    lowering = routine.lower(layer, parameters)
    (call,) = lowering.calls
    words = [*call.parameters]
    words[word] = value
    changed = replace(lowering, calls=(replace(call, parameters=tuple(words)),))
    layouts = routine.layouts(layer, parameters)
    run_lowering(lowering, layer, feeds_of(layer), *layouts)
    with pytest.raises(PackageError, match=complaint):
        run_lowering(changed, layer, feeds_of(layer), *layouts)


def test_few_settings_are_measured(routine: WinogradConvolution) -> None:
    """Each costs tuning time; the best estimate comes first."""
    for layer in LAYERS.values():
        space = routine.parameter_space(layer)
        assert 1 <= len(space) <= 2
        assert len({tuple(sorted(p.items())) for p in space}) == len(space)
    wide, narrow = conv_layer((1, 16, 112, 112), 16), conv_layer((1, 512, 7, 7), 16)
    assert routine.parameter_space(wide)[0]["alpha"] == 8
    assert routine.parameter_space(narrow)[0]["alpha"] == 4
