"""OpenCL's direct, planar and depthwise convolutions against ONNX Runtime, on sizes around the edges of their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines.conv import conv_geometry
from nnstretch.devices.opencl.routines.direct import Direct
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check, check_setting, some

pytestmark = pytest.mark.opencl


def dense_algorithms(layer: Layer) -> set[str]:
    """The routines of convolutions of blocked tensors, as documented."""
    channels, kernel = layer.type_of(0).shape[1], layer.type_of(1).shape[2:]
    groups = layer.attributes["groups"]
    assert isinstance(groups, int)
    plain = (kernel, layer.ints("strides"), layer.ints("dilations")) == ((3, 3), (1, 1), (1, 1))
    return {"direct", "winograd"} if plain and channels // groups >= 4 else {"direct"}


@pytest.mark.slow  # many builds where nothing is cached
@pytest.mark.parametrize(
    "layer",
    [
        conv_layer((1, 32, 9, 14), 32, activation=RELU),
        conv_layer((2, 20, 7, 15), 35, residual=True, activation=RELU),
        conv_layer((1, 16, 5, 29), 24, (1, 1), pads=(0, 0, 0, 0), residual=True),
    ],
    ids=["3x3", "3x3 odd channels, batch 2", "1x1"],
)
def test_direct_convolution_with_every_tile(optimised_processor: OpenCLProcessor, layer: Layer) -> None:
    check(optimised_processor, layer, dense_algorithms(layer))


@st.composite
def awkward_layers(
    draw: st.DrawFn,
    channels: Sequence[int],
    vertical: st.SearchStrategy[tuple[int, int, int]],
    out_channels: Sequence[int] = (),
) -> Layer:
    """Convolutions of sizes around the edges of tiles; depthwise without `out_channels`.

    `vertical` draws height, vertical stride and dilation of the kernel; all are 3 wide.
    """
    kernel_h, stride_h, dilation_h = draw(vertical)
    read = draw(st.sampled_from(channels))
    height = max(draw(st.integers(1, 6)), dilation_h * (kernel_h - 1) + 1)
    return conv_layer(
        (draw(st.integers(1, 3)), read, height, draw(st.integers(13, 30))),
        draw(st.sampled_from(out_channels)) if out_channels else read,
        (kernel_h, 3),
        (stride_h, 1),
        draw(st.tuples(*[st.integers(0, 2)] * 4)),
        (dilation_h, 1),
        1 if out_channels else read,
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from(ACTIVATIONS)),
    )


@given(
    layer=awkward_layers(
        [9, 16, 17, 33],
        st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
        out_channels=[1, 16, 31, 48, 65],
    )
)
@some
def test_direct_convolution_of_awkward_sizes(processor: OpenCLProcessor, layer: Layer) -> None:
    check(processor, layer, dense_algorithms(layer), first_settings=1)


@given(
    layer=awkward_layers(
        [20, 33, 65], st.tuples(st.integers(1, 3), st.integers(1, 2), st.just(1)), out_channels=[16, 35]
    ),
    groups=st.sampled_from([1, 1, 5]),
    blocks=st.integers(1, 3),
)
@some
def test_direct_convolution_in_several_passes(
    processor: OpenCLProcessor, monkeypatch: pytest.MonkeyPatch, layer: Layer, groups: int, blocks: int
) -> None:
    """Sums of earlier passes are read back; residual and activation follow the last one only."""
    if groups > 1:
        layer = conv_layer((1, 40, 9, 14), 45, groups=groups, residual=True, activation=RELU)
    routine = Direct(processor.runtime.traits)
    with monkeypatch.context() as patch:
        patch.setattr(Direct, "_blocks_per_pass", lambda *_: blocks)
        check_setting(processor, routine, layer, {"pixels": 5, "vectors": 2})


def test_weights_beyond_the_cache_are_read_once(processor: OpenCLProcessor) -> None:
    """Several passes where tiles of an item share large weights; one for one tile, for float16, and on other devices."""
    traits = replace(processor.runtime.traits, block=16, compute_units=1)
    shape, other = (conv_geometry(conv_layer((1, 512, 7, 7), 512)), conv_geometry(conv_layer((1, 128, 7, 7), 512)))
    passes = partial(Direct(traits)._blocks_per_pass, lanes=64)
    assert passes(shape, 32, tiles=7) == 5
    assert passes(shape, 32, tiles=1) == 32
    assert passes(other, 8, tiles=7) == 8
    assert Direct(traits, "float16")._blocks_per_pass(shape, 32, 64, 7) == 32
    assert Direct(replace(traits, on_cpu=False))._blocks_per_pass(shape, 32, 64, 7) == 32


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads"),
    [
        ((3, 3), (2, 2), (1, 1), (0, 0, 1, 1)),
        ((5, 5), (1, 2), (1, 1), (2, 1, 2, 3)),
        ((3, 3), (1, 1), (2, 3), (2, 3, 2, 3)),
        ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        ((1, 1), (1, 1), (1, 1), (1, 0, 0, 2)),
        ((1, 7), (1, 1), (1, 1), (0, 3, 0, 3)),
        ((7, 1), (1, 1), (1, 1), (3, 0, 3, 0)),
    ],
)
def test_direct_convolution_kernels_strides_dilations(
    processor: OpenCLProcessor,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    layer = conv_layer((2, 20, 11, 19), 33, kernel, strides, pads, dilations, residual=True, activation=RELU)
    check(processor, layer, dense_algorithms(layer), first_settings=1)


@pytest.mark.parametrize(
    ("channels", "out_channels", "groups"),
    [(72, 72, 3), (48, 96, 3), (64, 64, 2), (12, 20, 4), (10, 30, 5), (34, 6, 2), (8, 24, 8), (40, 8, 8)],
)
def test_grouped_convolution(processor: OpenCLProcessor, channels: int, out_channels: int, groups: int) -> None:
    layer = conv_layer((2, channels, 5, 15), out_channels, groups=groups, activation=RELU)
    check(processor, layer, dense_algorithms(layer), first_settings=2)


@pytest.mark.parametrize(("channels", "groups"), [(72, 3), (48, 2), (80, 2), (16, 2), (112, 2)])
@pytest.mark.parametrize(("stride", "activation"), [(2, ACTIVATIONS[4]), (1, ACTIVATIONS[2])])
def test_groups_that_end_within_a_block_by_half_vectors(
    processor: OpenCLProcessor, channels: int, groups: int, stride: int, activation: Activation
) -> None:
    strides = (stride, stride)
    layer = conv_layer(
        (2, channels, 7, 17), channels, strides=strides, groups=groups, residual=True, activation=activation
    )
    routine = Direct(replace(processor.runtime.traits, block=16, registers=32))
    halves = [parameters for parameters in routine.parameter_space(layer) if "length" in parameters]
    assert [parameters["length"] for parameters in halves] == [8]
    check_setting(processor, routine, layer, halves[0])


@pytest.mark.parametrize("channels", [1, 3, 4, 8])
@pytest.mark.parametrize("out_channels", [16, 33])
def test_planar_convolution(processor: OpenCLProcessor, channels: int, out_channels: int) -> None:
    layer = conv_layer((2, channels, 12, 37), out_channels, (7, 7), (2, 2), (3, 2, 3, 4), residual=True)
    check(processor, layer, {"planar", "direct"}, first_settings=1)


def test_planar_convolution_with_gaps_between_taps(processor: OpenCLProcessor) -> None:
    layer = conv_layer((2, 3, 12, 19), 20, (4, 3), (1, 1), (3, 4, 2, 1), (2, 3), residual=True)
    check(processor, layer, {"planar", "direct"}, first_settings=1)


@pytest.mark.slow  # many builds where nothing is cached
def test_planar_convolution_with_every_tile(optimised_processor: OpenCLProcessor) -> None:
    check(optimised_processor, conv_layer((1, 3, 30, 30), 40, activation=RELU), {"planar", "direct"})


@given(layer=awkward_layers([9, 16, 17, 40], st.sampled_from([(3, 1, 1), (3, 2, 1), (2, 1, 2), (5, 1, 1)])))
@some
def test_depthwise_convolution(processor: OpenCLProcessor, layer: Layer) -> None:
    check(processor, layer, {"depthwise", "direct"}, first_settings=1)


@pytest.mark.slow  # many builds where nothing is cached
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (5, 1, 1), (3, 1, 2)])
def test_depthwise_convolution_with_every_tile(
    optimised_processor: OpenCLProcessor, kernel: int, stride: int, dilation: int
) -> None:
    reach = dilation * (kernel - 1)
    pads = (reach // 2, reach // 2, reach - reach // 2, reach - reach // 2)
    layer = conv_layer((2, 24, 9, 23), 24, (kernel,) * 2, (stride,) * 2, pads, (dilation,) * 2, 24)
    routine = next(r for r in optimised_processor.routines if r.descriptor.algorithm == "depthwise")
    assert len(routine.parameter_space(layer)) > 2
    check(optimised_processor, layer, {"depthwise", "direct"})
