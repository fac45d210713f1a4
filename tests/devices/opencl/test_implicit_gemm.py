"""Convolutions as products of work groups, with the traits of a GPU, against ONNX Runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Layout, reorder_layer
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Reorder, Traits
from nnstretch.devices.opencl.routines.gemm_tile import TILES, GemmTile, estimated_time
from nnstretch.devices.opencl.routines.implicit_gemm import ImplicitGemm, PlanarGemm, parameters_of
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.convolution_parity import TOLERANCE, conv_layer
from tests.kits.opencl.opencl_driver import run_lowering
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check_setting, feeds_of, numbers, some

pytestmark = pytest.mark.opencl

GPU = Traits(block=4, on_cpu=False, compute_units=4, registers=16, local_memory=48 << 10, group_items=256)
SMALL = GemmTile(32, 32, 4, 4, 16)
SMALL_TILES = (
    SMALL,
    GemmTile(32, 32, 4, 4, 8),
    GemmTile(32, 32, 4, 4, 32),
    GemmTile(32, 32, 4, 4, 32, slices=4),
    GemmTile(32, 48, 4, 4, 32, slices=2),
    GemmTile(64, 24, 4, 4, 16),
)
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3}


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(processor: OpenCLProcessor, tile: GemmTile) -> None:
    layer = conv_layer((2, 20, 7, 11), 35, residual=True, activation=RELU)
    for splits in (1, 3):
        check_setting(processor, ImplicitGemm(GPU), layer, parameters_of(tile, splits))


@some
@given(
    channels=st.sampled_from([1, 4, 15, 16, 17, 40]),
    outputs=st.sampled_from([1, 3, 32, 33, 70]),
    kernel=st.sampled_from([(1, 1), (3, 3), (2, 5)]),
    stride=st.sampled_from([1, 2]),
    dilation=st.sampled_from([1, 2]),
    pads=st.sampled_from([(0, 0, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1)]),
    size=st.tuples(st.integers(1, 2), st.integers(9, 12), st.integers(9, 19)),
    tile=st.sampled_from(SMALL_TILES),
    splits=st.sampled_from([1, 2, 5]),
    block=st.sampled_from([4, 8, 16]),
    activation=st.sampled_from(ACTIVATIONS),
    residual=st.booleans(),
)
def test_awkward_convolutions(
    processor: OpenCLProcessor,
    channels: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: int,
    dilation: int,
    pads: tuple[int, int, int, int],
    size: tuple[int, int, int],
    tile: GemmTile,
    splits: int,
    block: int,
    activation: Activation,
    residual: bool,
) -> None:
    batch, height, width = size
    layer = conv_layer(
        (batch, channels, height, width),
        outputs,
        kernel,
        strides=(stride, stride),
        pads=pads,
        dilations=(dilation, dilation),
        residual=residual,
        activation=activation,
    )
    traits = Traits(block, False, 4, 16, GPU.local_memory, GPU.group_items)
    for routine in (ImplicitGemm(traits), PlanarGemm(traits)):
        if routine.supports(layer):
            check_setting(processor, routine, layer, parameters_of(tile, splits))


@pytest.mark.parametrize("made", [ImplicitGemm, PlanarGemm])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads"),
    [
        ((3, 3), (1, 2), (1, 1), (1, 1, 1, 1)),
        ((3, 3), (3, 1), (1, 1), (0, 0, 0, 0)),
        ((2, 3), (1, 1), (3, 1), (0, 0, 0, 0)),
        ((3, 2), (1, 1), (1, 2), (2, 0, 1, 1)),
        ((3, 3), (2, 3), (2, 1), (0, 2, 3, 1)),
        ((1, 1), (2, 1), (1, 1), (0, 0, 0, 0)),
        ((1, 1), (1, 3), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_each_axis_has_its_own_geometry(
    processor: OpenCLProcessor,
    made: type[ImplicitGemm],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    """What is read of the other axis is another number."""
    routine, channels = made(GPU), 5 if made is PlanarGemm else 16
    layer = conv_layer((2, channels, 11, 16), 33, kernel, strides=strides, dilations=dilations, pads=pads)
    assert routine.supports(layer)
    for splits in (1, 2):
        check_setting(processor, routine, layer, parameters_of(SMALL, splits))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_few_channels_of_a_plain_input(processor: OpenCLProcessor, dtype: str) -> None:
    routine = PlanarGemm(GPU, dtype)
    for layer in (
        conv_layer((2, 3, 15, 17), 21, (7, 7), strides=(2, 2), pads=(3, 3, 3, 3), activation=RELU),
        conv_layer((1, 8, 9, 9), 40, strides=(2, 2), residual=True),
    ):
        assert routine.supports(layer)
        check_setting(processor, routine, layer, parameters_of(SMALL, 2), tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize("tile", [SMALL, GemmTile(32, 48, 4, 4, 32, slices=2)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_whole_steps_of_pointwise_convolutions(processor: OpenCLProcessor, stride: int, tile: GemmTile) -> None:
    """Their numbers are not checked: neither the last tile's pixels beyond the image nor those of padding are read."""
    routine = ImplicitGemm(GPU)
    for pads, unchecked in (((0, 0, 0, 0), 1), ((0, 0, 1, 1), 0), ((1, 1, 0, 0), 0)):
        layer = conv_layer(
            (2, 64, 5, 9), 35, (1, 1), strides=(stride, stride), pads=pads, residual=True, activation=RELU
        )
        parameters = parameters_of(tile, 2)
        product, _ = routine.lower(layer, parameters).calls
        assert product.launch is not None
        # With a stride of 2, the padding at the bottom and at the right is never reached.
        assert dict(product.launch.defines)["POINTWISE"] == (unchecked or int(stride == 2 and pads[0] == 0))
        check_setting(processor, routine, layer, parameters)


