"""Direct convolution of blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.cpu.routines.window import Window, is_convolution, lowering
from nnstretch.devices.routine import Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.graph.layer import Layer

PANEL_BYTES = 1 << 20
"""Weights that many second-level caches hold."""

UNITS = 48
"""Units of work that up to four threads share without one waiting long for another."""

UNIT_TILES = 3
"""Tiles per unit at least, so that handing it over costs little."""

PASS_BLOCKS = 8
"""Input blocks per pass where the sum is made in several."""

ALL_BLOCKS = 1 << 20
"""Input blocks per pass where the sum is made in one."""


class DirectConvolution(Routine):
    """Convolution with any kernel, stride, padding, dilation and groups (NeoCPU, section 3.1).

    Routine parameters:
        pixels, vectors: the register tile, which names the kernel.
        tiles: tiles per unit of work, which threads share out.
        order: 0 if a panel of weights stays in the cache while pixels pass, 1 if pixels stay.
        blocks: input blocks per pass; smaller ones keep the weights in the first-level cache and sum up in memory.
    """

    descriptor = Descriptor("cpu", "float32", "direct")

    def __init__(self, block: int, tiles: Sequence[tuple[int, int]]) -> None:
        """`block` is the engine's; `tiles` are the register tiles that it has, best first."""
        self.layout = Layout(block)
        self.tiles = tuple(tiles)

    def supports(self, layer: Layer) -> bool:
        return is_convolution(layer)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.layout,) * len(layer.activations), (self.layout,)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        window = Window.of(layer)
        fitting = [tile for tile in self.tiles if self._fits(window, tile[1])]
        # The first that leaves room for the pixels beside its panel; a stable sort keeps the order among those.
        fitting.sort(key=lambda tile: self._panel_bytes(window, tile[1]) > PANEL_BYTES)
        settings = [self._setting(window, tile) for tile in fitting]
        settings += [{**setting, "order": 1} for setting in settings[:2]]
        if window.taps > 1 and window.channels // window.groups > PASS_BLOCKS * self.layout.block:
            settings += [{**setting, "blocks": PASS_BLOCKS} for setting in settings[:2]]
        return tuple(settings)

    def _setting(self, window: Window, tile: tuple[int, int]) -> dict[str, int]:
        """Weights stay while pixels pass, in units that several threads can share evenly."""
        pixels, vectors = tile
        tiles = -(-window.pixels // pixels)
        panels = window.batch * -(-window.outputs // (vectors * self.layout.block))
        chunks = max(1, min(-(-UNITS // panels), tiles // UNIT_TILES))
        per_unit = -(-tiles // chunks)
        return {"pixels": pixels, "vectors": vectors, "tiles": per_unit, "order": 0, "blocks": ALL_BLOCKS}

    def _fits(self, window: Window, vectors: int) -> bool:
        """Whether panels of so many vectors are full, and lie within one group where they can be narrower."""
        if -(-window.outputs // self.layout.block) % vectors:
            return False
        per_group = window.outputs // window.groups
        return vectors == 1 or window.groups == 1 or per_group % (vectors * self.layout.block) == 0

    def _panel_bytes(self, window: Window, vectors: int) -> int:
        return window.channels // window.groups * window.taps * vectors * self.layout.block * 4

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        window = Window.of(layer)
        vectors = parameters["vectors"]
        kernel = f"conv_direct_p{parameters['pixels']}v{vectors}"
        weights = weight_panels(layer.constants[1], window.groups, vectors * self.layout.block, self.layout.block)
        words = (*window.words(), window.groups, parameters["tiles"], parameters["order"], parameters["blocks"])
        lanes = -(-window.outputs // self.layout.block) * self.layout.block
        return lowering(kernel, layer, weights, lanes, words)


def weight_panels(weight: np.ndarray, groups: int, width: int, block: int) -> np.ndarray:
    """Weights O,C/g,KH,KW as the direct kernels read them: one row per panel of `width` output channels.

    A panel holds [input block][tap][lane][output channel], with only those lanes that its groups read.
    """
    outputs, per_group = weight.shape[:2]
    taps = weight.shape[2] * weight.shape[3]
    outputs_per_group = outputs // groups
    firsts = range(0, -(-outputs // block) * block, width)
    ranges = []
    for first in firsts:
        last = min(first + width, outputs) - 1
        ranges.append((first // outputs_per_group * per_group, (last // outputs_per_group + 1) * per_group))
    panels = np.zeros((len(firsts), max(end - begin for begin, end in ranges) * taps * width), np.float32)
    source = weight.reshape(outputs, per_group, taps)
    for panel, first, (begin, end) in zip(panels, firsts, ranges, strict=True):
        lanes = np.zeros((end - begin, taps, width), np.float32)
        for group_first in range(first // outputs_per_group * outputs_per_group, first + width, outputs_per_group):
            low, high = max(first, group_first), min(first + width, group_first + outputs_per_group, outputs)
            at = group_first // outputs_per_group * per_group - begin
            if low < high:
                lanes[at : at + per_group, :, low - first : high - first] = source[low:high].transpose(1, 2, 0)
        panel[: lanes.size] = _by_blocks(lanes, begin, block)
    return panels


def _by_blocks(lanes: np.ndarray, begin: int, block: int) -> np.ndarray:
    """Reorders [lane][tap][output] to [input block][tap][lane][output]; the first lane is input channel `begin`."""
    head = min(-begin % block, len(lanes))
    body = (len(lanes) - head) // block * block
    taps, width = lanes.shape[1:]
    parts = (
        lanes[:head].transpose(1, 0, 2),
        lanes[head : head + body].reshape(-1, block, taps, width).transpose(0, 2, 1, 3),
        lanes[head + body :].transpose(1, 0, 2),
    )
    return np.concatenate([part.reshape(-1) for part in parts])
