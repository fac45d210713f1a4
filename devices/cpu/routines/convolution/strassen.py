"""1 × 1 convolutions and dense layers by Strassen's algorithm."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from nnstretch.devices.algorithms.strassen import fitting_tiles, is_divisible, strassen_weights
from nnstretch.devices.base.balance import balanced_grid, grid_units, imbalance
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import (
    BlockedConvolution,
    as_convolution,
    has_rows_of_pixels,
    lowering,
)
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

CACHE_BYTES = 1 << 19  # part of the second-level cache for the inputs and sums of a unit of work
UNEVEN = 1.05  # imbalance of two threads from which on one more division of the pixels may pay
MOST_PARTS = 32  # maximum parts into which a thorough search divides pixels and outputs


class _Strassen(BlockedConvolution):
    """Seven products of quarters instead of eight (Strassen's algorithm in Winograd's form, one step).

    Routine parameters:
        pixels, vectors: the register tile, which names the kernel.
        divisions: number of pairs of tiles that share the pixels.
        tiles: maximum pairs of tiles per unit of work; their sums of inputs are computed once.
        panels: pairs of panels of outputs per unit of work.
    """

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.tiles = family("conv_strassen").tiles(isa)

    def covers(self, geometry: KernelGeometry) -> bool:
        small = geometry.pixels <= family("conv_strassen").limits("pixels")[1]
        return small and is_divisible(geometry, self.layout.block) and bool(self._fitting(geometry))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = self._geometry(layer)
        return tuple(setting for tile in self._fitting(geometry) for setting in self._settings(geometry, tile))

    def default_parameters(self, layer: Layer) -> Parameters:
        geometry = self._geometry(layer)
        tile = self._fitting(geometry)[0]
        return self._setting(geometry, tile, self._fewest(geometry, tile))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = self._geometry(layer)
        settings = (
            {**setting, "tiles": tiles, "panels": panels}
            for tile in self._fitting(geometry)
            for setting in self._settings(geometry, tile)
            for tiles in shares(setting["divisions"], MOST_PARTS)
            for panels in shares(len(self._panels(geometry, tile[1])), MOST_PARTS)
        )
        return distinct(self.parameter_space(layer), settings)

    @abstractmethod
    def _geometry(self, layer: Layer) -> KernelGeometry:
        """The geometry of the convolution that computes a layer."""

    def _panels(self, geometry: KernelGeometry, vectors: int) -> tuple[float, ...]:
        """Work of each pair of panels and of each unpaired vector, which has as many products as four quarters."""
        blocks = -(-geometry.out_channels // self.layout.block)
        return (7.0 * vectors,) * (blocks // (2 * vectors)) + (4.0,) * (blocks % (2 * vectors))

    def _fitting(self, geometry: KernelGeometry) -> list[tuple[int, int]]:
        tiles = (tile for tile in self.tiles if geometry.pixels >= tile[0])
        return fitting_tiles(geometry, tiles, self.layout.block)

    def _settings(self, geometry: KernelGeometry, tile: tuple[int, int]) -> list[dict[str, int]]:
        """Divisions of the pixels into as few pairs of tiles as fit; if these are odd and uneven work, into one more, too."""
        least = self._fewest(geometry, tile)
        fewest = self._setting(geometry, tile, least)
        units = grid_units(least, self._panels(geometry, tile[1]), fewest["tiles"], fewest["panels"]) * geometry.batch
        even = least % 2 == 0 or imbalance(units, 2) < UNEVEN
        return [fewest] if even else [fewest, self._setting(geometry, tile, least + 1)]

    def _fewest(self, geometry: KernelGeometry, tile: tuple[int, int]) -> int:
        """The least number of pairs of tiles that share the pixels."""
        return -(-geometry.pixels // (2 * tile[0]))

    def _setting(self, geometry: KernelGeometry, tile: tuple[int, int], divisions: int) -> dict[str, int]:
        pixels, vectors = tile
        most = max(1, CACHE_BYTES // (4 * geometry.channels * pixels * self.element.bytes))
        columns, threads = self._panels(geometry, vectors), (2, self.threads)
        tiles, panels = balanced_grid(divisions, columns, most, threads=threads, repeats=geometry.batch)
        return {"pixels": pixels, "vectors": vectors, "divisions": divisions, "tiles": tiles, "panels": panels}

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = self._geometry(layer)
        block, vectors = self.layout.block, parameters["vectors"]
        kernel = family("conv_strassen").kernel(pixels=parameters["pixels"], vectors=vectors)
        lanes = -(-geometry.out_channels // block) * block
        weights = strassen_weights(layer.constants[1], vectors, block)
        return lowering(
            kernel,
            layer,
            weights,
            lanes,
            n=geometry.batch,
            c=geometry.channels,
            pixels=geometry.pixels,
            o=geometry.out_channels,
            tiles=parameters["tiles"],
            panels=parameters["panels"],
            divisions=parameters["divisions"],
            **_selection(geometry),
            rows=int(layer.op == "Dense"),
        )


class StrassenConvolution(_Strassen):
    """1 × 1 convolutions. With strides, the pixels that are read are copied first.

    Routine parameters: those of `_Strassen`.
    """

    descriptor = Descriptor("cpu", "float32", "strassen")

    def _geometry(self, layer: Layer) -> KernelGeometry:
        return KernelGeometry.of(layer)


class StrassenDense(_Strassen):
    """Dense layers of many rows, which are the pixels of a convolution and copied to blocks first.

    Routine parameters: those of `_Strassen`.
    """

    descriptor = Descriptor("cpu", "float32", "strassen_rows")

    def supports(self, layer: Layer) -> bool:
        """Outputs fill whole blocks: the kernel writes no parts of them."""
        if not has_rows_of_pixels(layer) or layer.type_of(1).shape[0] % self.layout.block:
            return False
        return self.covers(self._geometry(layer))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (PLAIN,) * len(layer.activations), (PLAIN,)

    def _geometry(self, layer: Layer) -> KernelGeometry:
        return KernelGeometry.of(as_convolution(layer))


def _selection(geometry: KernelGeometry) -> dict[str, int]:
    """Which pixels the kernel reads; 0 for all."""
    (sh, sw), is_whole = geometry.strides, geometry.strides == (1, 1) and geometry.size == geometry.out_size
    if is_whole:
        return dict.fromkeys(("ow", "h", "w", "sh", "sw"), 0)
    return {"ow": geometry.out_width, "h": geometry.height, "w": geometry.width, "sh": sh, "sw": sw}


ROUTINES = (StrassenConvolution, StrassenDense)
