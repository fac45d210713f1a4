"""Winograd convolution of blocked tensors: a childnet of encoding, products of matrices, and decoding (SoftNeuro)."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.cpu.routines.window import Window, is_convolution, lowering
from nnstretch.devices.routine import Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.devices.winograd import POINTS, weight_panels
from nnstretch.graph.layer import Layer

HALVED_BLOCK = 16
"""The block of engines that compute the halves of a vector one by one where they belong to different groups."""

LEAST_GROUP = 4
"""Input channels per group below which encoding costs more than the products save."""

CACHED_WEIGHTS = 1 << 20
"""Encoded weights that a second-level cache holds for the most part."""

ENCODED_BYTES = 1 << 19
"""Encoded input of a block of tiles that a second-level cache holds while weights pass through it."""

FEW_TILES, MANY_TILES = 16, 28
"""Tiles per block with which weights are used often enough to come in time from a second-level cache, and from memory."""

MEMORY_COST = 11
"""Multiply-adds of vectors in the time in which a vector of weights comes from memory."""

UNITS = 4
"""Units of work that there are at least, so that threads can share; where a block's are shared, each thread encodes it."""

TRANSFORM_COST = {2: 60, 4: 160, 6: 400}
"""Multiply-adds of vectors in the time of encoding, or decoding, a vector of tiles."""

WORTH_MEASURING = 1.25
"""A width of tiles is not measured if it is guessed to take so many times as long as the best."""


class WinogradConvolution(Routine):
    """F(m×m, 3×3) for 3×3 convolutions with stride 1 and no dilation.

    Routine parameters:
        m: width of the output tile; larger ones multiply less, read more weights and lose more digits.
        tiles, vectors: the register tile of the products.
        block: tiles that a thread encodes before it multiplies; their encoded input should fit its cache.
        panels: panels of outputs per unit of work; a thread that gets several units of a block encodes it once.
    """

    descriptor = Descriptor("cpu", "float32", "winograd")

    def __init__(self, block: int, tiles: Sequence[tuple[int, int]]) -> None:
        """`block` is the engine's; `tiles` are the register tiles that it has, best first, the last of one vector."""
        self.layout = Layout(block)
        self.tiles = tuple(tiles)

    def supports(self, layer: Layer) -> bool:
        if not is_convolution(layer):
            return False
        window = Window.of(layer)
        plain = window.kernel == (3, 3) and window.strides == (1, 1) and window.dilations == (1, 1)
        return plain and window.channels // window.groups >= LEAST_GROUP

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        window = Window.of(layer)
        costs = {m: self._cost(window, m) for m in POINTS}
        best, second, _ = sorted(costs, key=costs.__getitem__)
        tile = next(tile for tile in self.tiles if self._fits(window, tile[1]))
        worth = (best, second) if costs[second] < WORTH_MEASURING * costs[best] else (best,)
        return tuple(self._setting(window, m, tile) for m in worth)

    def _setting(self, window: Window, m: int, tile: tuple[int, int]) -> dict[str, int]:
        """Few tiles per block where the weights stay in the cache, else as many as use them well while they pass."""
        per_tile = (m + 2) ** 2 * -(-window.channels // self.layout.block) * self.layout.block * 4
        weights = (m + 2) ** 2 * window.channels // window.groups * window.outputs * 4
        at_once = FEW_TILES if weights <= CACHED_WEIGHTS else max(MANY_TILES, ENCODED_BYTES // per_tile)
        tiles = window.batch * -(-window.out_height // m) * -(-window.out_width // m)
        panels = -(-window.outputs // self.layout.block) // tile[1]
        blocks = -(-tiles // at_once)
        blocks += blocks % 2 if blocks > 1 else 0
        chunks = min(panels, -(-UNITS // blocks))
        block = {"block": -(-tiles // blocks), "panels": -(-panels // chunks)}
        return {"m": m, "tiles": tile[0], "vectors": tile[1], **block}

    def _cost(self, window: Window, m: int) -> float:
        """A guess at the time of F(m×m, 3×3), in multiply-adds of vectors.

        Products wait for their weights where those come from memory too slowly.
        """
        tiles = window.batch * -(-window.out_height // m) * -(-window.out_width // m)
        inputs, outputs = (-(-channels // self.layout.block) for channels in (window.channels, window.outputs))
        weights = (m + 2) ** 2 * outputs * window.channels // window.groups
        return max(weights * tiles, weights * MEMORY_COST) + TRANSFORM_COST[m] * tiles * (inputs + outputs)

    def _fits(self, window: Window, vectors: int) -> bool:
        """Whether panels of so many vectors are full, and lie within one group where they can be narrower."""
        if -(-window.outputs // self.layout.block) % vectors:
            return False
        per_group = window.outputs // window.groups
        return vectors == 1 or window.groups == 1 or per_group % (vectors * self.layout.block) == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        window = Window.of(layer)
        m, vectors = parameters["m"], parameters["vectors"]
        kernel = f"winograd_m{m}t{parameters['tiles']}v{vectors}"
        block = self.layout.block
        halved = block == HALVED_BLOCK and vectors == 1
        weights = weight_panels(layer.constants[1], window.groups, vectors * block, block, m, halved)
        lanes = -(-window.outputs // block) * block
        return lowering(
            kernel, layer, weights, lanes, (*window.words(), window.groups, parameters["block"], parameters["panels"])
        )
