"""Winograd convolution of blocked tensors: encoding, matrix products and decoding (SoftNeuro)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import numpy as np

from nnstretch.devices.algorithms.int16_weights import fit_int16
from nnstretch.devices.algorithms.winograd import (
    LARGEST_STRIDE,
    LEAST_GROUP,
    Division,
    division_of,
    estimated_cost,
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
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import (
    BlockedConvolution,
    geometry_parameters,
    lowering,
)
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer

AXIS_PARTS = 8  # maximum parts of a kernel along one axis
HALVED_BLOCK = 16  # block of engines that compute the halves of a vector separately if they belong to different groups
UNITS = 4  # minimum units of work for four threads; threads that share a block each encode it
MOST_PARTS = 64  # maximum blocks into which a thorough search divides the tiles


class WinogradConvolution(BlockedConvolution):
    """F(m×m, r×r) for convolutions with kernels of several taps, strides of 1 or 2, and no dilation.

    Kernels of one row or column are transformed in one dimension. Strided kernels and kernels with more taps than the transform
    are sums of several convolutions (parts). Inputs with few channels are plain, others blocked.

    Routine parameters:
        alpha: positions of a tile along an axis, m + r - 1; larger ones multiply less, read more weights and are less accurate.
        taps: taps of the transform, r.
        tiles, vectors: the register tile of the products.
        block: tiles that a thread encodes before it multiplies; their encoded input should fit the cache.
        panels: output panels per unit of work; a thread with several units of a block encodes it once.
    """

    descriptor = Descriptor("cpu", "float32", "winograd")
    kernels: ClassVar[str] = "winograd"
    """Name of the kernels' family."""
    stored: ClassVar[str] = DEFAULT_DTYPE
    """Type of the weights in memory."""

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.tiles = family(self.kernels).tiles(isa, "tiles", "vectors")  # the last has one vector
        # On ARM, in-order and out-of-order cores have a tile each.
        self.measured_tiles = 2 if isa.architecture == "aarch64" else 1

    def covers(self, geometry: KernelGeometry) -> bool:
        plain = max(geometry.strides) <= LARGEST_STRIDE and geometry.dilations == (1, 1)
        if not plain or geometry.taps == 1 or not self.divisions(geometry):
            return False
        if geometry.groups > 1 and geometry.group_in < LEAST_GROUP:
            return False
        if geometry.kernel == (3, 3) and geometry.strides == (1, 1) and not reads_plain(geometry):
            return True
        return is_worth_trying(geometry, self._costs(geometry).values(), self.layout.block)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        first = PLAIN if reads_plain(KernelGeometry.of(layer)) else self.layout
        return (first, *(self.layout for _ in layer.activations[1:])), (self.layout,)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        fitting = [tile for tile in self.tiles if self._fits(geometry, tile[1])]
        tiles = [tile for tile in fitting if tile[1] > 1][: self.measured_tiles] or fitting[:1]
        divisions = worth_measuring(self._costs(geometry))
        return tuple(self._setting(geometry, division, tile) for division in divisions for tile in tiles)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        settings = (
            {
                "alpha": division.down.alpha,
                "taps": division.down.taps,
                "tiles": tiles,
                "vectors": vectors,
                "block": block,
                "panels": panels,
            }
            for division in self.divisions(geometry)
            for tiles, vectors in self.tiles
            if self._fits(geometry, vectors)
            for block in shares(tiles_of(geometry, division), MOST_PARTS)
            for panels in shares(-(-geometry.out_channels // self.layout.block) // vectors, self.units(UNITS))
        )
        return distinct(self.parameter_space(layer), settings)

    def divisions(self, geometry: KernelGeometry) -> list[Division]:
        """Divisions of the kernel for each transform with at most as many taps as the longer axis."""
        most = max(-(-k // s) for k, s in zip(geometry.kernel, geometry.strides, strict=True))
        divisions = [division_of(geometry, alpha, taps) for alpha, taps in transforms(self.kernels) if taps <= most]
        return [d for d in divisions if max(len(d.down.first_taps), len(d.across.first_taps)) <= AXIS_PARTS]

    def _encoded_blocks(self, geometry: KernelGeometry, division: Division) -> int:
        """Vectors of encoded input per position of a tile."""
        parts, block = len(division.parts), self.layout.block
        return (
            -(-geometry.channels * parts // block) if reads_plain(geometry) else -(-geometry.channels // block) * parts
        )

    def _setting(self, geometry: KernelGeometry, division: Division, tile: tuple[int, int]) -> dict[str, int]:
        """The setting with an even number of blocks, and enough panels for all threads."""
        tiles = tiles_of(geometry, division)
        panels = -(-geometry.out_channels // self.layout.block) // tile[1]
        encoded = self._encoded_blocks(geometry, division) * self.layout.block
        blocks = -(-tiles // tiles_at_once(geometry, division, encoded))
        blocks += blocks % 2 if blocks > 1 else 0
        chunks = min(panels, -(-self.units(UNITS) // blocks))
        transform = {"alpha": division.down.alpha, "taps": division.down.taps}
        block = {"block": -(-tiles // blocks), "panels": -(-panels // chunks)}
        return {**transform, "tiles": tile[0], "vectors": tile[1], **block}

    def _costs(self, geometry: KernelGeometry) -> dict[Division, float]:
        """Estimated cost of every division; plain inputs are packed for every part and position."""
        costs = {}
        for division in self.divisions(geometry):
            packing = division.positions * len(division.parts) * geometry.channels if reads_plain(geometry) else 0
            inputs = self._encoded_blocks(geometry, division)
            costs[division] = estimated_cost(geometry, division, self.layout.block, inputs, packing, self.stored)
        return costs

    def _fits(self, geometry: KernelGeometry, vectors: int) -> bool:
        """Whether panels of `vectors` vectors are full; with groups, each panel must lie within one group."""
        if -(-geometry.out_channels // self.layout.block) % vectors:
            return False
        per_group = geometry.out_channels // geometry.groups
        return vectors == 1 or geometry.groups == 1 or per_group % (vectors * self.layout.block) == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        alpha, taps, vectors = parameters["alpha"], parameters["taps"], parameters["vectors"]
        kernel = family(self.kernels).kernel(alpha=alpha, taps=taps, tiles=parameters["tiles"], vectors=vectors)
        weights = self.prepared(layer.constants[1], geometry, vectors, division_of(geometry, alpha, taps))
        lanes = -(-geometry.out_channels // self.layout.block) * self.layout.block
        return lowering(
            kernel,
            layer,
            weights,
            lanes,
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            planar=int(reads_plain(geometry)),
            tiles=parameters["block"],
            panels=parameters["panels"],
        )

    def prepared(self, weight: np.ndarray, geometry: KernelGeometry, vectors: int, division: Division) -> Constant:
        """Weights O,C/g,KH,KW as the kernels with panels of `vectors` vectors read them."""
        block = self.layout.block
        halved = block == HALVED_BLOCK and vectors == 1
        return prepared_panels(weight, geometry.groups, vectors * block, block, division, halved=halved)


class WinogradConvolutionOfInt16Weights(WinogradConvolution):
    """The same with encoded weights stored as int16, which are half the bytes to read; all arithmetic is in float32.

    For 3 × 3 kernels of layers with few tiles, which read weights from memory about as fast as they compute.
    """

    descriptor = Descriptor("cpu", "float32", "winograd_int16")
    kernels = "winograd_int16"
    stored = "int16"

    def supports(self, layer: Layer) -> bool:
        return super().supports(layer) and fit_int16(layer)

    def divisions(self, geometry: KernelGeometry) -> list[Division]:
        return [division for division in super().divisions(geometry) if suits_int16(geometry, division)]

    def prepared(self, weight: np.ndarray, geometry: KernelGeometry, vectors: int, division: Division) -> Constant:
        return prepared_int16_panels(weight, vectors * self.layout.block, division)


@cache
def transforms(kernels: str = "winograd") -> tuple[tuple[int, ...], ...]:
    """The transforms F(alpha - taps + 1, taps) that a family of kernels has, as (alpha, taps)."""
    return tuple(dict.fromkeys(kernel.numbers("alpha", "taps") for kernel in family(kernels).kernels))


ROUTINES = (WinogradConvolution, WinogradConvolutionOfInt16Weights)
