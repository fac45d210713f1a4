"""Convolutions as matrix products whose operands pass through local memory, for devices that are no CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, OUTPUT, KernelCall, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import SUM_BYTES, Traits, ceil_div, constant
from nnstretch.devices.opencl.routines.conv import PLANAR_CHANNELS, Convolution, conv_geometry
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer

_DEPTH = 16  # channels of a step
_BUFFERS = 2
_SETTINGS = 5  # number of tiles and splits to measure
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_STEPS_PER_SPLIT = 4  # minimum
_SUMS_IN_FLIGHT = 8192  # sums per compute unit that hide the latency of local memory
_ADD_ITEMS = 64  # work items of a group that adds up splits


@dataclass(frozen=True)
class GemmTile:
    """Tile of a work group and of its items: outputs × pixels each."""

    outputs: int
    pixels: int
    item_outputs: int
    item_pixels: int

    @property
    def items(self) -> int:
        """Work items of a group."""
        return self.outputs // self.item_outputs * (self.pixels // self.item_pixels)

    @property
    def local_bytes(self) -> int:
        """Local memory of a group in bytes."""
        return _BUFFERS * _DEPTH * (self.outputs + self.pixels) * SUM_BYTES

    @property
    def loads_per_product(self) -> float:
        """Numbers that an item reads from local memory per multiply-add."""
        return 1 / self.item_outputs + 1 / self.item_pixels

    def fits(self, traits: Traits) -> bool:
        """Whether a device has the local memory and the work items."""
        return self.local_bytes <= traits.local_memory and self.items <= traits.group_items


TILES = (
    GemmTile(128, 128, 8, 8),
    GemmTile(128, 64, 8, 8),
    GemmTile(64, 128, 8, 4),
    GemmTile(64, 64, 8, 4),
    GemmTile(64, 64, 4, 4),
    GemmTile(64, 32, 4, 4),
    GemmTile(32, 64, 4, 4),
    GemmTile(32, 32, 4, 4),
)
"""Items are multiples of a tile's pixels, and divide the quads of a step: see gemm_tile.cl."""


