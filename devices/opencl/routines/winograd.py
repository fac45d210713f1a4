"""Winograd convolution: a childnet of encoding, products of matrices, and decoding (SoftNeuro, section II)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.opencl.routines.base import (
    HALF,
    INPUT,
    OUTPUT,
    OpenCLRoutine,
    ceil_div,
    constant,
    is_image,
    padded,
)
from nnstretch.devices.opencl.routines.conv import ConvShape, channel_ranges, conv_shape
from nnstretch.devices.routine import KernelCall, Lowering, Operand, Parameters
from nnstretch.devices.winograd import Axis, Division, weight_panels
from nnstretch.graph.layer import Layer

_WIDTHS = (2, 4, 6)  # of output tiles, m
_HALF_WIDTHS = (2, 4)  # those whose encoded weights lose little as halves
_TAPS = 3
_LEAST_GROUP = 4  # input channels per group below which encoding costs more than the products save
_CACHED_WEIGHTS = 1 << 20  # bytes of encoded weights that a second-level cache holds for the most part
_ENCODED_BYTES = 1 << 19  # encoded input of a block that a second-level cache holds while weights pass through it
_FEW_TILES, _MANY_TILES = 16, 28  # per block, where weights come from a second-level cache, and from memory
_MEMORY_COST = 11  # multiply-adds of vectors in the time in which a vector of weights comes from memory
_TRANSFORM_COST = {2: 60, 4: 160, 6: 400}  # the same for encoding, or decoding, a vector of tiles
_WORTH_MEASURING = 1.25  # times the best guess up to which another width of tiles is measured
_DEVICE_TILES = 16  # at most of a register tile where an item computes one lane
_ITEMS_PER_UNIT = 2  # work items per CPU thread where there is more than one

_SCRATCH = Operand("workspace", 0)


class Winograd(OpenCLRoutine):
    """F(m×m, 3×3) for 3×3 convolutions with stride 1 and no dilation, blocked in and out.

    On a CPU one kernel encodes, multiplies and decodes a block of tiles after the other; elsewhere each part is a kernel.

    Parameters: `m`, the width of the output tile; `tiles` of a product's register tile; `block`, tiles that are encoded before
    they are multiplied, a multiple of `tiles`.
    """

    algorithm = "winograd"
    source = "winograd.cl"
    ops = ("Conv",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        constants = all(index in layer.constants for index in (1, 2) if layer.has(index))
        if not constants or not is_image(layer.type_of(0)):
            return False
        shape = conv_shape(layer)
        plain = (shape.kernel, shape.strides, shape.dilations) == ((3, 3), (1, 1), (1, 1))
        return plain and shape.group_in >= _LEAST_GROUP

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The width of tiles that is guessed to be best, and the second if it is close."""
        shape = conv_shape(layer)
        widths = _HALF_WIDTHS if self.dtype == HALF else _WIDTHS
        costs = {m: self._cost(shape, m) for m in widths}
        best, second, *_ = sorted(costs, key=costs.__getitem__)
        worth = (best, second) if costs[second] < _WORTH_MEASURING * costs[best] else (best,)
        return tuple(self._setting(shape, m) for m in worth)

    def _setting(self, shape: ConvShape, m: int) -> Parameters:
        """Few tiles per block where the weights stay in the cache, else as many as use them well while they pass."""
        total = _tiles(shape, m)
        most = self.traits.registers - 4 if self.traits.on_cpu else _DEVICE_TILES
        tiles = ceil_div(total, ceil_div(total, most))
        per_tile = (m + 2) ** 2 * self.blocks(shape.channels) * self.traits.block * 4
        weights = (m + 2) ** 2 * shape.group_in * shape.out_channels * 4
        at_once = _FEW_TILES if weights <= _CACHED_WEIGHTS else max(_MANY_TILES, _ENCODED_BYTES // per_tile)
        blocks = ceil_div(total, at_once)
        return {"m": m, "tiles": tiles, "block": ceil_div(ceil_div(total, blocks), tiles) * tiles}

    def _cost(self, shape: ConvShape, m: int) -> float:
        """A guess at the time of F(m×m, 3×3), in multiply-adds of vectors; products wait for weights from memory."""
        tiles = _tiles(shape, m)
        inputs, outputs = self.blocks(shape.channels), self.blocks(shape.out_channels)
        weights = (m + 2) ** 2 * outputs * shape.group_in
        return max(weights * tiles, weights * _MEMORY_COST) + _TRANSFORM_COST[m] * tiles * (inputs + outputs)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `winograd_fused` on a CPU, else a call for each part."""
        shape = conv_shape(layer)
        constants = self._constants(layer, shape, parameters["m"])
        if self.traits.on_cpu:
            call, scratch = self._fused(layer, shape, parameters)
            return Lowering((call,), constants, (scratch,))
        calls, workspaces = self._parts(layer, shape, parameters)
        return Lowering(calls, constants, workspaces)

    def _fused(self, layer: Layer, shape: ConvShape, parameters: Parameters) -> tuple[KernelCall, int]:
        """The call, and bytes of its scratch."""
        grid = _Grid.of(shape, parameters, self.traits.block)
        out_blocks = self.blocks(shape.out_channels)
        items, chunks = self._items(grid, out_blocks)
        few, few_begin = _few(shape, parameters)
        blocks_per_item, panels_per_item = ceil_div(grid.blocks, items), ceil_div(out_blocks, chunks)
        items, chunks = ceil_div(grid.blocks, blocks_per_item), ceil_div(out_blocks, panels_per_item)
        words = (
            *_words(shape),
            *(shape.group_in, shape.group_out, grid.span, grid.tiles, grid.per_block),
            *(blocks_per_item, panels_per_item, grid.v_position, grid.m_position, grid.scratch, few_begin),
            *(int(layer.has(3)), *layer.activation.words()),
        )
        reads = (INPUT, constant(0), constant(1), _residual(layer))
        macros = _macros(parameters, few)
        call = self.call("winograd_fused", reads, words, (items, chunks), macros, (OUTPUT, _SCRATCH))
        return call, items * chunks * grid.scratch * 4

    def _parts(
        self, layer: Layer, shape: ConvShape, parameters: Parameters
    ) -> tuple[tuple[KernelCall, ...], tuple[int, int]]:
        """The calls, and bytes of encoded tiles and of sums."""
        b, tiles, positions = self.traits.block, parameters["tiles"], (parameters["m"] + 2) ** 2
        inputs, outputs = self.blocks(shape.channels), self.blocks(shape.out_channels)
        count = _tiles(shape, parameters["m"])
        groups = ceil_div(count, tiles)
        padded_tiles, sizes, macros = groups * tiles, _words(shape), _macros(parameters, 0)
        groups_of = (shape.group_in, shape.group_out, _span(shape, b))
        encoded, sums = Operand("workspace", 0), Operand("workspace", 1)
        finish = (int(layer.has(3)), *layer.activation.words())
        calls = (
            self.call("winograd_encode", (INPUT,), (*sizes, padded_tiles), (count * b, inputs), macros, (encoded,)),
            self.call(
                "winograd_multiply",
                (encoded, constant(0)),
                (*sizes, *groups_of, padded_tiles),
                (groups * b, outputs, positions),
                macros,
                (sums,),
            ),
            self.call(
                "winograd_decode",
                (sums, constant(1), _residual(layer)),
                (*sizes, padded_tiles, *finish),
                (count * b, outputs),
                macros,
            ),
        )
        each = positions * padded_tiles * b * 4
        return calls, (inputs * each, outputs * each)

    def _items(self, grid: _Grid, out_blocks: int) -> tuple[int, int]:
        """Work items along blocks of tiles, and along output blocks where there are too few of those."""
        units = self.traits.compute_units
        wanted = units if units == 1 else _ITEMS_PER_UNIT * units
        items = min(grid.blocks, wanted)
        return items, min(out_blocks, ceil_div(wanted, items))

    def _constants(self, layer: Layer, shape: ConvShape, m: int) -> tuple[np.ndarray, np.ndarray]:
        b = self.traits.block
        weight = np.asarray(layer.constants[1], np.float32)
        axis = Axis(_TAPS, 1, m + _TAPS - 1, _TAPS)
        panels = weight_panels(weight, shape.groups, b, b, Division(axis, axis), halved=False)
        bias = layer.constants[2] if layer.has(2) else np.zeros(0)
        return self.stored(panels), self.stored(padded(bias, self.blocks(shape.out_channels) * b))


def _tiles(shape: ConvShape, m: int) -> int:
    return shape.images * ceil_div(shape.out_height, m) * ceil_div(shape.out_width, m)


def _words(shape: ConvShape) -> tuple[int, ...]:
    sizes = (shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width)
    return (*sizes, shape.pad_top, shape.pad_left)


def _few(shape: ConvShape, parameters: Parameters) -> tuple[int, int]:
    """Tiles with all their rows, or columns, and the first of the former; 0 if it does not pay to tell them apart.

    The order of tiles is that of `place_of` in winograd.cl. A small image pays whose tiles are multiplied all at once.
    """
    m, tiles = parameters["m"], parameters["tiles"]
    rows, columns = shape.out_height // m, shape.out_width // m
    lacks_both = shape.out_height % m and shape.out_width % m
    if shape.images > 1 or not lacks_both or (rows + 1) * (columns + 1) != tiles:
        return 0, 0
    few = max(rows * (columns + 1), (rows + 1) * columns)
    return few, min(columns, tiles - few)


def _residual(layer: Layer) -> Operand | None:
    return Operand("input", 3) if layer.has(3) else None


def _macros(parameters: Parameters, few: int) -> tuple[tuple[str, int], ...]:
    return ("M", parameters["m"]), ("TILES", parameters["tiles"]), ("FEW", few)


def _span(shape: ConvShape, block: int) -> int:
    """Input channels that the hungriest output block reads."""
    return max(last - first for first, last in channel_ranges(shape, block))


@dataclass(frozen=True)
class _Grid:
    """Tiles and where they lie between the parts, in floats.

    Attributes:
        tiles: of all images.
        per_block: tiles of a block.
        blocks: blocks of tiles.
        span: input channels that the hungriest output block reads.
        v_position, m_position: from one position of encoded tiles, or of sums, to the next; odd numbers of vectors, so that
            the lines of one tile do not compete for one set of a cache.
        scratch: what one work item needs.
    """

    tiles: int
    per_block: int
    blocks: int
    span: int
    v_position: int
    m_position: int
    scratch: int

    @classmethod
    def of(cls, shape: ConvShape, parameters: Parameters, block: int) -> _Grid:
        m, per_block = parameters["m"], parameters["block"]
        tiles = _tiles(shape, m)
        v_position = (ceil_div(shape.channels, block) * per_block | 1) * block
        m_position = (per_block | 1) * block
        scratch = (m + 2) ** 2 * (v_position + m_position)
        return cls(tiles, per_block, ceil_div(tiles, per_block), _span(shape, block), v_position, m_position, scratch)
