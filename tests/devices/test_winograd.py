"""Winograd convolution against exact sums in float64, on every instruction set that runs here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nnstretch.devices.cpu.processor import heavy_routines
from nnstretch.devices.cpu.routines.winograd import WinogradConvolution
from nnstretch.devices.engine import build
from nnstretch.devices.engine.binding import Engine
from nnstretch.devices.engine.harness import pack, run_lowering, unpack
from nnstretch.devices.engine.program import (
    Buffer,
    Lane,
    LaneKind,
    Program,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.routine import Lowering, Parameters
from nnstretch.devices.winograd import POINTS, kernel_transform
from nnstretch.errors import PackageError
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType

RUNNABLE = [isa for isa in build.ISAS if isa.features <= build.local_isa().features or isa == build.local_isa()]
ERRORS = {2: 4e-6, 4: 2e-5, 6: 8e-5}
"""Largest error by width of the output tile, relative to the largest output; untuned routines may have 1e-4."""

RELU = Activation(ActivationKind.RELU)
SILU = Activation(ActivationKind.SILU)
CLIP = Activation(ActivationKind.CLIP, -0.5, 0.75)
Pads = tuple[int, int, int, int]


@pytest.fixture(scope="module", params=RUNNABLE, ids=[isa.name for isa in RUNNABLE])
def isa(request: pytest.FixtureRequest) -> build.Isa:
    assert isinstance(request.param, build.Isa)
    return request.param


@pytest.fixture(scope="module")
def native(isa: build.Isa) -> Iterator[Engine]:
    """The engine of one instruction set, which the harness runs meanwhile."""
    made = Engine(build.build_engine(isa))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nnstretch.devices.engine.harness.engine", lambda: made)
        patch.setattr("nnstretch.devices.engine.program.engine", lambda: made)
        yield made


@pytest.fixture(scope="module")
def routine(isa: build.Isa, native: Engine) -> WinogradConvolution:
    assert native.block == isa.block
    (found,) = [r for r in heavy_routines(isa) if isinstance(r, WinogradConvolution)]
    return found


def conv_layer(
    shape: tuple[int, int, int, int],
    outputs: int,
    *,
    pads: Pads = (1, 1, 1, 1),
    groups: int = 1,
    bias: bool = True,
    residual: bool = False,
    activation: Activation = NO_ACTIVATION,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
) -> Layer:
    batch, channels, height, width = shape
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((outputs, channels // groups, *kernel)).astype(np.float32)
    weight *= np.float32((channels // groups * 9) ** -0.5)
    extents = ((height + pads[0] + pads[2], 0), (width + pads[1] + pads[3], 1))
    sizes = [(extent - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for extent, i in extents]
    output = TensorType((batch, outputs, *sizes))
    constants = {1: weight} | ({2: rng.standard_normal(outputs).astype(np.float32)} if bias else {})
    inputs = (TensorType(shape), TensorType(weight.shape), TensorType((outputs,)) if bias else None)
    return Layer(
        "tested",
        "Conv",
        (*inputs, output if residual else None),
        (output,),
        MappingProxyType({"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}),
        activation,
        MappingProxyType(constants),
    )


def feeds_of(layer: Layer) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(layer.type_of(i).shape).astype(np.float32) for i in layer.activations]


def exact(layer: Layer, feeds: list[np.ndarray]) -> np.ndarray:
    """What a 3×3 convolution with stride 1 gives, summed in float64."""
    pads, groups = layer.ints("pads"), layer.attributes["groups"]
    assert isinstance(groups, int)
    x = np.pad(feeds[0].astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    weight = layer.constants[1].astype(np.float64)
    batch, outputs, height, width = layer.outputs[0].shape
    x = x.reshape(batch, groups, -1, *x.shape[2:])
    weight = weight.reshape(groups, outputs // groups, -1, 3, 3)
    y = np.zeros((batch, groups, outputs // groups, height, width))
    for i in range(3):
        for j in range(3):
            y += np.einsum("ngchw,goc->ngohw", x[..., i : i + height, j : j + width], weight[..., i, j])
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
    """Every width of tiles with the register tile on offer and that of one vector, in blocks of few tiles and of all."""
    offered = routine.parameter_space(layer)[0]
    register_tiles = {(offered["tiles"], offered["vectors"]), routine.tiles[-1]}
    return [
        {"m": m, "tiles": tiles, "vectors": vectors, "block": block, "panels": panels}
        for m in POINTS
        for tiles, vectors in sorted(register_tiles)
        for block, panels in ((3, 1), (1000, 2))
    ]


def check(routine: WinogradConvolution, layer: Layer) -> None:
    assert routine.supports(layer)
    feeds = feeds_of(layer)
    wanted = exact(layer, feeds)
    span = max(float(np.abs(wanted).max()), 0.1)
    for parameters in variants(routine, layer):
        layouts = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, *layouts, cores=(0, 0))
        error = float(np.abs(found - wanted).max()) / span
        assert error < ERRORS[parameters["m"]], f"{dict(parameters)}: {error:.1e}"


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


many = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


@many
@given(layer=layers(dense_channels))
def test_any_layer(routine: WinogradConvolution, layer: Layer) -> None:
    check(routine, layer)


@many
@given(layer=layers(grouped_channels))
def test_grouped_layers(routine: WinogradConvolution, layer: Layer) -> None:
    check(routine, layer)


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
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks(routine: WinogradConvolution, name: str) -> None:
    check(routine, LAYERS[name])


@pytest.mark.parametrize("m", POINTS)
def test_errors_stay_small_over_many_channels(routine: WinogradConvolution, m: int) -> None:
    layer = conv_layer((1, 512, 12, 12), 16)
    feeds = feeds_of(layer)
    wanted = exact(layer, feeds)
    parameters = {**routine.parameter_space(layer)[0], "m": m}
    layouts = routine.layouts(layer, parameters)
    (found,) = run_lowering(routine.lower(layer, parameters), layer, feeds, *layouts)
    assert np.abs(found - wanted).max() < ERRORS[m] / 2 * np.abs(wanted).max()


@pytest.mark.parametrize("m", POINTS)
def test_kernels_of_one_tap_are_encoded_as_powers_of_the_points(m: int) -> None:
    """The transform evaluates the kernel's polynomial at every point, up to one factor per point."""
    transform = kernel_transform(m)
    points = [0.0, *(sign * point for point in POINTS[m] for sign in (1, -1))]
    assert transform.shape == (m + 2, 3)
    for row, point in zip(transform, points, strict=False):
        np.testing.assert_allclose(row / row[0], [1, point, point**2], atol=1e-12)
    np.testing.assert_array_equal(transform[-1], [0, 0, 1])