def test_tiles_fit_their_kernel() -> None:
    """What gemm_tile.cl expects of a tile."""
    for tile in (*TILES, *SMALL_TILES):
        across, down = tile.pixels // tile.item_pixels, tile.outputs // tile.item_outputs
        patch = next(width for width in (8, 4, 2) if across % width == 0)
        assert down % (32 // patch) == 0
        assert tile.items % tile.pixels == 0
        assert tile.depth // 4 * tile.pixels % tile.items == 0
        assert tile.depth % tile.slices == 0


def test_a_list_that_does_not_fit_is_left_to_other_routines() -> None:
    layer = conv_layer((1, 3, 64, 64), 32, (31, 31))
    small = Traits(4, False, 4, 16, local_memory=24 << 10, group_items=256)
    assert PlanarGemm(GPU).supports(layer) or not PlanarGemm(small).supports(layer)
    assert ImplicitGemm(small).supports(layer)
    assert not PlanarGemm(small).supports(layer)


def test_settings_fit_the_device() -> None:
    layer = conv_layer((1, 64, 28, 28), 64)
    small = Traits(4, False, 16, 16, local_memory=8 << 10, group_items=64)
    sizes = {(p["outputs"], p["pixels"]) for p in ImplicitGemm(small).parameter_space(layer)}
    assert sizes == {(SMALL.outputs, SMALL.pixels)}
    for refused in (Traits(4, False, 16, 16), Traits(16, True, 2, 32), Traits(4, False, 16, 16, 4 << 10, 64)):
        assert not ImplicitGemm(refused).supports(layer)


def test_estimates_follow_the_work() -> None:
    """More groups or steps take longer, more compute units less; and what no unit waits for costs nothing."""
    tile = TILES[0]
    time = estimated_time(tile, groups=400, steps=20, units=100)
    assert estimated_time(tile, 400, 40, 100) > time
    assert estimated_time(tile, 800, 20, 100) > time
    assert estimated_time(tile, 400, 20, 200) < time
    assert estimated_time(tile, 301, 20, 100) == time


def test_layers_with_few_tiles_are_shared_by_more_groups() -> None:
    """The splits and slices that are measured first: a small image with many channels, and large images with few."""
    gpu = Traits(4, False, 132, 16, local_memory=48 << 10, group_items=1024)
    deep, wide = (
        ImplicitGemm(gpu).parameter_space(conv_layer((batch, channels, size, size), channels))[0]
        for batch, channels, size in ((1, 512, 7), (8, 64, 112))
    )
    assert deep["splits"] * deep["slices"] > 8
    assert wide["splits"] == 1


@pytest.mark.parametrize("target", [4, 8, 16])
@pytest.mark.parametrize("source", [4, 8, 16])
@pytest.mark.parametrize("channels", [1, 12, 16, 37])
def test_reorder_between_blocks(processor: OpenCLProcessor, channels: int, source: int, target: int) -> None:
    """From the layout of one processor to that of another, whose block differs; lanes beyond the channels are finite."""
    reorder = Reorder(Traits(4, False, 4, 16))
    layer: Layer = reorder_layer(TensorType((2, channels, 3, 5)), Layout(source), Layout(target))
    assert reorder.supports(layer) == (4 in (source, target))
    if not reorder.supports(layer):
        return
    (feed,) = feeds_of(layer)
    layouts = (Layout(source),), (Layout(target),)
    (found,) = run_lowering(processor.runtime, reorder.lower(layer, {}), layer, [feed], *layouts)
    assert (found == numbers((2, channels, 3, 5), seed=1)).all()
