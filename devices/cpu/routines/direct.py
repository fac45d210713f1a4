"""Direct convolution of blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        """Whether panels of so many vectors exist, and lie within one group where they can be narrower."""
        per_group = window.outputs // window.groups
        if window.groups > 1 and per_group % output_unit(self.layout.block):
            return vectors == 1
        parts = -(-per_group // self.layout.block)
        return -(-parts // -(-parts // vectors)) == vectors

    def _panel_bytes(self, window: Window, vectors: int) -> int:
        return window.channels // window.groups * window.taps * vectors * self.layout.block * 4

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        window = Window.of(layer)
        vectors = parameters["vectors"]
        kernel = f"conv_direct_p{parameters['pixels']}v{vectors}"
        weights = weight_panels(layer.constants[1], window.groups, vectors, self.layout.block)
        words = (*window.words(), window.groups, parameters["tiles"], parameters["order"], parameters["blocks"])
        unit = output_unit(self.layout.block)
        lanes = -(-window.outputs // unit) * unit
        return lowering(kernel, layer, weights, lanes, words)


@dataclass(frozen=True)
class Panel:
    """Output channels that one pass over a part of the weights computes.

    Attributes:
        channels: output channels in the order of the panel's vectors; those beyond the layer's are padding.
        lanes: first and last + 1 of the input channels that it reads.
    """

    channels: tuple[int, ...]
    lanes: tuple[int, int]


def panels(outputs: int, inputs: int, groups: int, vectors: int, block: int) -> list[Panel]:
    """The panels of at most `vectors` output vectors that the direct kernels compute one after another.

    Those of a group where groups end with a vector, or with half of one on engines whose block is 16; else of all channels.
    A half vector, at the end of a set of channels or at its begin, comes last. Panels of a set differ by a vector at most.
    """
    unit = output_unit(block)
    per_group = outputs // groups
    width = per_group if per_group % unit == 0 else outputs
    found = []
    for begin in range(0, outputs, width):
        parts = _vectors(begin, width, block)
        count = -(-len(parts) // vectors)
        for i in range(count):
            chosen = parts[len(parts) * i // count : len(parts) * (i + 1) // count]
            channels = tuple(channel for part in chosen for channel in part)
            low, high = min(channels) // per_group, min(max(channels), outputs - 1) // per_group
            found.append(Panel(channels, (low * inputs // groups, (high + 1) * inputs // groups)))
    return found


def output_unit(block: int) -> int:
    """The direct kernels compute output channels in multiples of this."""
    return block // 2 if block == 16 else block


def _vectors(begin: int, width: int, block: int) -> list[range]:
    """Output channels from `begin` on, as vectors: whole blocks, then perhaps half of one."""
    first = -(-begin // block) * block
    whole, rest = divmod(begin + width - first, block)
    halves = [range(begin, first)] if first > begin else []
    if rest > 0:
        length = output_unit(block) if rest <= output_unit(block) else block
        halves.append(range(first + whole * block, first + whole * block + length))
    return [range(first + i * block, first + (i + 1) * block) for i in range(whole)] + halves


def weight_panels(weight: np.ndarray, groups: int, vectors: int, block: int) -> np.ndarray:
    """Weights O,C/g,KH,KW as the direct kernels read them: panel after panel.

    A panel holds [input block][tap][lane][output channel], with only those lanes that its groups read; where panels read
    different numbers of lanes, each has room for the most.
    """
    outputs, per_group = weight.shape[:2]
    taps = weight.shape[2] * weight.shape[3]
    outputs_per_group = outputs // groups
    source = weight.reshape(outputs, per_group, taps)
    made = panels(outputs, per_group * groups, groups, vectors, block)
    most = max(panel.lanes[1] - panel.lanes[0] for panel in made)
    parts = []
    for panel in made:
        begin, end = panel.lanes
        lanes = np.zeros((end - begin, taps, len(panel.channels)), np.float32)
        channels = np.array(panel.channels)
        for group in range(begin // per_group, end // per_group):
            mine = (channels // outputs_per_group == group) & (channels < outputs)
            at = group * per_group - begin
            lanes[at : at + per_group, :, mine] = source[channels[mine]].transpose(1, 2, 0)
        room = np.zeros(most * taps * len(panel.channels), np.float32)
        room[: lanes.size] = _by_blocks(lanes, begin, block)
        parts.append(room)
    return np.concatenate(parts)


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
