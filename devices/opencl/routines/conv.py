"""Convolutions (direct in the blocked layout, direct from a plain tensor with few channels, depthwise) and dense layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Prepared, Source, padded_rows
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, PLAIN, Layout, Lowering, Parameters, has_constant_weights
from nnstretch.devices.opencl.routines.base import DTYPE, OpenCLRoutine, ceil_div, is_image
from nnstretch.graph.layer import Layer

PLANAR_CHANNELS = 8
"""Maximum channels of an input that is read in the plain layout."""
_SETTINGS = 3  # number of tiles to measure
_REACH = 8  # spans of kernel rows are rounded up to multiples of it, so that layers share builds
_PIXELS = (14, 12, 10, 8, 7, 6, 4, 3, 2, 1)
_VECTORS = (2, 1, 4, 3)
_SPLIT_BLOCK = 16  # block of CPUs that may split vectors into halves
_MOST_HALVES = 5  # maximum half vectors of a tile


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
        return (*_tile_macros(parameters), ("STRIDE_W", shape.strides[1]), ("REACH", reach))


class Direct(Convolution):
    """Any convolution, blocked in and out; keeps `pixels` × `vectors` outputs in registers.

    Parameters: `pixels` of a row and `vectors` (output blocks) per tile, and the `length` of vectors of half a block. Half
    vectors are for channel groups that end in the middle of a block, on CPUs that split vectors of 16 floats anyway.
    """

    algorithm = "direct"
    source = "conv.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edges of the output, best first."""
        shape = conv_geometry(layer)
        return (*self._halves(shape), *_tile_space(self.traits.registers, shape, self.traits.block))

    def _halves(self, shape: KernelGeometry) -> Sequence[Parameters]:
        """Tiles of half vectors that consist of whole groups or divide a group."""
        length = self.traits.block // 2
        per_group = shape.group_out // length
        splits = self.traits.on_cpu and self.traits.block == _SPLIT_BLOCK and self.dtype == DTYPE
        if not splits or shape.groups == 1 or shape.group_out % length or per_group % 2 == 0:
            return ()
        vectors = next(v for v in range(min(per_group, _MOST_HALVES), 0, -1) if per_group % v == 0)
        most = max(1, most_pixels(self.traits.registers, vectors))
        pixels = ceil_div(shape.out_width, ceil_div(shape.out_width, most))
        return ({"pixels": pixels, "vectors": vectors, "length": length},)

    def _groups(self, shape: KernelGeometry, lanes: int) -> tuple[int, list[tuple[int, int]]]:
        """Maximum input blocks per group of `lanes` outputs, and first and last input block of every group."""
        b = self.traits.block
        ranges = [(first // b, (last - 1) // b) for first, last in channel_ranges(shape, lanes)]
        return max(last - first + 1 for first, last in ranges), ranges

    def _weights(self, layer: Layer, shape: KernelGeometry, lanes: int) -> Prepared:
        """Weights as [output group][span input blocks][KH][KW][input lane][output lane], with `lanes` outputs per group."""
        span, ranges = self._groups(shape, lanes)
        size = len(ranges) * span * self.traits.block * shape.taps * lanes
        weight = layer.constants[1]
        recipe = ("opencl direct", Source(weight), self.dtype, lanes, span)
        return self.prepared(size, partial(self._reordered, weight, shape, lanes), recipe)

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, lanes: int) -> np.ndarray:
        """The values of `_weights`."""
        b = self.traits.block
        span, ranges = self._groups(shape, lanes)
        source = np.asarray(weight, np.float32)
        result = np.zeros((len(ranges), span * b, *shape.kernel, lanes), np.float32)
        for index, (first, _) in enumerate(ranges):
            begin, end = index * lanes, min((index + 1) * lanes, shape.out_channels)
            for group in range(begin // shape.group_out, (end - 1) // shape.group_out + 1):
                low, high = max(begin, group * shape.group_out), min(end, (group + 1) * shape.group_out)
                at = group * shape.group_in - first * b
                # (outputs, inputs, KH, KW) -> (inputs, KH, KW, outputs)
                result[index, at : at + shape.group_in, :, :, low - begin : high - begin] = np.moveaxis(
                    source[low:high], 0, -1
                )
        blocked = result.reshape(len(ranges), span, b, *shape.kernel, lanes)
        return blocked.transpose(0, 1, 3, 4, 2, 5)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        pixels, lanes = parameters["pixels"], parameters["vectors"] * parameters.get("length", self.traits.block)
        span, ranges = self._groups(shape, lanes)
        items, each = self._tiles(shape, pixels, len(ranges) * shape.batch)
        words = (
            *(shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width),
            *(*shape.kernel, shape.strides[0], *shape.dilations, *shape.pads),
            *(shape.group_in, shape.group_out, span, each, *self.epilogue(layer)),
        )
        call = self.call(
            "conv_direct", self.reads(layer), words, (items, len(ranges), shape.batch), self._macros(shape, parameters)
        )
        bias = self.bias(layer, len(ranges) * lanes)
        return Lowering((call,), (self._weights(layer, shape, lanes), bias))


class Planar(Convolution):
    """Ungrouped convolution of a plain float32 tensor with few channels (a network's first layer); blocked out.

    Parameters: `pixels` of a row and `vectors` (output blocks) per tile.
    """

    algorithm = "planar"
    source = "conv_planar.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.groups == 1 and shape.channels <= PLANAR_CHANNELS

    def _reads_plain(self, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edges of the output, best first."""
        return _tile_space(self.traits.registers, conv_geometry(layer), self.traits.block)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        pixels, vectors = parameters["pixels"], parameters["vectors"]
        lanes = vectors * self.traits.block
        groups = ceil_div(shape.out_channels, lanes)
        packed = (
            padded_rows(layer.constants[1], groups * lanes)
            .reshape(groups, lanes, shape.channels, *shape.kernel)
            .transpose(0, 2, 3, 4, 1)
        )
        items, each = self._tiles(shape, pixels, groups * shape.batch)
        words = (
            *(shape.channels, shape.height, shape.width, self.blocks(shape.out_channels)),
            *(shape.out_height, shape.out_width, *shape.kernel, shape.strides[0], *shape.dilations),
            *(*shape.pads, each, *self.epilogue(layer)),
        )
        call = self.call(
            "conv_planar",
            self.reads(layer),
            words,
            (items, groups, shape.batch),
            self._macros(shape, parameters),
            floats=(INPUT,),
        )
        return Lowering((call,), (self.stored(packed), self.bias(layer, groups * lanes)))


class Depthwise(Convolution):
    """Convolution with one kernel per channel, blocked in and out.

    Parameters: `pixels` of a row per tile.
    """

    algorithm = "depthwise"
    source = "depthwise.cl"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.groups == shape.channels == shape.out_channels

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The tiles that waste least at the edge of the output, best first."""
        width = conv_geometry(layer).out_width

        def cost(pixels: int) -> float:
            # A long tile pays off only if it is the whole row; otherwise its sums waste registers.
            crowded = 1.1 if pixels > 8 and width > pixels else 1.0
            return ceil_div(width, pixels) * (pixels + 1) * crowded

        sizes = [p for p in (7, 8, 14, 4, 2, 1) if p < self.traits.registers and p < width + 4]
        return tuple({"pixels": pixels} for pixels in sorted(sizes, key=cost)[:_SETTINGS])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        b = self.traits.block
        blocks = self.blocks(shape.channels)
        packed = padded_rows(layer.constants[1], blocks * b).reshape(blocks, b, *shape.kernel).transpose(0, 2, 3, 1)
        items, each = self._tiles(shape, parameters["pixels"], blocks * shape.batch)
        words = (
            *(blocks, shape.height, shape.width, shape.out_height, shape.out_width, shape.kernel[0], shape.strides[0]),
            *(shape.dilations[0], *shape.pads, each, *self.epilogue(layer)),
        )
        columns = (shape.kernel[1], shape.strides[1], shape.dilations[1])
        row = zip(("KERNEL_W", "STRIDE_W", "DILATION_W"), columns, strict=True)
        macros = (*_tile_macros(parameters), *row)
        call = self.call("conv_depthwise", self.reads(layer), words, (items, blocks, shape.batch), macros)
        return Lowering((call,), (self.stored(packed), self.bias(layer, blocks * b)))


def most_pixels(registers: int, vectors: int) -> int:
    """Pixels of the widest tile whose sums and weights fit the registers; below 1 if none does."""
    return (registers - 1 - max(vectors, 2)) // vectors


def _tile_macros(parameters: Parameters) -> tuple[tuple[str, int], ...]:
    return tuple((name.upper(), value) for name, value in sorted(parameters.items()))


def _tile_space(registers: int, shape: KernelGeometry, block: int) -> tuple[Parameters, ...]:
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
    return tuple({"pixels": pixels, "vectors": vectors} for pixels, vectors in ranked[:_SETTINGS])


def channel_ranges(shape: KernelGeometry, lanes: int) -> list[tuple[int, int]]:
    """Range [first, end) of input channels for every `lanes` consecutive output channels."""
    ranges = []
    for begin in range(0, shape.out_channels, lanes):
        last = min(begin + lanes, shape.out_channels) - 1
        first_group, last_group = begin // shape.group_out, last // shape.group_out
        ranges.append((first_group * shape.group_in, (last_group + 1) * shape.group_in))
    return ranges


_ROWS = 4  # rows of x that share each load of a weight
_SUMS = 8  # partial sums that hide the latency of a multiply-add
_DENSE_GROUP = 64  # work items that share a sum


class Dense(OpenCLRoutine):
    """x (N, K) times weight (M, K) plus bias and residual, all plain."""

    algorithm = "dense"
    source = "dense.cl"
    ops = ("Dense",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return has_constant_weights(layer) and len(layer.type_of(0).shape) == 2

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `dense` with weights [output block][K][lane]."""
        b = self.traits.block
        group = _DENSE_GROUP if self.traits.works_in_groups else 1
        n, k = layer.type_of(0).shape
        m = layer.outputs[0].shape[1]
        blocks = self.blocks(m)
        rows = min(n, _ROWS)
        packed = self.stored(padded_rows(layer.constants[1], blocks * b).reshape(blocks, b, k).transpose(0, 2, 1))
        bias = self.bias(layer, blocks * b)
        call = self.call(
            "dense",
            self.reads(layer),
            (n, k, m, *self.epilogue(layer)),
            (blocks * group, ceil_div(n, rows)),
            (("ROWS", rows), ("PARTS", _SUMS // rows), ("GROUP", group)),
            local_size=(group, 1) if group > 1 else None,
        )
        return Lowering((call,), (packed, bias))
