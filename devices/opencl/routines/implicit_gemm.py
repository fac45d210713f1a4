"""Convolutions as matrix products whose operands pass through local memory, for devices that are no CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, OUTPUT, KernelCall, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import DTYPE, SUM_BYTES, ceil_div, constant
from nnstretch.devices.opencl.routines.conv import PLANAR_CHANNELS, Convolution, conv_geometry
from nnstretch.devices.opencl.routines.demand import Demand
from nnstretch.devices.opencl.routines.gemm_tile import LAUNCH, TILES, GemmTile, estimated_time, tile_of
from nnstretch.devices.opencl.routines.images import image_macros, with_storages
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer

_SETTINGS = 4  # number of tiles and splits to measure
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_ROWS_PER_SPLIT = 64  # minimum
_DISTANCE_BYTES = 16  # of an entry of the list that the kernel makes for a plain input
_DISTANCE_REGISTERS = 8  # of two such entries
_ADD_ITEMS = 64  # work items of a group that adds up splits, at least
_ADD_TIME = 3.2e-7  # microseconds to write or to read a sum of a split

Macros = tuple[tuple[str, int], ...]


class ImplicitGemm(Convolution):
    """Any ungrouped convolution, blocked in and out, by work groups that share their operands in local memory.

    Parameters: those of a `GemmTile`; `splits`, work groups that share the steps of a tile, for layers with few tiles; on
    devices with images, the `storage` of weights.
    """

    algorithm = "implicit_gemm"
    source = "implicit_gemm.cl"
    in_groups = True
    reads_floats = False

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The settings with the lowest estimated time, best first."""
        shape = conv_geometry(layer)
        settings = [(self._estimate(shape, tile, splits), tile, splits) for tile, splits in self._settings(shape)]
        ranked = sorted(settings, key=lambda setting: setting[0])
        chosen = [parameters_of(tile, splits) for _, tile, splits in ranked[:_SETTINGS]]
        return with_storages(self.traits, chosen, lambda one: self._size(shape, tile_of(one)))

    def _settings(self, shape: KernelGeometry) -> Iterator[tuple[GemmTile, int]]:
        for tile in self._fitting_tiles(shape):
            for splits in _SPLITS:
                if splits == 1 or self._steps(shape, tile.depth) * tile.depth // splits >= _ROWS_PER_SPLIT:
                    yield tile, splits

    def _fitting_tiles(self, shape: KernelGeometry) -> list[GemmTile]:
        """The tiles that the device takes; of these only whole waves, if there are some."""
        fitting = [tile for tile in TILES if self._demand(shape, tile).fits(self.traits)]
        return [tile for tile in fitting if tile.is_whole(self.traits)] or fitting

    def _estimate(self, shape: KernelGeometry, tile: GemmTile, splits: int) -> float:
        """Estimated microseconds."""
        pixels, steps = shape.batch * shape.pixels, ceil_div(self._steps(shape, tile.depth), splits)
        groups = tile.groups(shape.out_channels, pixels) * splits
        product = estimated_time(tile, groups, steps, self.traits.compute_units)
        return product if splits == 1 else product + LAUNCH + _ADD_TIME * pixels * shape.out_channels * (splits + 1)

    def _steps(self, shape: KernelGeometry, depth: int) -> int:
        return ceil_div(shape.channels, depth) * shape.taps

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        return self._demand(conv_geometry(layer), tile_of(parameters))

    def _demand(self, shape: KernelGeometry, tile: GemmTile) -> Demand:
        return tile.demand()

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `implicit_gemm`, followed by one of `add_splits` if there are several splits."""
        shape = conv_geometry(layer)
        tile = tile_of(parameters)
        splits, tiles = parameters["splits"], ceil_div(shape.out_channels, tile.outputs)
        constants = self._weights(layer, shape, tile), self.bias(layer, tiles * tile.outputs)
        macros = self._settings_macros(shape, tile)
        of_product = (*macros, *image_macros(parameters))
        if splits == 1:
            call = self._product(shape, tile, 1, of_product, self.reads(layer), OUTPUT, self.epilogue(layer))
            return Lowering((call,), constants)
        sums = Operand("workspace", 0)
        count = shape.batch * shape.pixels * self.blocks(shape.out_channels) * self.traits.block
        calls = (
            self._product(shape, tile, splits, of_product, (INPUT, constant(0), None, None), sums),
            self._add_splits(layer, shape, sums, (count, splits), macros),
        )
        return Lowering(calls, constants, (SUM_BYTES * count * splits,))

    def _product(
        self,
        shape: KernelGeometry,
        tile: GemmTile,
        splits: int,
        macros: Macros,
        reads: Sequence[Operand | None],
        target: Operand,
        epilogue: Sequence[int] | None = None,
    ) -> KernelCall:
        """The product: finished as `epilogue` says or, without one, the sums of every split."""
        pixels, steps = shape.batch * shape.pixels, self._steps(shape, tile.depth)
        words = (
            *(shape.channels, shape.height, shape.width, shape.out_channels, shape.out_height, shape.out_width),
            *(*shape.kernel, *shape.strides, *shape.dilations, *shape.pads, pixels, steps, ceil_div(steps, splits)),
            *(int(epilogue is None), *(epilogue or (0, *NO_ACTIVATION.words()))),
        )
        return self.call(
            "implicit_gemm",
            reads,
            words,
            (ceil_div(pixels, tile.pixels) * tile.items, ceil_div(shape.out_channels, tile.outputs), splits),
            macros,
            (target,),
            types={INPUT: DTYPE} if self.reads_floats else {},
            local_size=(tile.items, 1, 1),
        )

    def _add_splits(
        self,
        layer: Layer,
        shape: KernelGeometry,
        sums: Operand,
        sizes: tuple[int, int],
        macros: Macros,
    ) -> KernelCall:
        """The call that adds up the sums of all splits; `sizes` are the numbers of a split and the splits."""
        items = self.traits.whole_waves(_ADD_ITEMS)
        return self.call(
            "add_splits",
            (sums, *self.reads(layer)[2:]),
            (*sizes, shape.pixels, self.blocks(shape.out_channels), *self.epilogue(layer)),
            (ceil_div(sizes[0], 4 * items) * items,),
            macros,
            local_size=(items,),
        )

    def _settings_macros(self, shape: KernelGeometry, tile: GemmTile) -> Macros:
        return (*tile_macros(tile), ("PLANAR", 0), ("POINTWISE", int(self._is_pointwise(shape, tile))))

    def _is_pointwise(self, shape: KernelGeometry, tile: GemmTile) -> bool:
        """Whether every number that the kernel may fetch is there: one tap inside the image, and whole steps of channels."""
        inside = shape.pads == (0, 0) and all(
            (count - 1) * stride < size
            for count, stride, size in (
                (shape.out_height, shape.strides[0], shape.height),
                (shape.out_width, shape.strides[1], shape.width),
            )
        )
        return shape.taps == 1 and inside and shape.channels % tile.depth == tile.depth % self.traits.block == 0

    def _weights(self, layer: Layer, shape: KernelGeometry, tile: GemmTile) -> Prepared:
        """Weights as [tile of outputs][step][DEPTH][outputs]."""
        weight = layer.constants[1]
        recipe = ("opencl", self.algorithm, Source(weight), self.dtype, tile.outputs, tile.depth)
        return self.prepared(self._size(shape, tile), partial(self._reordered, weight, shape, tile), recipe)

    def _size(self, shape: KernelGeometry, tile: GemmTile) -> int:
        """Number of weights of `_weights`."""
        return ceil_div(shape.out_channels, tile.outputs) * self._steps(shape, tile.depth) * tile.depth * tile.outputs

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, tile: GemmTile) -> np.ndarray:
        """The values of `_weights`, in steps of DEPTH channels at one tap."""
        outputs, depth = tile.outputs, tile.depth
        tiles, depths = ceil_div(shape.out_channels, outputs), ceil_div(shape.channels, depth)
        padded = np.zeros((tiles * outputs, depths * depth, *shape.kernel), np.float32)
        padded[: shape.out_channels, : shape.channels] = weight
        split = padded.reshape(tiles, outputs, depths, depth, *shape.kernel)
        return split.transpose(0, 2, 4, 5, 3, 1)


class PlanarGemm(ImplicitGemm):
    """Ungrouped convolution of a plain float32 tensor with few channels (a network's first layer); blocked out.

    Parameters: those of `ImplicitGemm`.
    """

    algorithm = "planar_gemm"
    reads_floats = True

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        return shape.channels <= PLANAR_CHANNELS and bool(self._fitting_tiles(shape))

    def _reads_plain(self, layer: Layer) -> bool:
        return self.reads_floats

    def _steps(self, shape: KernelGeometry, depth: int) -> int:
        return ceil_div(shape.channels * shape.taps, depth)

    def _demand(self, shape: KernelGeometry, tile: GemmTile) -> Demand:
        """That of the tile, and of a list of distances: an item reads one while it uses another."""
        return tile.demand(_DISTANCE_BYTES * self._steps(shape, tile.depth) * tile.depth, _DISTANCE_REGISTERS)

    def _settings_macros(self, shape: KernelGeometry, tile: GemmTile) -> Macros:
        sizes = ("CHANNELS", shape.channels), ("KERNEL_H", shape.kernel[0]), ("KERNEL_W", shape.kernel[1])
        return (*tile_macros(tile), ("PLANAR", 1), *sizes)

    def _reordered(self, weight: np.ndarray, shape: KernelGeometry, tile: GemmTile) -> np.ndarray:
        """The values of `_weights`, in steps of DEPTH pairs of a tap and a channel."""
        outputs, depth = tile.outputs, tile.depth
        tiles, steps = ceil_div(shape.out_channels, outputs), self._steps(shape, depth)
        padded = np.zeros((tiles * outputs, steps * depth), np.float32)
        rows = np.asarray(weight, np.float32).transpose(0, 2, 3, 1).reshape(shape.out_channels, -1)
        padded[: shape.out_channels, : rows.shape[1]] = rows
        return padded.reshape(tiles, outputs, steps, depth).transpose(0, 2, 3, 1)


def tile_macros(tile: GemmTile) -> Macros:
    """The macros of a tile's sizes."""
    return (
        ("TILE_OUTPUTS", tile.outputs),
        ("TILE_PIXELS", tile.pixels),
        ("ITEM_OUTPUTS", tile.item_outputs),
        ("ITEM_PIXELS", tile.item_pixels),
        ("DEPTH", tile.depth),
        ("SLICES", tile.slices),
    )


def parameters_of(tile: GemmTile, splits: int) -> Parameters:
    """The parameters of `ImplicitGemm` for a tile and a number of splits."""
    return {**asdict(tile), "splits": splits}


ROUTINES = (PlanarGemm, ImplicitGemm)
