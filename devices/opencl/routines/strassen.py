"""1 × 1 convolutions by Strassen's algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.algorithms.strassen import fitting_tiles, is_divisible, strassen_weights
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import OUTPUT, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import SUM_BYTES, ceil_div
from nnstretch.devices.opencl.routines.conv import Convolution, conv_geometry, most_pixels
from nnstretch.graph.layer import Layer

_VECTORS = (2, 3)
_CACHE_BYTES = 1 << 19  # second-level cache available for the inputs and sums of a group of tiles
_ITEMS_PER_UNIT = 2  # work items per CPU thread if there is more than one thread
_SAVED = 3  # tiles of results that are kept between products
_SCRATCH = Operand("workspace", 0)


class Strassen(Convolution):
    """1 × 1 convolution with seven products of quarters instead of eight (Strassen's algorithm in Winograd's form, one step).

    For CPUs only, whose caches hold its intermediate results. Blocked in and out.

    Parameters: `pixels` and `vectors` (output blocks) of the register tile; `tiles`, pairs of register tiles whose input sums
    are kept at a time.
    """

    algorithm = "strassen"
    source = "conv_strassen.cl"
    stores_half = False

    def _fits(self, shape: KernelGeometry, layer: Layer) -> bool:
        whole = shape.size == shape.out_size and shape.strides == (1, 1)
        return (
            self.traits.on_cpu
            and whole
            and is_divisible(shape, self.traits.block)
            and bool(self.parameter_space(layer))
        )

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The register tiles that leave few pixels and vectors unpaired, best first."""
        shape = conv_geometry(layer)
        tiles = [(self._pixels(shape, vectors), vectors) for vectors in _VECTORS]
        return tuple(self._setting(shape, *tile) for tile in fitting_tiles(shape, tiles, self.traits.block))

    def _pixels(self, shape: KernelGeometry, vectors: int) -> int:
        """Width of evenly sized tiles that gives the smallest number of pairs."""
        total = shape.out_width
        most = max(1, most_pixels(self.traits.registers, vectors))
        return ceil_div(ceil_div(total, ceil_div(total, 2 * most)), 2)

    def _setting(self, shape: KernelGeometry, pixels: int, vectors: int) -> Parameters:
        per_tile = 4 * shape.channels * pixels * SUM_BYTES
        tiles = ceil_div(shape.out_width, 2 * pixels)
        groups = ceil_div(tiles, max(1, _CACHE_BYTES // per_tile))
        return {"pixels": pixels, "vectors": vectors, "tiles": ceil_div(tiles, groups)}

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape = conv_geometry(layer)
        b, pixels, vectors = self.traits.block, parameters["pixels"], parameters["vectors"]
        blocks, half = self.blocks(shape.out_channels), shape.channels // b // 2
        tiles = ceil_div(shape.out_width, 2 * pixels)
        groups, panels = ceil_div(tiles, parameters["tiles"]), blocks // (2 * vectors) + blocks % (2 * vectors)
        units = self.traits.compute_units
        wanted = ceil_div(units if units == 1 else _ITEMS_PER_UNIT * units, shape.batch)
        groups_per_item = ceil_div(groups, min(groups, wanted))
        items = ceil_div(groups, groups_per_item)
        panels_per_item = ceil_div(panels, min(panels, ceil_div(wanted, items)))
        size = (items, ceil_div(panels, panels_per_item), shape.batch)
        scratch = (4 * half * parameters["tiles"] + _SAVED * vectors) * pixels * b
        words = (
            *(shape.channels, shape.out_width, shape.out_channels, tiles, parameters["tiles"]),
            *(groups_per_item, panels_per_item, scratch, *self.epilogue(layer)),
        )
        call = self.call(
            "conv_strassen",
            self.reads(layer),
            words,
            size,
            (("PIXELS", pixels), ("VECTORS", vectors)),
            (OUTPUT, _SCRATCH),
        )
        bias = self.bias(layer, blocks * b)
        weights = strassen_weights(layer.constants[1], vectors, b)
        return Lowering((call,), (weights, bias), (size[0] * size[1] * size[2] * scratch * SUM_BYTES,))


ROUTINES = (Strassen,)
