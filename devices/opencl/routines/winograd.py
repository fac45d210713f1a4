"""Winograd convolution: a childnet of encoding, matrix products and decoding (SoftNeuro, section II)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.devices.algorithms.winograd import Axis, Division, weight_panels
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import (
    PLAIN,
    KernelCall,
    Launch,
    Layout,
    Lowering,
    Operand,
    Parameters,
    has_constant_weights,
)
from nnstretch.devices.opencl.routines.base import (
    DTYPE,
    HALF,
    INPUT,
    OUTPUT,
    SUM_BYTES,
    OpenCLRoutine,
    ceil_div,
    constant,
    is_image,
    padded,
)
from nnstretch.devices.opencl.routines.conv import channel_ranges, conv_geometry
from nnstretch.graph.layer import Layer

# Transforms of the kernels, as (alpha, taps).
_TRANSFORMS = ((4, 2), (4, 3), (6, 2), (6, 3), (6, 4), (8, 3), (8, 4), (8, 5), (8, 6))
_HALF_ALPHA = 6  # maximum alpha for float16 weights; larger transforms lose too much precision
_LARGEST_STRIDE = 2
_MOST_PARTS = 4  # maximum parts that a kernel supports
_LEAST_GROUP = 4  # minimum input channels per group; below it encoding costs more than the products save
_CACHED_WEIGHTS = 1 << 20  # bytes of encoded weights that mostly fit a second-level cache
_ENCODED_BYTES = (
    1 << 19
)  # bytes of a block's encoded input that a second-level cache holds while weights stream through it
_FEW_TILES, _MANY_TILES = 16, 28  # per block, with weights from a second-level cache or from memory
_MEMORY_COST = 11  # cost of loading a vector of weights from memory, in vector multiply-adds
_TRANSFORM_COST = {4: 60, 6: 160, 8: 400}  # alpha -> cost of encoding or decoding a vector of tiles, in the same unit
_PRODUCT_COST = 4  # cost of initialising and storing the sum of a tile at one position, in the same unit
_WORTH_TRYING = 0.9  # maximum cost relative to direct convolution, except for plain 3×3 kernels
_WORTH_MEASURING = 1.25  # maximum estimated cost of a second transform to measure, relative to the best
_DEVICE_TILES = 16  # maximum tiles of a register tile if an item computes one lane
_ITEMS_PER_UNIT = 2  # work items per CPU thread if there is more than one thread

_SCRATCH = Operand("workspace", 0)


class Winograd(OpenCLRoutine):
    """F(m×m, r×r) for square kernels with stride 1 or 2 and no dilation. Blocked out; blocked in except for few channels.

    On a CPU one kernel encodes, multiplies and decodes block after block of tiles; other devices have a kernel per stage.
    Strided convolutions, and kernels larger than the transform, are sums of several convolutions
    (devices/algorithms/winograd.py). An input with few channels is plain; its stride phases become channels of an
    intermediate tensor.

    Parameters: `alpha`, positions of a tile along an axis, m + r - 1; `taps` of the transform, r; `tiles` of a product's
    register tile; `block`, tiles that are encoded before they are multiplied, a multiple of `tiles`.
    """

    algorithm = "winograd"
    source = "winograd.cl"
    ops = ("Conv",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        if not has_constant_weights(layer) or not is_image(layer.type_of(0)):
            return False
        shape = conv_geometry(layer)
        (kernel, kernel_w), (stride, stride_w) = shape.kernel, shape.strides
        square = kernel == kernel_w > 1 and stride == stride_w <= _LARGEST_STRIDE and shape.dilations == (1, 1)
        few = _is_planar(shape) and self.dtype == DTYPE
        if not square or (shape.group_in < _LEAST_GROUP and not few):
            return False
        costs = self._costs(_computed(shape))
        plain = (kernel, stride) == (3, 1) and not few
        return bool(costs) and (plain or min(costs.values()) < _WORTH_TRYING * self._direct_cost(shape))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Blocked, except for a plain input with few channels."""
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]) if _is_planar(conv_geometry(layer)) else inputs, outputs

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The transform with the lowest estimated cost, and the second if it is close."""
        shape = _computed(conv_geometry(layer))
        costs = self._costs(shape)
        best, *others = sorted(costs, key=costs.__getitem__)
        worth = [best, *(other for other in others[:1] if costs[other] < _WORTH_MEASURING * costs[best])]
        return tuple(self._setting(shape, division) for division in worth)

    def _costs(self, shape: KernelGeometry) -> dict[Division, float]:
        """Divisions of the kernel into at most `_MOST_PARTS` parts, by transforms no larger than it, with their costs."""
        longest = ceil_div(shape.kernel[0], shape.strides[0])
        transforms = [
            (alpha, taps)
            for alpha, taps in _TRANSFORMS
            if taps <= longest and (self.dtype != HALF or alpha <= _HALF_ALPHA)
        ]
        divisions = [_division(shape, alpha, taps) for alpha, taps in transforms]
        return {division: self._cost(shape, division) for division in divisions if len(division.parts) <= _MOST_PARTS}

    def _setting(self, shape: KernelGeometry, division: Division) -> Parameters:
        """Few tiles per block if the weights fit the cache, else enough to reuse weights streamed from memory."""
        total = _tiles(shape, division.down.outputs)
        most = self.traits.registers - 4 if self.traits.on_cpu else _DEVICE_TILES
        tiles = ceil_div(total, ceil_div(total, most))
        inputs = self.blocks(shape.channels) * len(division.parts)
        per_tile = division.positions * inputs * self.traits.block * SUM_BYTES
        weights = division.all_parts * shape.group_in * shape.out_channels * SUM_BYTES
        at_once = _FEW_TILES if weights <= _CACHED_WEIGHTS else max(_MANY_TILES, _ENCODED_BYTES // per_tile)
        blocks = ceil_div(total, at_once)
        block = ceil_div(ceil_div(total, blocks), tiles) * tiles
        return {"alpha": division.down.alpha, "taps": division.down.taps, "tiles": tiles, "block": block}

    def _cost(self, shape: KernelGeometry, division: Division) -> float:
        """Estimated time in vector multiply-adds; products are limited by arithmetic or by loading weights."""
        tiles = _tiles(shape, division.down.outputs)
        inputs, outputs = self.blocks(shape.channels) * len(division.parts), self.blocks(shape.out_channels)
        weights = division.all_parts * outputs * shape.group_in
        per_tile = (
            _TRANSFORM_COST[division.down.alpha] * (inputs + outputs) + _PRODUCT_COST * division.positions * outputs
        )
        return max(weights * tiles, weights * _MEMORY_COST) + per_tile * tiles

    def _direct_cost(self, shape: KernelGeometry) -> float:
        """Vector multiply-adds of a direct convolution."""
        pixels, taps = shape.batch * shape.out_height * shape.out_width, shape.kernel[0] * shape.kernel[1]
        return float(pixels * taps * self.blocks(shape.out_channels) * shape.group_in)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `winograd_fused` on a CPU, else one per stage; for few channels, preceded by `winograd_phases`."""
        given = conv_geometry(layer)
        shape, planar = _computed(given), _is_planar(given)
        division = _division(shape, parameters["alpha"], parameters["taps"])
        weight = np.asarray(layer.constants[1], np.float32)
        constants = self._constants(layer, _by_phases(weight, given.strides[0]) if planar else weight, shape, division)
        phases = Operand("workspace", 1 if self.traits.on_cpu else 2)
        make = self._fused if self.traits.on_cpu else self._parts
        calls, workspaces = make(layer, shape, division, parameters, phases if planar else INPUT)
        if planar:
            assert calls[0].launch is not None
            calls = (self._phases(given, shape, phases, calls[0].launch), *calls)
            pixels = shape.batch * shape.height * shape.width
            workspaces = (*workspaces, SUM_BYTES * pixels * self.blocks(shape.channels) * self.traits.block)
        return Lowering(calls, constants, workspaces)

    def _phases(self, given: KernelGeometry, shape: KernelGeometry, phases: Operand, others: Launch) -> KernelCall:
        """The call that converts stride phases of a plain tensor to channels, from the program of the other calls."""
        words = (given.channels, given.height, given.width, shape.height, shape.width, given.strides[0])
        size = (shape.height, self.blocks(shape.channels), shape.batch)
        call = self.call("winograd_phases", (INPUT,), (*words, *given.pads), size, (), (phases,))
        assert call.launch is not None
        return replace(call, launch=replace(call.launch, defines=others.defines))

    def _fused(
        self, layer: Layer, shape: KernelGeometry, division: Division, parameters: Parameters, source: Operand
    ) -> tuple[tuple[KernelCall, ...], tuple[int, ...]]:
        """The call and its scratch size in bytes."""
        grid = _Grid.of(shape, division, parameters, self.traits.block)
        out_blocks = self.blocks(shape.out_channels)
        items, chunks = self._items(grid, out_blocks)
        few, few_begin = _few(shape, division, parameters)
        blocks_per_item, panels_per_item = ceil_div(grid.blocks, items), ceil_div(out_blocks, chunks)
        items, chunks = ceil_div(grid.blocks, blocks_per_item), ceil_div(out_blocks, panels_per_item)
        words = (
            *_words(shape, division, self.traits.block),
            *(shape.group_in, shape.group_out, grid.tiles, grid.per_block),
            *(blocks_per_item, panels_per_item, grid.v_position, grid.m_position, grid.scratch, few_begin),
            *(int(layer.has(3)), *layer.activation.words()),
        )
        reads = (source, constant(0), constant(1), _residual(layer))
        macros = _macros(shape, division, parameters, few)
        call = self.call("winograd_fused", reads, words, (items, chunks), macros, (OUTPUT, _SCRATCH))
        return (call,), (items * chunks * grid.scratch * SUM_BYTES,)

    def _parts(
        self, layer: Layer, shape: KernelGeometry, division: Division, parameters: Parameters, source: Operand
    ) -> tuple[tuple[KernelCall, ...], tuple[int, ...]]:
        """The calls, and the sizes of encoded tiles and of sums in bytes."""
        b, tiles, positions = self.traits.block, parameters["tiles"], division.positions
        inputs, outputs = self.blocks(shape.channels) * len(division.parts), self.blocks(shape.out_channels)
        count = _tiles(shape, division.down.outputs)
        groups = ceil_div(count, tiles)
        padded_tiles, sizes = groups * tiles, _words(shape, division, b)
        macros = _macros(shape, division, parameters, 0)
        encoded, sums = Operand("workspace", 0), Operand("workspace", 1)
        finish = (int(layer.has(3)), *layer.activation.words())
        calls = (
            self.call("winograd_encode", (source,), (*sizes, padded_tiles), (count * b, inputs), macros, (encoded,)),
            self.call(
                "winograd_multiply",
                (encoded, constant(0)),
                (*sizes, shape.group_in, shape.group_out, padded_tiles),
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
        each = positions * padded_tiles * b * SUM_BYTES
        return calls, (inputs * each, outputs * each)

    def _items(self, grid: _Grid, out_blocks: int) -> tuple[int, int]:
        """Work items along blocks of tiles, and along output blocks if there are too few blocks of tiles."""
        units = self.traits.compute_units
        wanted = units if units == 1 else _ITEMS_PER_UNIT * units
        items = min(grid.blocks, wanted)
        return items, min(out_blocks, ceil_div(wanted, items))

    def _constants(
        self, layer: Layer, weight: np.ndarray, shape: KernelGeometry, division: Division
    ) -> tuple[np.ndarray, np.ndarray]:
        b = self.traits.block
        panels = weight_panels(weight, shape.groups, b, b, division, halved=False)
        bias = layer.constants[2] if layer.has(2) else np.zeros(0)
        return self.stored(panels), self.stored(padded(bias, self.blocks(shape.out_channels) * b))


def _is_planar(shape: KernelGeometry) -> bool:
    """Whether the input is plain."""
    return shape.groups == 1 and shape.channels < _LEAST_GROUP


def _computed(shape: KernelGeometry) -> KernelGeometry:
    """The equivalent convolution of phases, without stride and padding, for few channels; else `shape` itself.

    A phase of stride s is the set of pixels with equal row mod s and equal column mod s.
    """
    if not _is_planar(shape):
        return shape
    step = shape.strides[0]
    kernel = ceil_div(shape.kernel[0], step)
    return replace(
        shape,
        channels=shape.channels * step * step,
        height=shape.out_height + kernel - 1,
        width=shape.out_width + kernel - 1,
        kernel=(kernel, kernel),
        strides=(1, 1),
        pads=(0, 0),
    )


def _by_phases(weight: np.ndarray, step: int) -> np.ndarray:
    """Converts weights O,C,K,K with stride `step` to O,step*step*C,ceil(K/step),ceil(K/step) of the phases."""
    outputs, channels, size, _ = weight.shape
    taps = ceil_div(size, step)
    whole = np.zeros((outputs, channels, taps * step, taps * step), np.float32)
    whole[:, :, :size, :size] = weight
    split = whole.reshape(outputs, channels, taps, step, taps, step)
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, step * step * channels, taps, taps)


def _division(shape: KernelGeometry, alpha: int, taps: int) -> Division:
    """Division of the kernel for a transform."""
    axis = Axis(shape.kernel[0], shape.strides[0], alpha, taps)
    return Division(axis, axis)


def _tiles(shape: KernelGeometry, m: int) -> int:
    return shape.batch * ceil_div(shape.out_height, m) * ceil_div(shape.out_width, m)


def _words(shape: KernelGeometry, division: Division, block: int) -> tuple[int, ...]:
    """The members of winograd.cl's `winograd_shape`."""
    sizes = (shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width)
    first, alpha = division.down.first_taps, division.down.alpha
    rows, columns = (_list([first[part[axis]] for part in division.parts]) for axis in (0, 1))
    last = alpha - 1
    whole = [division.parts_at(position) for position in (last * alpha, last, last * alpha + last)]
    ranges = [_list([parts.start, parts.stop]) for parts in whole]
    panel = division.all_parts * _span(shape, block) * block
    return (*sizes, *shape.pads, len(division.parts), rows, columns, *ranges, panel)


def _list(numbers: Sequence[int]) -> int:
    """Packs up to four bytes into an integer."""
    return sum(number << 8 * index for index, number in enumerate(numbers))


def _few(shape: KernelGeometry, division: Division, parameters: Parameters) -> tuple[int, int]:
    """Number of complete tiles (in rows or columns) and index of the first with all rows; 0, 0 if separation does not pay.

    Tiles are ordered as by `place_of` in winograd.cl. Separation pays for small images, whose tiles are multiplied at once.
    """
    m, tiles = division.down.outputs, parameters["tiles"]
    rows, columns = shape.out_height // m, shape.out_width // m
    lacks_both = shape.out_height % m and shape.out_width % m
    if shape.batch > 1 or not lacks_both or (rows + 1) * (columns + 1) != tiles:
        return 0, 0
    few = max(rows * (columns + 1), (rows + 1) * columns)
    return few, min(columns, tiles - few)


def _residual(layer: Layer) -> Operand | None:
    return Operand("input", 3) if layer.has(3) else None


def _macros(shape: KernelGeometry, division: Division, parameters: Parameters, few: int) -> tuple[tuple[str, int], ...]:
    transform = (("M", division.down.outputs), ("TAPS", division.down.taps), ("STRIDE", shape.strides[0]))
    return (*transform, ("TILES", parameters["tiles"]), ("FEW", few))


def _span(shape: KernelGeometry, block: int) -> int:
    """Maximum number of input channels that an output block reads."""
    return max(last - first for first, last in channel_ranges(shape, block))


@dataclass(frozen=True)
class _Grid:
    """Tiles and the layout of their intermediate results.

    Attributes:
        tiles: number of tiles of all images.
        per_block: tiles per block.
        blocks: number of blocks of tiles.
        v_position: stride between positions of encoded tiles, in floats.
        m_position: stride between positions of sums, in floats. Both strides are odd numbers of vectors, so that the cache
            lines of one tile fall into different sets.
        scratch: scratch size of a work item, in floats.
    """

    tiles: int
    per_block: int
    blocks: int
    v_position: int
    m_position: int
    scratch: int

    @classmethod
    def of(cls, shape: KernelGeometry, division: Division, parameters: Parameters, block: int) -> _Grid:
        per_block = parameters["block"]
        tiles = _tiles(shape, division.down.outputs)
        v_position = (ceil_div(shape.channels, block) * len(division.parts) * per_block | 1) * block
        m_position = (per_block | 1) * block
        scratch = division.positions * (v_position + m_position)
        return cls(tiles, per_block, ceil_div(tiles, per_block), v_position, m_position, scratch)
