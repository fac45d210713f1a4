"""Tiles of matrix products whose operands pass through local memory, and an estimate of their time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nnstretch.devices.base.routine import Parameters
from nnstretch.devices.opencl.routines.base import SUM_BYTES, Traits, ceil_div
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand

_BUFFERS = 2

# A compute unit as the estimate sees it: a multiprocessor of an NVIDIA H200, to whose measured times the rest is fitted.
_PRODUCTS = 128  # multiply-adds per cycle
_REGISTERS = 65536
_ITEMS = 2048
_GROUPS = 32
_CYCLES = 1980.0  # per microsecond
_ITEM_REGISTERS = 29, 2.2  # of an item: at least, and per sum
_LOAD_COST = 0.61  # of a number that an item reads from local memory, in multiply-adds
_FETCH_COST = 10.0  # of a number that a group copies to local memory
_WRITE_COST = 63.0  # of a sum that a group writes
_STEP_LATENCY, _GROUP_LATENCY = 580.0, 1900.0  # cycles
_OVERLAP = 1.36  # 1 if work and latency add up, more if they overlap
LAUNCH = 4.1
"""Microseconds of a kernel besides its work."""


@dataclass(frozen=True)
class GemmTile:
    """Tile of a work group and of its items: outputs × pixels each.

    Attributes:
        outputs, pixels: of a work group.
        item_outputs, item_pixels: of an item.
        depth: rows of a step.
        slices: sets of items that share the rows of every step, for layers with few tiles.
    """

    outputs: int
    pixels: int
    item_outputs: int
    item_pixels: int
    depth: int
    slices: int = 1

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.outputs // self.item_outputs * (self.pixels // self.item_pixels) * self.slices

    @property
    def local_bytes(self) -> int:
        """Local memory of a group in bytes: operands of two steps, later the sums of half the slices."""
        operands, sums = (
            _BUFFERS * self.depth * (self.outputs + self.pixels),
            self.slices // 2 * self.outputs * self.pixels,
        )
        return max(operands, sums) * SUM_BYTES

    @property
    def registers(self) -> int:
        """Registers of an item: sums, a row of operands, what it fetches for the next step, and addresses."""
        row, quads = self.item_outputs + self.item_pixels, self.depth * self.pixels // 4
        fetched = 4 * (ceil_div(self.depth * self.outputs // 4, self.items) + ceil_div(quads, self.items))
        return self.item_outputs * self.item_pixels + row + fetched + ADDRESS_REGISTERS

    def demand(self, more_bytes: int = 0, more_registers: int = 0) -> Demand:
        """What a group demands: that of the tile, and more local memory and registers for other things."""
        return Demand(self.registers + more_registers, self.local_bytes + more_bytes, self.items)

    def is_whole(self, traits: Traits) -> bool:
        """Whether its items are whole waves, so that no wave has idle items."""
        return not traits.wave or self.items % traits.wave == 0

    def groups(self, outputs: int, pixels: int) -> int:
        """Work groups of a product of `outputs` × `pixels`."""
        return ceil_div(outputs, self.outputs) * ceil_div(pixels, self.pixels)


TILES = (
    GemmTile(64, 32, 8, 4, 32, slices=2),
    GemmTile(128, 32, 8, 4, 16),
    GemmTile(128, 64, 8, 8, 16),
    GemmTile(64, 16, 4, 4, 32, slices=2),
    GemmTile(64, 48, 8, 4, 32, slices=4),
    GemmTile(64, 96, 8, 8, 32, slices=2),
    GemmTile(128, 64, 8, 8, 32, slices=2),
    GemmTile(128, 32, 8, 4, 32, slices=2),
    GemmTile(64, 32, 8, 4, 32, slices=4),
    GemmTile(128, 48, 8, 4, 16),
    GemmTile(64, 48, 8, 4, 16),
    GemmTile(128, 48, 8, 4, 32, slices=2),
    GemmTile(32, 32, 4, 4, 16),
)
"""Those that lose least of the best of many on the convolutions of networks. Tiles of 48 or 96 pixels divide some layers among
the compute units with less waste than powers of 2.

What gemm_tile.cl expects: outputs are a power of 2; the items of a slice form whole patches of 32; the items of a group are a
multiple of its pixels, and divide the quads of a step's inputs.
"""


def estimated_time(tile: GemmTile, groups: int, steps: int, units: int) -> float:
    """Microseconds of a product's kernel on a GPU with `units` compute units.

    The busiest unit computes, and waits for what a step fetches and for the begin and end of a group. More groups than it can
    hold at once run one after the other.

    Args:
        tile: the tile of every work group.
        groups: number of work groups.
        steps: number of steps of a group.
        units: compute units.
    """
    own = ceil_div(groups, units)
    least, each = _ITEM_REGISTERS
    registers = least + each * tile.item_outputs * tile.item_pixels
    resident = max(1, min(_GROUPS, _ITEMS // tile.items, int(_REGISTERS / (registers * tile.items))))
    loads = _LOAD_COST * (1 / tile.item_outputs + 1 / tile.item_pixels)
    fetches = _FETCH_COST * (1 / tile.outputs + 1 / tile.pixels)
    products = tile.outputs * tile.pixels * (steps * tile.depth * (1 + loads + fetches) + _WRITE_COST)
    work = own * products / _PRODUCTS
    latency = ceil_div(own, resident) * ((steps + 1) * _STEP_LATENCY + _GROUP_LATENCY)
    return float((work**_OVERLAP + latency**_OVERLAP) ** (1 / _OVERLAP)) / _CYCLES + LAUNCH


def tile_of(parameters: Parameters) -> GemmTile:
    """The tile among the parameters of a routine."""
    return GemmTile(*(parameters[field.name] for field in fields(GemmTile)))
