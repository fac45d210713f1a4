"""Winograd convolution: a childnet of encoding, matrix products and decoding (SoftNeuro, section II)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nnstretch.devices.algorithms.int16_weights import fit_int16
from nnstretch.devices.algorithms.winograd import (
    LARGEST_STRIDE,
    LEAST_GROUP,
    Division,
    division_of,
    estimated_cost,
    int16_elements,
    is_worth_trying,
    prepared_int16_panels,
    prepared_panels,
    reads_plain,
    suits_int16,
    tiles_at_once,
    tiles_of,
    worth_measuring,
)
from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, OUTPUT, KernelCall, Launch, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import DTYPE, HALF, SUM_BYTES, ceil_div, constant
from nnstretch.devices.opencl.routines.conv import Convolution, channel_ranges, conv_geometry
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand, transform_registers
from nnstretch.graph.layer import Layer

# Transforms of the kernels, as (alpha, taps).
_TRANSFORMS = ((4, 2), (4, 3), (6, 2), (6, 3), (6, 4), (8, 3), (8, 4), (8, 5), (8, 6))
_HALF_ALPHA = 6  # maximum alpha for float16 weights; larger transforms lose too much precision
_MOST_PARTS = 4  # maximum parts that a kernel supports
_DEVICE_TILES = 16  # maximum tiles of a register tile if an item computes one lane
_ITEMS_PER_UNIT = 2  # work items per CPU thread if there is more than one thread
_SCRATCH = Operand("workspace", 0)


class Winograd(Convolution):
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
    weight_type: str | None = None  # of encoded weights, if it is not that of tensors

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        (kernel, kernel_w), (stride, stride_w) = shape.kernel, shape.strides
        square = kernel == kernel_w > 1 and stride == stride_w <= LARGEST_STRIDE and shape.dilations == (1, 1)
        few = reads_plain(shape) and self.dtype == DTYPE
        if not square or (shape.group_in < LEAST_GROUP and not few):
            return False
        costs = self._costs(_computed(shape))
        plain = (kernel, stride) == (3, 1) and not few
        return bool(costs) and (plain or is_worth_trying(shape, costs.values(), self.traits.block))

    def _reads_plain(self, layer: Layer) -> bool:
        return reads_plain(conv_geometry(layer))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The transform with the lowest estimated cost, and the second if it is close."""
        shape = _computed(conv_geometry(layer))
        return tuple(self._setting(shape, division) for division in worth_measuring(self._costs(shape)))

    def _costs(self, shape: KernelGeometry) -> dict[Division, float]:
        """Divisions of the kernel into at most `_MOST_PARTS` parts, by transforms no larger than it, with their costs."""
        longest = ceil_div(shape.kernel[0], shape.strides[0])
        transforms = [
            (alpha, taps)
            for alpha, taps in _TRANSFORMS
            if taps <= longest and (self.dtype != HALF or alpha <= _HALF_ALPHA)
        ]
        divisions = [division_of(shape, alpha, taps) for alpha, taps in transforms]
        b = self.traits.block
        return {
            one: estimated_cost(
                shape, one, b, self.blocks(shape.channels) * len(one.parts), stored=self.weight_type or DTYPE
            )
            for one in divisions
            if self._takes(shape, one) and self._demand(one.down.alpha).fits(self.traits)
        }

    def _takes(self, shape: KernelGeometry, division: Division) -> bool:
        """Whether the routine computes a division of the kernel."""
        return len(division.parts) <= _MOST_PARTS

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return self._demand(parameters["alpha"], parameters["tiles"])

    @staticmethod
    def _demand(alpha: int, tiles: int = _DEVICE_TILES) -> Demand:
        """What an item that computes one lane demands: for a transform, or for a product's sums and their operands."""
        return Demand(max(transform_registers(alpha), 2 * tiles + ADDRESS_REGISTERS))

    def _setting(self, shape: KernelGeometry, division: Division) -> Parameters:
        """Register tiles of equal sizes, and whole register tiles per block."""
        total = tiles_of(shape, division)
        most = self.traits.registers - 4 if self.traits.on_cpu else _DEVICE_TILES
        tiles = ceil_div(total, ceil_div(total, most))
        encoded = self.blocks(shape.channels) * len(division.parts) * self.traits.block
        blocks = ceil_div(total, tiles_at_once(shape, division, encoded))
        block = ceil_div(ceil_div(total, blocks), tiles) * tiles
        return {"alpha": division.down.alpha, "taps": division.down.taps, "tiles": tiles, "block": block}

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `winograd_fused` on a CPU, else one per stage; for few channels, preceded by `winograd_phases`."""
        given = conv_geometry(layer)
        shape, planar = _computed(given), reads_plain(given)
        division = division_of(shape, parameters["alpha"], parameters["taps"])
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
        """The call and its scratch size in bytes.

        Encoded tiles and sums have strides of odd numbers of vectors between positions, so that the cache lines of one tile
        fall into different sets.
        """
        b, tiles, per_block = self.traits.block, tiles_of(shape, division), parameters["block"]
        v_position = (self.blocks(shape.channels) * len(division.parts) * per_block | 1) * b
        m_position = (per_block | 1) * b
        scratch = division.positions * (v_position + m_position)
        blocks_per_item, panels_per_item, size = self._items(
            ceil_div(tiles, per_block), self.blocks(shape.out_channels)
        )
        few, few_begin = _few(shape, division, parameters)
        words = (
            *stage_words(shape, division, self._panel(shape, division)),
            *(shape.group_in, shape.group_out, tiles, per_block, blocks_per_item, panels_per_item),
            *(v_position, m_position, scratch, few_begin, *self.epilogue(layer)),
        )
        macros, types = _macros(shape, division, parameters, few), {}
        if self.weight_type:
            macros, types = (*macros, ("STEPS", 1)), {constant(0): self.weight_type}
        reads = self.reads(layer, source)
        call = self.call("winograd_fused", reads, words, size, macros, (OUTPUT, _SCRATCH), types=types)
        return (call,), (size[0] * size[1] * scratch * SUM_BYTES,)

    def _parts(
        self, layer: Layer, shape: KernelGeometry, division: Division, parameters: Parameters, source: Operand
    ) -> tuple[tuple[KernelCall, ...], tuple[int, ...]]:
        """The calls, and the sizes of encoded tiles and of sums in bytes."""
        b, tiles, positions = self.traits.block, parameters["tiles"], division.positions
        inputs, outputs = self.blocks(shape.channels) * len(division.parts), self.blocks(shape.out_channels)
        count = tiles_of(shape, division)
        groups = ceil_div(count, tiles)
        padded_tiles, sizes = groups * tiles, stage_words(shape, division, self._panel(shape, division))
        macros = _macros(shape, division, parameters, 0)
        encoded, sums = Operand("workspace", 0), Operand("workspace", 1)
        calls = (
            self.call(
                "winograd_encode", (source,), (*sizes, count, padded_tiles), (count * b, inputs), macros, (encoded,)
            ),
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
                (sums, *self.reads(layer)[2:]),
                (*sizes, count, padded_tiles, *self.epilogue(layer)),
                (count * b, outputs),
                macros,
            ),
        )
        each = positions * padded_tiles * b * SUM_BYTES
        return calls, (inputs * each, outputs * each)

    def _items(self, blocks: int, panels: int) -> tuple[int, int, tuple[int, int]]:
        """Blocks of tiles and output blocks per work item, and the global size; panels are split if there are few blocks."""
        units = self.traits.compute_units
        wanted = units if units == 1 else _ITEMS_PER_UNIT * units
        items = min(blocks, wanted)
        blocks_per_item, panels_per_item = (
            ceil_div(blocks, items),
            ceil_div(panels, min(panels, ceil_div(wanted, items))),
        )
        return blocks_per_item, panels_per_item, (ceil_div(blocks, blocks_per_item), ceil_div(panels, panels_per_item))

    def _panel(self, shape: KernelGeometry, division: Division) -> int:
        """Elements of the weights of an output block."""
        return division.all_parts * _span(shape, self.traits.block) * self.traits.block

    def _constants(
        self, layer: Layer, weight: np.ndarray, shape: KernelGeometry, division: Division
    ) -> tuple[Constant, np.ndarray]:
        bias = self.bias(layer, self.blocks(shape.out_channels) * self.traits.block)
        return self._weights(weight, shape, division), bias

    def _weights(self, weight: np.ndarray, shape: KernelGeometry, division: Division) -> Constant:
        """The encoded weights."""
        b = self.traits.block
        panels = prepared_panels(weight, shape.groups, b, b, division, halved=False)
        return panels if self.dtype == DTYPE else self.prepared(panels.size, lambda: np.asarray(panels))


class WinogradOfInt16Weights(Winograd):
    """The same on a CPU with encoded weights stored as int16, which are half the bytes to read; all arithmetic is in float32.

    For layers with few tiles, which read weights from memory about as fast as they compute.
    """

    algorithm = "winograd_int16"
    stores_half = False
    weight_type = "int16"

    def _supports(self, layer: Layer) -> bool:
        return self.traits.on_cpu and super()._supports(layer) and fit_int16(layer)

    def _takes(self, shape: KernelGeometry, division: Division) -> bool:
        return suits_int16(shape, division)

    def _panel(self, shape: KernelGeometry, division: Division) -> int:
        return division.positions * int16_elements(shape.channels) * self.traits.block

    def _weights(self, weight: np.ndarray, shape: KernelGeometry, division: Division) -> Constant:
        return prepared_int16_panels(weight, self.traits.block, division)


def _computed(shape: KernelGeometry) -> KernelGeometry:
    """The equivalent convolution of phases, without stride and padding, for few channels; else `shape` itself.

    A phase of stride s is the set of pixels with equal row mod s and equal column mod s.
    """
    if not reads_plain(shape):
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


def stage_words(shape: KernelGeometry, division: Division, panel: int) -> tuple[int, ...]:
    """The members of winograd.cl's `winograd_shape`; `panel` is the number of elements of an output block's weights."""
    sizes = (shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width)
    first, alpha = division.down.first_taps, division.down.alpha
    rows, columns = (_list([first[part[axis]] for part in division.parts]) for axis in (0, 1))
    last = alpha - 1
    whole = [division.parts_at(position) for position in (last * alpha, last, last * alpha + last)]
    ranges = [_list([parts.start, parts.stop]) for parts in whole]
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


def _macros(shape: KernelGeometry, division: Division, parameters: Parameters, few: int) -> tuple[tuple[str, int], ...]:
    transform = (("M", division.down.outputs), ("TAPS", division.down.taps), ("STRIDE", shape.strides[0]))
    return (*transform, ("TILES", parameters["tiles"]), ("FEW", few))


def _span(shape: KernelGeometry, block: int) -> int:
    """Maximum number of input channels that an output block reads."""
    return max(last - first for first, last in channel_ranges(shape, block))


ROUTINES = (Winograd, WinogradOfInt16Weights)
