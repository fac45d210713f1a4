"""Winograd convolution of blocked tensors: encoding, matrix products and decoding (SoftNeuro)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from nnstretch.devices.algorithms.winograd import Axis, Division, prepared_panels
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.blocked import TiledConvolution
from nnstretch.devices.cpu.routines.convolution.geometry import geometry_parameters, lowering
from nnstretch.graph.layer import Layer

LARGEST_STRIDE = 2

AXIS_PARTS = 8
"""Maximum parts of a kernel along one axis."""

HALVED_BLOCK = 16
"""Block of engines that compute the halves of a vector separately if they belong to different groups."""

LEAST_GROUP = 4
"""Minimum input channels per group: with fewer, encoding costs more than the products save."""

CACHED_WEIGHTS = 1 << 20
"""Bytes of encoded weights that mostly fit the second-level cache."""

ENCODED_BYTES = 1 << 19
"""Bytes of a block's encoded input that stay in the second-level cache while weights stream through it."""

FEW_TILES, MANY_TILES = 16, 28
"""Tiles per block that hide the latency of weights from the second-level cache, and from memory."""

MEMORY_COST = 11
"""Time to load a vector of weights from memory, in vector multiply-adds."""

UNITS = 4
"""Minimum units of work, so that threads can share the layer; threads that share a block each encode it."""

MOST_PARTS = 64
"""Maximum blocks into which a thorough search divides the tiles."""

TRANSFORM_COST = {4: 60, 6: 160, 8: 400}
"""Time to encode or decode a vector of tiles in two dimensions, in vector multiply-adds, by alpha."""

LINE_COST = {4: 12, 6: 20, 8: 30}
"""The same for transforms in one dimension."""

PRODUCT_COST = 4
"""Time to start and store the sum of a tile at one position, in vector multiply-adds."""

WORTH_MEASURING = 1.25
"""Transforms with a larger ratio of estimated time to the best transform's are not measured."""

WORTH_TRYING = 0.9
"""Kernels other than plain 3×3 are supported only below this ratio of estimated time to a direct convolution's."""


