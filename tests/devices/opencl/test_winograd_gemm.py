"""Winograd convolutions as products of work groups, with the traits of a GPU, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines.gemm_tile import TILES, GemmTile
from nnstretch.devices.opencl.routines.winograd_gemm import WinogradGemm
from nnstretch.graph.activation import Activation
from tests.devices.opencl.test_implicit_gemm import GPU, SMALL
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check_setting, some

pytestmark = pytest.mark.opencl


@some
@given(
    n=st.integers(1, 3),
    channels=st.sampled_from([16, 17, 40]),
    outputs=st.sampled_from([16, 33, 70]),
    plane=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    block=st.sampled_from([4, 8, 16]),
    residual=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    alpha=st.sampled_from([4, 6]),
)
def test_awkward_convolutions(
    processor: OpenCLProcessor,
    n: int,
    channels: int,
    outputs: int,
    plane: tuple[int, int],
    pads: tuple[int, int, int, int],
    block: int,
    residual: bool,
    activation: Activation,
    alpha: int,
) -> None:
    height, width = (max(size, 3) for size in plane)
    layer = conv_layer((n, channels, height, width), outputs, pads=pads, residual=residual, activation=activation)
    routine = WinogradGemm(replace(GPU, block=block))
    assert routine.supports(layer)
    check_setting(processor, routine, layer, {"alpha": alpha, **asdict(SMALL)})


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(processor: OpenCLProcessor, tile: GemmTile) -> None:
    layer = conv_layer((2, 20, 7, 11), 35, residual=True, activation=RELU)
    check_setting(processor, WinogradGemm(GPU), layer, {"alpha": 6, **asdict(tile)})


@pytest.mark.parametrize(("size", "alpha"), [(28, 6), (2, 4)])
def test_the_transform_that_fits_the_image_is_measured_first(size: int, alpha: int) -> None:
    settings = WinogradGemm(GPU).parameter_space(conv_layer((8, 128, size, size), 128))
    assert settings[0]["alpha"] == alpha
    assert len(settings) <= 4


def test_other_convolutions_are_left_to_other_routines() -> None:
    routine = WinogradGemm(GPU)
    for layer in (
        conv_layer((1, 32, 9, 9), 32, strides=(2, 2)),
        conv_layer((1, 32, 9, 9), 32, (1, 1), pads=(0, 0, 0, 0)),
        conv_layer((1, 32, 9, 9), 32, pads=(2, 2, 2, 2), dilations=(2, 2)),
        conv_layer((1, 32, 9, 9), 32, groups=2),
        conv_layer((1, 3, 9, 9), 32),
    ):
        assert not routine.supports(layer)