@pytest.mark.parametrize("outputs", [64, 40])
def test_the_output_may_be_the_residuals_memory(native: Engine, routine: WinogradConvolution, outputs: int) -> None:
    layer = conv_layer((2, 40, 9, 11), outputs, residual=True, activation=SILU)
    feeds = feeds_of(layer)
    wanted = exact(layer, feeds)
    for parameters in variants(routine, layer):
        inputs, (output,) = routine.layouts(layer, parameters)
        lowering = routine.lower(layer, parameters)
        packed = [pack(feed, layout) for feed, layout in zip(feeds, inputs, strict=True)]
        stored = run_in_place(native, lowering, packed)
        found = unpack(stored, output, layer.outputs[0].shape)
        assert np.abs(found - wanted).max() < ERRORS[parameters["m"]] * np.abs(wanted).max()


def run_in_place(native: Engine, lowering: Lowering, packed: list[np.ndarray]) -> np.ndarray:
    """Runs the call with its output in the memory of the residual, the second of `packed`."""
    arrays = [np.ascontiguousarray(a).reshape(-1).view(np.uint8).copy() for a in (*packed, *lowering.constants)]
    (call,) = lowering.calls
    reads = (0, 2, 3 if len(lowering.constants) > 1 else -1, 1)
    kernel = native.find(call.kernel)
    with Program(
        lanes=[Lane(LaneKind.HOST, (0,))],
        regions=[Region(RegionKind.FIXED, array.nbytes, memory=array) for array in arrays],
        buffers=[Buffer(i, 0, array.nbytes) for i, array in enumerate(arrays)],
        steps=[Step(StepKind.KERNEL, kernel, reads, (1,), call.parameters)],
        subgraphs=[SubGraph(0, 1)],
    ) as made:
        made.run()
    return arrays[1].view(np.float32)


def test_only_what_the_kernels_compute_is_supported(routine: WinogradConvolution) -> None:
    shape = (1, 16, 9, 9)
    assert routine.supports(conv_layer(shape, 16))
    assert not routine.supports(conv_layer(shape, 16, kernel=(3, 1)))
    assert not routine.supports(conv_layer(shape, 16, kernel=(5, 5)))
    assert not routine.supports(conv_layer(shape, 16, strides=(1, 2)))
    assert not routine.supports(conv_layer(shape, 16, dilations=(2, 2)))
    assert not routine.supports(conv_layer(shape, 16, groups=16))


@pytest.mark.parametrize(
    ("word", "value", "complaint"),
    [
        (7, 1, "3×3"),
        (8, 5, "3×3"),
        (9, 2, "stride 1"),
        (14, 2, "dilation"),
        (15, 3, "groups"),
        (15, 0, "groups"),
        (16, 0, "out of range"),
        (16, 1 << 21, "out of range"),
        (17, 0, "out of range"),
        (18, 77, "out of range"),
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
    """Each costs tuning time; the best guess comes first."""
    for layer in LAYERS.values():
        space = routine.parameter_space(layer)
        assert 1 <= len(space) <= 2
        assert len({tuple(sorted(p.items())) for p in space}) == len(space)
    wide, narrow = conv_layer((1, 16, 112, 112), 16), conv_layer((1, 512, 7, 7), 16)
    assert routine.parameter_space(wide)[0]["m"] == 6
    assert routine.parameter_space(narrow)[0]["m"] == 2