class WinogradConvolution(TiledConvolution[tuple[int, int]]):
    """F(m×m, r×r) for convolutions with kernels of several taps, strides of 1 or 2, and no dilation.

    Kernels of one row or column are transformed in one dimension. Strided kernels and kernels with more taps than the transform
    are sums of several convolutions (parts). Inputs with few channels are plain, others blocked.

    `tiles`: the engine's register tiles (tiles, vectors), best first; the last has one vector.

    Routine parameters:
        alpha: positions of a tile along an axis, m + r - 1; larger ones multiply less, read more weights and are less accurate.
        taps: taps of the transform, r.
        tiles, vectors: the register tile of the products.
        block: tiles that a thread encodes before it multiplies; their encoded input should fit the cache.
        panels: output panels per unit of work; a thread with several units of a block encodes it once.
    """

    descriptor = Descriptor("cpu", "float32", "winograd")

    def covers(self, geometry: KernelGeometry) -> bool:
        plain = max(geometry.strides) <= LARGEST_STRIDE and geometry.dilations == (1, 1)
        if not plain or geometry.taps == 1 or not self.divisions(geometry):
            return False
        if geometry.groups > 1 and geometry.channels // geometry.groups < LEAST_GROUP:
            return False
        if geometry.kernel == (3, 3) and geometry.strides == (1, 1) and not _is_planar(geometry):
            return True
        best = min(self._cost(geometry, division) for division in self.divisions(geometry))
        return best < WORTH_TRYING * self._direct_cost(geometry)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        first = PLAIN if _is_planar(KernelGeometry.of(layer)) else self.layout
        return (first, *(self.layout for _ in layer.activations[1:])), (self.layout,)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        costs = {division: self._cost(geometry, division) for division in self.divisions(geometry)}
        best, *others = sorted(costs, key=costs.__getitem__)
        tile = next(tile for tile in self.tiles if self._fits(geometry, tile[1]))
        worth = [best, *(d for d in others[:1] if costs[d] < WORTH_MEASURING * costs[best])]
        return tuple(self._setting(geometry, division, tile) for division in worth)

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
            for block in shares(_tiles(geometry, division), MOST_PARTS)
            for panels in shares(-(-geometry.out_channels // self.layout.block) // vectors, UNITS)
        )
        return distinct(self.parameter_space(layer), settings)

    def divisions(self, geometry: KernelGeometry) -> list[Division]:
        """Divisions of the kernel for each transform with at most as many taps as the longer axis."""
        most = max(-(-k // s) for k, s in zip(geometry.kernel, geometry.strides, strict=True))
        divisions = [division_of(geometry, alpha, taps) for alpha, taps in transforms() if taps <= most]
        return [d for d in divisions if max(len(d.down.first_taps), len(d.across.first_taps)) <= AXIS_PARTS]

    def _encoded_blocks(self, geometry: KernelGeometry, division: Division) -> int:
        """Vectors of encoded input per position of a tile."""
        parts = len(division.parts)
        block = self.layout.block
        return (
            -(-geometry.channels * parts // block) if _is_planar(geometry) else -(-geometry.channels // block) * parts
        )

    def _setting(self, geometry: KernelGeometry, division: Division, tile: tuple[int, int]) -> dict[str, int]:
        """The setting with few tiles per block if the weights fit the cache, else with enough tiles to reuse them."""
        per_tile = (
            division.positions * self._encoded_blocks(geometry, division) * self.layout.block * self.element.bytes
        )
        weights = division.all_parts * geometry.channels // geometry.groups * geometry.out_channels * self.element.bytes
        at_once = FEW_TILES if weights <= CACHED_WEIGHTS else max(MANY_TILES, ENCODED_BYTES // per_tile)
        tiles = _tiles(geometry, division)
        panels = -(-geometry.out_channels // self.layout.block) // tile[1]
        blocks = -(-tiles // at_once)
        blocks += blocks % 2 if blocks > 1 else 0
        chunks = min(panels, -(-UNITS // blocks))
        transform = {"alpha": division.down.alpha, "taps": division.down.taps}
        block = {"block": -(-tiles // blocks), "panels": -(-panels // chunks)}
        return {**transform, "tiles": tile[0], "vectors": tile[1], **block}

    def _cost(self, geometry: KernelGeometry, division: Division) -> float:
        """Estimated time, in vector multiply-adds.

        Products wait for their weights if those come from memory.
        """
        tiles = _tiles(geometry, division)
        inputs = self._encoded_blocks(geometry, division)
        outputs = -(-geometry.out_channels // self.layout.block)
        weights = division.all_parts * outputs * geometry.channels // geometry.groups
        flat = division.down.plain or division.across.plain
        transform = (LINE_COST if flat else TRANSFORM_COST)[division.down.alpha]
        packing = division.positions * len(division.parts) * geometry.channels if _is_planar(geometry) else 0
        sums = PRODUCT_COST * division.positions * outputs
        return max(weights * tiles, weights * MEMORY_COST) + (transform * (inputs + outputs) + packing + sums) * tiles

    def _direct_cost(self, geometry: KernelGeometry) -> float:
        """Vector multiply-adds of a direct convolution."""
        outputs = -(-geometry.out_channels // self.layout.block)
        return float(geometry.batch * geometry.pixels * geometry.taps * outputs * geometry.channels // geometry.groups)

    def _fits(self, geometry: KernelGeometry, vectors: int) -> bool:
        """Whether panels of `vectors` vectors are full; with groups, each panel must lie within one group."""
        if -(-geometry.out_channels // self.layout.block) % vectors:
            return False
        per_group = geometry.out_channels // geometry.groups
        return vectors == 1 or geometry.groups == 1 or per_group % (vectors * self.layout.block) == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        alpha, taps, vectors = parameters["alpha"], parameters["taps"], parameters["vectors"]
        kernel = family("winograd").kernel(alpha=alpha, taps=taps, tiles=parameters["tiles"], vectors=vectors)
        width, block = vectors * self.layout.block, self.layout.block
        halved = block == HALVED_BLOCK and vectors == 1
        division = division_of(geometry, alpha, taps)
        weights = prepared_panels(layer.constants[1], geometry.groups, width, block, division, halved=halved)
        lanes = -(-geometry.out_channels // block) * block
        return lowering(
            kernel,
            layer,
            weights,
            lanes,
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            planar=int(_is_planar(geometry)),
            tiles=parameters["block"],
            panels=parameters["panels"],
        )


@cache
def transforms() -> tuple[tuple[int, ...], ...]:
    """The transforms F(alpha - taps + 1, taps) that the engine has, as (alpha, taps)."""
    return tuple(dict.fromkeys(kernel.numbers("alpha", "taps") for kernel in family("winograd").kernels))


def division_of(geometry: KernelGeometry, alpha: int, taps: int) -> Division:
    """The geometry's kernel divided for a transform of `alpha` positions and `taps` taps."""
    down, across = (Axis(k, s, alpha, taps) for k, s in zip(geometry.kernel, geometry.strides, strict=True))
    return Division(down, across)


def _is_planar(geometry: KernelGeometry) -> bool:
    """Whether the input is read as a plain tensor."""
    return geometry.groups == 1 and geometry.channels < LEAST_GROUP


def _tiles(geometry: KernelGeometry, division: Division) -> int:
    down, across = division.down.outputs, division.across.outputs
    return geometry.batch * -(-geometry.out_height // down) * -(-geometry.out_width // across)
