"""1 × 1 convolutions by Strassen's algorithm."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.algorithms.strassen import LEAST_HALF, strassen_weights
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.blocked import TiledConvolution
from nnstretch.devices.cpu.routines.convolution.geometry import Window, lowering
from nnstretch.graph.layer import Layer

CACHE_BYTES = 1 << 19
"""What the inputs and sums of one unit of work may take of a second-level cache."""

UNITS = 4
"""Units of work that there are at least, so that threads can share."""

MOST_PARTS = 32
"""Parts into which a thorough search cuts pixels and outputs at most."""


class StrassenConvolution(TiledConvolution[tuple[int, int]]):
    """1 × 1 convolution with seven products of quarters instead of eight (Strassen's algorithm in Winograd's form, one step).

    Routine parameters:
        pixels, vectors: the register tile, which names the kernel.
        tiles: most pairs of tiles per unit of work, whose sums of inputs are kept.
        panels: pairs of panels of outputs per unit of work.
    """

    descriptor = Descriptor("cpu", "float32", "strassen")

    def covers(self, window: Window) -> bool:
        plain = window.taps == window.groups == 1 and window.strides == (1, 1) and window.pads == (0, 0)
        same = (window.height, window.width) == (window.out_height, window.out_width)
        if window.pixels > family("conv_strassen").limits("pixels")[1]:
            return False
        wide = window.channels // self.layout.block // 2 >= LEAST_HALF
        return plain and same and wide and bool(self._fitting(window))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        window = Window.of(layer)
        return tuple(self._setting(window, tile) for tile in self._fitting(window))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        window = Window.of(layer)
        settings = (
            {"pixels": pixels, "vectors": vectors, "tiles": tiles, "panels": panels}
            for pixels, vectors in self._fitting(window)
            for tiles in shares(-(-window.pixels // (2 * pixels)), MOST_PARTS)
            for panels in shares(self._panels(window, vectors), MOST_PARTS)
        )
        return distinct(self.parameter_space(layer), settings)

    def _panels(self, window: Window, vectors: int) -> int:
        """Pairs of panels, and what is left without a partner."""
        blocks = -(-window.outputs // self.layout.block)
        return blocks // (2 * vectors) + blocks % (2 * vectors)

    def _fitting(self, window: Window) -> list[tuple[int, int]]:
        """Tiles that leave few output vectors without a partner and few pixels of a tile unused, best first."""

        def waste(tile: tuple[int, int]) -> float:
            pixels, vectors = tile
            blocks = -(-window.outputs // self.layout.block)
            used = window.pixels / (-(-window.pixels // (2 * pixels)) * 2 * pixels)
            return (blocks % (2 * vectors)) / blocks + (1 - used)

        return sorted((tile for tile in self.tiles if window.pixels >= tile[0] and waste(tile) < 0.5), key=waste)

    def _setting(self, window: Window, tile: tuple[int, int]) -> dict[str, int]:
        pixels, vectors = tile
        panels = self._panels(window, vectors)
        per_tile = 4 * window.channels * pixels * self.element.bytes
        tiles = -(-window.pixels // (2 * pixels))
        per_unit = min(tiles, max(1, CACHE_BYTES // per_tile))
        while 1 < per_unit < tiles and -(-tiles // per_unit) % 2:  # two threads get as many
            per_unit -= 1
        groups = -(-tiles // per_unit)
        chunks = min(panels, max(1, -(-UNITS // (window.batch * groups))))
        return {"pixels": pixels, "vectors": vectors, "tiles": per_unit, "panels": -(-panels // chunks)}

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        window = Window.of(layer)
        block, vectors = self.layout.block, parameters["vectors"]
        kernel = family("conv_strassen").kernel(pixels=parameters["pixels"], vectors=vectors)
        lanes = -(-window.outputs // block) * block
        weights = strassen_weights(layer.constants[1], vectors, block)
        return lowering(
            kernel,
            layer,
            weights,
            lanes,
            n=window.batch,
            c=window.channels,
            pixels=window.pixels,
            o=window.outputs,
            tiles=parameters["tiles"],
            panels=parameters["panels"],
        )
