"""OpenCL's Winograd convolutions against ONNX Runtime: all transforms, divided kernels, tiles that lack rows or columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Layout, Parameters
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines.winograd import Winograd, WinogradOfInt16Weights
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import conv_layer, kept_by_int16
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check_setting, some

pytestmark = pytest.mark.opencl


SETTINGS = st.sampled_from([(2, 7, 2), (4, 7, 1), (4, 3, 2), (6, 3, 2)])
"""Outputs of a tile along an axis, tiles of a register tile, and register tiles that are encoded before the products."""


def parameters_of(setting: tuple[int, int, int]) -> Parameters:
    m, tiles, blocks = setting
    return {"alpha": m + 2, "taps": 3, "tiles": tiles, "block": tiles * blocks}


@st.composite
def awkward_layers(draw: st.DrawFn) -> Layer:
    """3×3 convolutions of images that end within tiles and blocks."""
    height, width = draw(st.tuples(*[st.integers(1, 13)] * 2))
    return conv_layer(
        (draw(st.integers(1, 3)), draw(st.sampled_from([4, 9, 16, 20, 33])), max(height, 3), max(width, 3)),
        draw(st.sampled_from([1, 16, 31, 48])),
        pads=draw(st.tuples(*[st.integers(0, 2)] * 4)),
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from(ACTIVATIONS)),
    )


@given(layer=awkward_layers(), setting=SETTINGS)
@some
def test_winograd_of_awkward_sizes(
    optimised_processor: OpenCLProcessor, layer: Layer, setting: tuple[int, int, int]
) -> None:
    routine = Winograd(optimised_processor.runtime.traits)
    check_setting(optimised_processor, routine, layer, parameters_of(setting))


@pytest.mark.parametrize(
    ("kernel", "stride", "transform"),
    [
        (2, 1, (6, 2)),
        (2, 1, (4, 2)),
        (3, 1, (4, 2)),
        (3, 2, (4, 2)),
        (3, 2, (6, 2)),
        (4, 2, (6, 2)),
        (4, 1, (6, 4)),
        (5, 1, (6, 3)),
        (5, 1, (8, 5)),
        (5, 2, (8, 3)),
        (6, 1, (8, 6)),
        (7, 2, (8, 4)),
        (7, 1, (8, 4)),
    ],
)
@pytest.mark.parametrize("on_cpu", [True, False])
def test_winograd_of_kernels_that_are_divided(
    processor: OpenCLProcessor, kernel: int, stride: int, transform: tuple[int, int], on_cpu: bool
) -> None:
    pads = (kernel // 2, (kernel - 1) // 2, (kernel - 1) // 2, kernel // 2)
    layer = conv_layer(
        (2, 36, 17, 13), 50, (kernel,) * 2, (stride,) * 2, pads, groups=2, residual=True, activation=ACTIVATIONS[2]
    )
    alpha, taps = transform
    routine = Winograd(processor.runtime.traits if on_cpu else replace(processor.runtime.traits, on_cpu=False))
    check_setting(processor, routine, layer, {"alpha": alpha, "taps": taps, "tiles": 5, "block": 10})


@pytest.mark.parametrize(
    ("kernel", "stride", "transform"), [(7, 2, (8, 4)), (3, 1, (6, 3)), (3, 2, (6, 2)), (5, 1, (8, 5))]
)
@pytest.mark.parametrize(("channels", "pads"), [(3, (3, 2, 1, 4)), (1, (0, 0, 0, 0))])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_winograd_of_plain_tensors_with_few_channels(
    processor: OpenCLProcessor,
    kernel: int,
    stride: int,
    transform: tuple[int, int],
    channels: int,
    pads: tuple[int, int, int, int],
    on_cpu: bool,
) -> None:
    layer = conv_layer((2, channels, 17, 22), 20, (kernel,) * 2, (stride,) * 2, pads, residual=True, activation=RELU)
    alpha, taps = transform
    routine = Winograd(replace(processor.runtime.traits, on_cpu=on_cpu))
    check_setting(processor, routine, layer, {"alpha": alpha, "taps": taps, "tiles": 5, "block": 10})


def test_winograd_is_supported_where_it_pays(processor: OpenCLProcessor) -> None:
    mine = Winograd(processor.runtime.traits)
    assert mine.supports(conv_layer((1, 128, 56, 56), 128, strides=(2, 2)))
    assert mine.supports(conv_layer((1, 64, 28, 28), 64, (5, 5), pads=(2, 2, 2, 2)))
    first = conv_layer((1, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3, 3, 3))
    assert mine.supports(first)
    assert mine.layouts(first, mine.parameter_space(first)[0])[0] == (Layout(0),)
    assert not Winograd(processor.runtime.traits, "float16").supports(first)
    assert not mine.supports(conv_layer((1, 512, 7, 7), 512, strides=(2, 2)))  # its weights come from memory
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, strides=(2, 1)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, (3, 1), pads=(1, 0, 1, 0)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, pads=(2, 2, 2, 2), dilations=(2, 2)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, groups=64))


@pytest.mark.parametrize("size", [3, 5, 7, 9, 14])
@pytest.mark.parametrize("m", [2, 4, 6])
def test_winograd_of_an_image_that_is_one_register_tile(processor: OpenCLProcessor, m: int, size: int) -> None:
    layer = conv_layer((1, 20, size, size + 1), 20, residual=True, activation=RELU)
    tiles = -(-size // m) * -(-(size + 1) // m)
    parameters = {"alpha": m + 2, "taps": 3, "tiles": tiles, "block": tiles}
    check_setting(processor, Winograd(processor.runtime.traits), layer, parameters)


@pytest.mark.parametrize("units", [1, 2, 5])
def test_winograd_shared_by_several_work_items(processor: OpenCLProcessor, units: int) -> None:
    layer = conv_layer((1, 24, 13, 11), 90, groups=2, residual=True, activation=ACTIVATIONS[2])
    routine = Winograd(replace(processor.runtime.traits, compute_units=units))
    check_setting(processor, routine, layer, {"alpha": 6, "taps": 3, "tiles": 6, "block": 6})


@given(
    layer=awkward_layers(),
    setting=SETTINGS.filter(lambda setting: setting[0] < 6) | st.just((4, 4, 1)),
    block=st.sampled_from([4, 8, 16]),
    units=st.sampled_from([1, 3]),
)
@some
def test_winograd_of_int16_weights(
    processor: OpenCLProcessor, layer: Layer, setting: tuple[int, int, int], block: int, units: int
) -> None:
    """Also with blocks of fewer channels than share a scale, and with an image that is one register tile."""
    routine = WinogradOfInt16Weights(replace(processor.runtime.traits, block=block, compute_units=units))
    check_setting(processor, routine, kept_by_int16(layer), parameters_of(setting))


def test_int16_weights_are_half_the_bytes_and_for_few_tiles_on_cpus(processor: OpenCLProcessor) -> None:
    traits, layer = processor.runtime.traits, conv_layer((1, 256, 14, 14), 256)
    mine, floats = WinogradOfInt16Weights(traits), Winograd(traits)
    assert mine.supports(layer)
    (parameters, *_) = mine.parameter_space(layer)
    assert mine.lower(layer, parameters).weight_bytes < 0.57 * floats.lower(layer, parameters).weight_bytes
    assert not mine.supports(conv_layer((1, 64, 56, 56), 64))
    assert not mine.supports(conv_layer((1, 256, 14, 14), 256, groups=2))
    assert not WinogradOfInt16Weights(replace(traits, on_cpu=False)).supports(layer)
