"""One step of Strassen's algorithm for 1 × 1 convolutions: where it applies, and its weight transform.

The kernels conv_strassen.c (engine/kernels/convolution) and conv_strassen.cl (opencl/kernels/convolution) read this order of
weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Piece, Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry

_LEAST_HALF = 3  # minimum blocks per half of the input channels: with fewer, the extra sums cost more than they save
_MOST_WASTE = 0.5  # maximum share of unpaired pixels and output vectors of a tile


def is_divisible(geometry: KernelGeometry, block: int) -> bool:
    """Whether a convolution is a product of matrices with enough channels for the algorithm, maybe of some of its pixels."""
    plain = geometry.kernel == (1, 1) and geometry.groups == 1
    last = [(out - 1) * stride for out, stride in zip(geometry.out_size, geometry.strides, strict=True)]
    inside = geometry.pads == (0, 0) and last[0] < geometry.height and last[1] < geometry.width
    return plain and inside and geometry.channels // block // 2 >= _LEAST_HALF


def fitting_tiles(geometry: KernelGeometry, tiles: Iterable[tuple[int, int]], block: int) -> list[tuple[int, int]]:
    """The register tiles (pixels, vectors) that leave few output vectors unpaired and few pixels unused, best first."""
    blocks = -(-geometry.out_channels // block)

    def waste(tile: tuple[int, int]) -> float:
        pixels, vectors = tile
        used = geometry.pixels / (-(-geometry.pixels // (2 * pixels)) * 2 * pixels)
        return blocks % (2 * vectors) / blocks + 1 - used

    return sorted((tile for tile in tiles if waste(tile) < _MOST_WASTE), key=waste)


def strassen_weights(weight: np.ndarray, vectors: int, block: int) -> Prepared:
    """Weights O,C,1,1 as the flat array that the kernels read: pairs of panels, then unpaired blocks."""
    outputs, channels = weight.shape[:2]
    lanes = -(-outputs // block) * block
    half, width = channels // block // 2 * block, vectors * block
    columns = lanes // (2 * width) * width
    source = weight.reshape(outputs, channels)
    size = (7 * half + 3 * (channels - 2 * half)) * width
    pieces = [
        Piece(first // width * size, size, partial(_write_pair, source, (first, columns + first), half))
        for first in range(0, columns, width)
    ]
    begin = columns // width * size
    pieces += [
        Piece(begin + (first - 2 * columns) * channels, channels * block, partial(_write_single, source, first))
        for first in range(2 * columns, lanes, block)
    ]
    recipe = ("strassen", Source(weight), vectors, block)
    return Prepared(begin + (lanes - 2 * columns) * channels, pieces, recipe=recipe)


def _write_pair(source: np.ndarray, firsts: tuple[int, int], half: int, place: np.ndarray) -> None:
    """Writes the factors of two panels of outputs that begin with `firsts`, as matrices of input channels × outputs."""
    channels = source.shape[1]
    width = place.size // (7 * half + 3 * (channels - 2 * half))
    one, two = np.zeros((2, channels, width))
    for panel, first in zip((one, two), firsts, strict=True):
        rows = source[first : first + width]
        panel[:, : len(rows)] = rows.T
    t1, t3 = two[:half] - one[:half], two[half : 2 * half] - two[:half]
    t2 = two[half : 2 * half] - t1
    rest1, rest2 = one[2 * half :], two[2 * half :]
    made = (one[: 2 * half], rest1, t2, t3, one[half : 2 * half] - t2, rest1, t1, two[half : 2 * half], rest2)
    np.concatenate(made, out=place.reshape(-1, width), casting="same_kind")


def _write_single(source: np.ndarray, first: int, place: np.ndarray) -> None:
    """Writes an unpaired block of outputs as input channels × outputs."""
    panel = place.reshape(source.shape[1], -1)
    rows = source[first : first + panel.shape[1]]
    panel[:, : len(rows)] = rows.T