class ImplicitGemm(Convolution):
    """Any ungrouped convolution, blocked in and out, by work groups that share their operands in local memory.

    Parameters: `outputs` and `pixels` of a work group's tile; `item_outputs` and `item_pixels` of an item's; `splits`, work
    groups that share the steps of a tile, for layers with few tiles.
    """

    algorithm = "implicit_gemm"
    source = "implicit_gemm.cl"
    in_groups = True

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The settings with the lowest estimated cost, best first."""
        shape = conv_geometry(layer)
        settings = [(self._cost(shape, tile, splits), tile, splits) for tile, splits in self._settings(shape)]
        ranked = sorted(settings, key=lambda setting: setting[0])
        return tuple(parameters_of(tile, splits) for _, tile, splits in ranked[:_SETTINGS])

    def _settings(self, shape: KernelGeometry) -> Iterator[tuple[GemmTile, int]]:
        for tile in (tile for tile in TILES if tile.fits(self.traits)):
            for splits in _SPLITS:
                if splits == 1 or self._steps(shape) // splits >= _STEPS_PER_SPLIT:
                    yield tile, splits

    def _cost(self, shape: KernelGeometry, tile: GemmTile, splits: int) -> float:
        """Relative time: rounds of work groups over the compute units, slower where few sums are in flight."""
        units = self.traits.compute_units
        groups = ceil_div(shape.batch * shape.pixels, tile.pixels) * ceil_div(shape.out_channels, tile.outputs) * splits
        rounds = ceil_div(groups, units)
        sums = tile.outputs * tile.pixels
        in_flight = min(1.0, min(groups / units, 4) * sums / _SUMS_IN_FLIGHT)
        multiply = rounds * sums * ceil_div(self._steps(shape), splits) * (0.5 + tile.loads_per_product) / in_flight
        written = shape.batch * shape.pixels * shape.out_channels / units
        return multiply + (written * (splits + 1) if splits > 1 else 0.0)

    def _steps(self, shape: KernelGeometry) -> int:
        return ceil_div(shape.channels, _DEPTH) * shape.taps

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `implicit_gemm`, followed by one of `add_splits` if there are several splits."""
        shape = conv_geometry(layer)
        tile = GemmTile(*(parameters[name] for name in _TILE_PARAMETERS))
        splits, tiles = parameters["splits"], ceil_div(shape.out_channels, tile.outputs)
        constants = self._weights(layer, shape, tile), self.bias(layer, tiles * tile.outputs)
        macros = self._settings_macros(shape, tile, splits)
        if splits == 1:
            call = self._multiply(layer, shape, tile, splits, macros, OUTPUT)
            return Lowering((call,), constants)
        sums = Operand("workspace", 0)
        count = shape.batch * shape.pixels * self.blocks(shape.out_channels) * self.traits.block
        calls = (
            self._multiply(layer, shape, tile, splits, macros, sums),
            self._add_splits(layer, shape, sums, (count, splits), macros),
        )
        return Lowering(calls, constants, (SUM_BYTES * count * splits,))

    def _multiply(
        self,
        layer: Layer,
        shape: KernelGeometry,
        tile: GemmTile,
        splits: int,
        macros: tuple[tuple[str, int], ...],
        target: Operand,
    ) -> KernelCall:
        """The product: to the output with all that follows, or the sums of every split to a workspace."""
        whole = target == OUTPUT
        pixels, steps = shape.batch * shape.pixels, self._steps(shape)
        words = (
            *(shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width),
            *(*shape.kernel, *shape.strides, *shape.dilations, *shape.pads, pixels, steps, ceil_div(steps, splits)),
            *(self.epilogue(layer) if whole else (0, *NO_ACTIVATION.words())),
        )
        return self.call(
            "implicit_gemm",
            self.reads(layer) if whole else (INPUT, constant(0), None, None),
            words,
            (ceil_div(pixels, tile.pixels) * tile.items, ceil_div(shape.out_channels, tile.outputs), splits),
            macros,
            (target,),
            floats=(INPUT,) if self._reads_plain(layer) else (),
            local_size=(tile.items, 1, 1),
        )

    def _add_splits(
        self,
        layer: Layer,
        shape: KernelGeometry,
        sums: Operand,
        sizes: tuple[int, int],
        macros: tuple[tuple[str, int], ...],
    ) -> KernelCall:
        """The call that adds up the sums of all splits; `sizes` are the numbers of a split and the splits."""
        return self.call(
            "add_splits",
            (sums, *self.reads(layer)[2:]),
            (*sizes, shape.pixels, self.blocks(shape.out_channels), *self.epilogue(layer)),
            (ceil_div(sizes[0], 4 * _ADD_ITEMS) * _ADD_ITEMS,),
            macros,
            local_size=(_ADD_ITEMS,),
        )

    def _settings_macros(self, shape: KernelGeometry, tile: GemmTile, splits: int) -> tuple[tuple[str, int], ...]:
        return (
            ("TILE_OUTPUTS", tile.outputs),
            ("TILE_PIXELS", tile.pixels),
            ("ITEM_OUTPUTS", tile.item_outputs),
            ("ITEM_PIXELS", tile.item_pixels),
            ("PARTIAL", int(splits > 1)),
            ("PLANAR", 0),
        )

    def _weights(self, layer: Layer, shape: KernelGeometry, tile: GemmTile) -> Prepared:
        """Weights as [tile of outputs][step][DEPTH][outputs]."""
        size = ceil_div(shape.out_channels, tile.outputs) * self._steps(shape) * _DEPTH * tile.outputs
        weight = layer.constants[1]
        recipe = ("opencl", self.algorithm, Source(weight), self.dtype, tile.outputs)
        return self.prepared(size, partial(self._reordered, weight, shape, tile.outputs), recipe)

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, outputs: int) -> np.ndarray:
        """The values of `_weights`, in steps of DEPTH channels at one tap."""
        tiles, depths = ceil_div(shape.out_channels, outputs), ceil_div(shape.channels, _DEPTH)
        padded = np.zeros((tiles * outputs, depths * _DEPTH, *shape.kernel), np.float32)
        padded[: shape.out_channels, : shape.channels] = weight
        split = padded.reshape(tiles, outputs, depths, _DEPTH, *shape.kernel)
        return split.transpose(0, 2, 4, 5, 3, 1)


class PlanarGemm(ImplicitGemm):
    """Ungrouped convolution of a plain float32 tensor with few channels (a network's first layer); blocked out.

    Parameters: those of `ImplicitGemm`.
    """

    algorithm = "planar_gemm"

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.channels <= PLANAR_CHANNELS

    def _reads_plain(self, layer: Layer) -> bool:
        return True

    def _steps(self, shape: KernelGeometry) -> int:
        return ceil_div(shape.channels * shape.taps, _DEPTH)

    def _settings_macros(self, shape: KernelGeometry, tile: GemmTile, splits: int) -> tuple[tuple[str, int], ...]:
        *common, _ = super()._settings_macros(shape, tile, splits)
        sizes = ("CHANNELS", shape.channels), ("KERNEL_H", shape.kernel[0]), ("KERNEL_W", shape.kernel[1])
        return (*common, ("PLANAR", 1), *sizes)

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, outputs: int) -> np.ndarray:
        """The values of `_weights`, in steps of DEPTH pairs of a tap and a channel."""
        tiles, steps = ceil_div(shape.out_channels, outputs), self._steps(shape)
        padded = np.zeros((tiles * outputs, steps * _DEPTH), np.float32)
        rows = np.asarray(weight, np.float32).transpose(0, 2, 3, 1).reshape(shape.out_channels, -1)
        padded[: shape.out_channels, : rows.shape[1]] = rows
        return padded.reshape(tiles, outputs, steps, _DEPTH).transpose(0, 2, 3, 1)


_TILE_PARAMETERS = ("outputs", "pixels", "item_outputs", "item_pixels")


def parameters_of(tile: GemmTile, splits: int) -> Parameters:
    """The parameters of `ImplicitGemm` for a tile and a number of splits."""
    sizes = (tile.outputs, tile.pixels, tile.item_outputs, tile.item_pixels)
    return {**dict(zip(_TILE_PARAMETERS, sizes, strict=True)), "splits": splits}


ROUTINES = (PlanarGemm, ImplicitGemm)
