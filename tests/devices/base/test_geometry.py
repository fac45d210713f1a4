"""The geometry of kernels and pooling windows."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.geometry import KernelGeometry
from tests.kits.kernels.convolution_parity import conv_layer


def test_it_is_read_from_a_convolution() -> None:
    found = KernelGeometry.of(conv_layer((2, 12, 9, 11), 20, kernel=(3, 5), strides=(2, 1), groups=4))
    assert (found.batch, found.channels, found.out_channels, found.groups) == (2, 12, 20, 4)
    assert (found.group_in, found.group_out, found.taps) == (3, 5, 15)
    assert found.size == (9, 11)
    assert found.pixels == found.out_height * found.out_width


@pytest.mark.parametrize(
    ("size", "result", "kernel", "stride", "pads", "ends", "same", "valid"),
    [
        (8, 8, 3, 1, (1, 1), (1, 1), True, False),
        (8, 4, 3, 2, (0, 0), (1, 1), True, False),
        (8, 4, 3, 2, (1, 1), (0, 0), False, False),
        (8, 6, 3, 1, (0, 0), (0, 0), False, True),
        (8, 8, 1, 1, (0, 0), (0, 0), True, True),
    ],
)
def test_padding_of_tflite(
    size: int,
    result: int,
    kernel: int,
    stride: int,
    pads: tuple[int, int],
    ends: tuple[int, int],
    same: bool,
    valid: bool,
) -> None:
    shapes = (1, 4, size, size), (1, 4, result, result)
    geometry = KernelGeometry.between(*shapes, (kernel, kernel), (stride, stride), pads)
    assert (geometry.ends, geometry.is_same, geometry.is_valid) == (ends, same, valid)


def test_pixels_that_a_window_covers() -> None:
    geometry = KernelGeometry.between((1, 1, 5, 5), (1, 1, 3, 3), (3, 3), (2, 2), (1, 1))
    assert geometry.counted(0) == geometry.counted(1) == [2, 3, 2]


def test_pointwise_planes_are_one_row() -> None:
    flat = KernelGeometry.between((2, 3, 4, 5), (2, 6, 4, 5), (1, 1), (1, 1), (0, 0), (3, 2)).flattened()
    assert (flat.size, flat.out_size, flat.dilations) == ((1, 20), (1, 20), (1, 1))
    strided = KernelGeometry.between((2, 3, 4, 5), (2, 6, 2, 3), (1, 1), (2, 2), (0, 0)).flattened()
    assert (strided.size, strided.out_size) == ((4, 5), (2, 3))
    wide = KernelGeometry.between((2, 3, 4, 5), (2, 6, 2, 3), (3, 3), (1, 1), (0, 0))
    assert wide.flattened() == wide
