"""What the routines for convolutions share: supported layers, geometry, and tiles of pixels and channels."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Layout, Parameters, has_constant_weights
from nnstretch.devices.opencl.routines.base import OpenCLRoutine, ceil_div, is_image
from nnstretch.devices.opencl.routines.images import STORAGE, image_macros
from nnstretch.graph.layer import Layer

PLANAR_CHANNELS = 8
"""Maximum channels of an input that is read in the plain layout."""
MOST_TILES = 3
"""Number of tiles to measure."""
_REACH = 8  # spans of kernel rows are rounded up to multiples of it, so that layers share builds
_PIXELS = (14, 12, 10, 8, 7, 6, 4, 3, 2, 1)
_VECTORS = (2, 1, 4, 3)


def conv_geometry(layer: Layer) -> KernelGeometry:
    """The geometry of a `Conv` layer; the plane of a pointwise one becomes a single row."""
    return KernelGeometry.of(layer).flattened()


class Convolution(OpenCLRoutine):
    """Common parts of the routines for convolutions: constant weights, epilogue, tiles of pixels of one row.

    Subclasses set `in_groups` if the items of a work group share their operands. On devices whose groups should, these
    routines replace the others for ungrouped convolutions.
    """

    ops = ("Conv",)
    stores_half = True
    in_groups = False

    def _supports(self, layer: Layer) -> bool:
        if not has_constant_weights(layer) or not is_image(layer.type_of(0)):
            return False
        shape = conv_geometry(layer)
        wanted_in_groups = self.traits.works_in_groups and shape.groups == 1
        return self.in_groups == wanted_in_groups and self._fits(shape, layer)

    @abstractmethod
    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        """Whether the routine computes a convolution of this geometry."""

    def _reads_plain(self, layer: Layer) -> bool:
        """Whether the input is plain and float32; residual and output are blocked."""
        return False

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]) if self._reads_plain(layer) else inputs, outputs

    def _tiles(self, shape: KernelGeometry, pixels: int, others: int) -> tuple[int, int]:
        """Number of work items along the tiles of a plane, and tiles per work item."""
        tiles = ceil_div(shape.out_width, pixels) * shape.out_height
        each = self.per_item(tiles, others)
        return ceil_div(tiles, each), each

    def _macros(self, shape: KernelGeometry, parameters: Parameters) -> tuple[tuple[str, int], ...]:
        """Macros of the tile and of the row geometry."""
        reach = ceil_div((shape.kernel[1] - 1) * shape.dilations[1] + 1, _REACH) * _REACH
        return (*tile_macros(parameters), ("STRIDE_W", shape.strides[1]), ("REACH", reach))


def most_pixels(registers: int, vectors: int) -> int:
    """Pixels of the widest tile whose sums and weights fit the registers; below 1 if none does."""
    return (registers - 1 - max(vectors, 2)) // vectors


def tile_macros(parameters: Parameters) -> tuple[tuple[str, int], ...]:
    """The macros of a register tile, and those of the storage of its weights."""
    sizes = ((name.upper(), value) for name, value in sorted(parameters.items()) if name != STORAGE)
    return (*sizes, *image_macros(parameters))


def tile_space(registers: int, shape: KernelGeometry, block: int) -> tuple[Parameters, ...]:
    """Tiles of `pixels` × `vectors` for a convolution, cheapest first.

    A step of the inner loop costs one multiply-add per vector of the tile, or one load per pixel and vector if the tile is
    too thin to hide loads; too few independent sums add latency. Every input channel that any output of the tile reads takes
    a step, so a tile across several channel groups wastes work.
    """
    out_blocks = ceil_div(shape.out_channels, block)

    def cost(tile: tuple[int, int]) -> float:
        pixels, vectors = tile
        channels = sum(last - first for first, last in channel_ranges(shape, vectors * block))
        steps = ceil_div(shape.out_width, pixels) * channels
        return steps * max(pixels * vectors + 1.0, pixels + vectors, 8.0)

    tiles = [
        (pixels, vectors)
        for vectors in _VECTORS
        for pixels in _PIXELS
        if pixels <= most_pixels(registers, vectors) and vectors <= out_blocks and pixels < shape.out_width + 4
    ]
    ranked = sorted(tiles or [(1, 1)], key=cost)
    return tuple({"pixels": pixels, "vectors": vectors} for pixels, vectors in ranked[:MOST_TILES])


def channel_ranges(shape: KernelGeometry, lanes: int) -> list[tuple[int, int]]:
    """Range [first, end) of input channels for every `lanes` consecutive output channels."""
    ranges = []
    for begin in range(0, shape.out_channels, lanes):
        last = min(begin + lanes, shape.out_channels) - 1
        first_group, last_group = begin // shape.group_out, last // shape.group_out
        ranges.append((first_group * shape.group_in, (last_group + 1) * shape.group_in))
    return ranges


def block_ranges(shape: KernelGeometry, lanes: int, block: int) -> tuple[int, list[tuple[int, int]]]:
    """Maximum input blocks per group of `lanes` outputs, and first and last input block of every group."""
    ranges = [(first // block, (last - 1) // block) for first, last in channel_ranges(shape, lanes)]
    return max(last - first + 1 for first, last in ranges), ranges


def grouped_weights(weight: np.ndarray, shape: KernelGeometry, lanes: int, block: int) -> np.ndarray:
    """Weights O,C/g,KH,KW as [output group][input lane of `span` blocks][KH][KW][lane], zero outside an output's channel group.

    `block_ranges` gives the span and the groups, of `lanes` outputs each.
    """
    span, ranges = block_ranges(shape, lanes, block)
    result = np.zeros((len(ranges), span * block, *shape.kernel, lanes), weight.dtype)
    for index, (first, _) in enumerate(ranges):
        begin, end = index * lanes, min((index + 1) * lanes, shape.out_channels)
        for group in range(begin // shape.group_out, (end - 1) // shape.group_out + 1):
            low, high = max(begin, group * shape.group_out), min(end, (group + 1) * shape.group_out)
            at = group * shape.group_in - first * block
            # (outputs, inputs, KH, KW) -> (inputs, KH, KW, outputs)
            result[index, at : at + shape.group_in, :, :, low - begin : high - begin] = np.moveaxis(
                weight[low:high], 0, -1
            )
    return result
