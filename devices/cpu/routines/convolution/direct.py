"""Direct convolution of blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from nnstretch.devices.base.constants import Piece, Prepared
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.blocked import TiledConvolution
from nnstretch.devices.cpu.routines.convolution.geometry import geometry_parameters, lowering
from nnstretch.graph.layer import Layer

UNITS = 48
"""Units of work that up to four threads share without one waiting long for another."""

UNIT_TILES = 3
"""Tiles per unit at least, so that handing it over costs little."""

PASS_BLOCKS = 8
"""Input blocks per pass where the sum is made in several."""

TILES = 3
"""Register tiles worth measuring, of those that are not estimated to be far slower than the best."""

FAR_SLOWER = 1.15

MOST_CHUNKS, MOST_PASSES = 64, 4
"""Parts into which a thorough search cuts pixels and input channels at most."""

CACHE_BYTES = 1 << 20
"""What many second-level caches hold."""

ALL_CHANNELS = 1 << 20
"""Input channels per pass where the sum is made in one; as many as a layer may have."""


# Cycles per multiply-add by the vectors of a panel: few share each input that is loaded, and its address where pixels are
# addressed one by one. Then the same for half vectors.
_SLOWER_FLAT = ((1.03, 1.0, 1.0, 1.01), (1.4, 1.2, 1.06, 1.05))
_SLOWER = ((1.4, 1.05, 1.03, 1.0), (2.2, 1.5, 1.08, 1.05))


@dataclass(frozen=True)
class Tile:
    """A register tile of the engine's: the widest panels of one kernel.

    Attributes:
        pixels: output pixels in registers per vector of the panel.
        vectors: output vectors per panel.
        length: outputs per vector: the engine's block, or half of it.
    """

    pixels: int
    vectors: int
    length: int

    @property
    def outputs(self) -> int:
        """Output channels per panel."""
        return self.vectors * self.length

    def kernel(self, block: int) -> str:
        """Name of the engine's kernel."""
        kind = "v" if self.length == block else "h"
        return family("conv_direct").kernel(pixels=self.pixels, vectors=self.vectors, kind=kind)


class DirectConvolution(TiledConvolution[Tile]):
    """Convolution with any kernel, stride, padding, dilation and groups (NeoCPU, section 3.1).

    Routine parameters, the first three NeoCPU's schedule (section 3.1.1):
        ic_bn: input channels per pass; fewer keep the weights in the first-level cache and sum up in memory.
        oc_bn: output channels per panel of weights.
        reg_n: output pixels that stay in registers, times the vectors of a panel.
        tiles: tiles per unit of work, which threads share out.
        order: 0 if a panel of weights stays in the cache while pixels pass, 1 if pixels stay.

    NeoCPU's unroll_ker has no counterpart: the loop over a block's input channels is always unrolled a little, and that over
    the kernel's positions never, because each has hundreds of multiply-adds and its end is predicted.
    """

    descriptor = Descriptor("cpu", "float32", "direct")

    def covers(self, geometry: KernelGeometry) -> bool:
        return True

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        fitting = [tile for tile in self.tiles if self._fits(geometry, tile)]
        cycles = {tile: self._cycles(geometry, tile) for tile in fitting}
        fitting.sort(key=lambda tile: cycles[tile])
        limit = FAR_SLOWER * cycles[fitting[0]]
        best = fitting[0]
        settings = [self._setting(geometry, tile) for tile in fitting[:TILES] if cycles[tile] <= limit]
        by_pixels = self._setting_by_pixels(geometry, best)
        if self._traffic(geometry, by_pixels) < 0.5 * self._traffic(geometry, settings[0]):
            settings.insert(0, by_pixels)
        elif self._traffic(geometry, by_pixels) < self._traffic(geometry, settings[0]):
            settings.append(by_pixels)
        panel = self.element.bytes * geometry.channels // geometry.groups * geometry.taps * best.outputs
        if panel > 4 * CACHE_BYTES:
            settings.append({**settings[0], "ic_bn": PASS_BLOCKS * self.layout.block})
        return tuple(settings)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        blocks = -(-geometry.channels // geometry.groups // self.layout.block)
        passes = (ALL_CHANNELS, *(self.layout.block * part for part in shares(blocks, MOST_PASSES)[1:]))
        settings = (
            {**self._setting(geometry, tile), "ic_bn": channels, "tiles": tiles, "order": order}
            for tile in self.tiles
            if self._fits(geometry, tile)
            for channels in passes
            for tiles in shares(-(-geometry.pixels // tile.pixels), MOST_CHUNKS)
            for order in (0, 1)
        )
        return distinct(self.parameter_space(layer), settings)

    def _setting(self, geometry: KernelGeometry, tile: Tile) -> dict[str, int]:
        """Weights stay while pixels pass, in units that several threads can share evenly."""
        tiles = -(-geometry.pixels // tile.pixels)
        panels = geometry.batch * -(-geometry.out_channels // tile.outputs)
        chunks = max(1, min(-(-UNITS // panels), tiles // UNIT_TILES))
        return {
            "ic_bn": ALL_CHANNELS,
            "oc_bn": tile.outputs,
            "reg_n": tile.pixels,
            "tiles": -(-tiles // chunks),
            "order": 0,
        }

    def _setting_by_pixels(self, geometry: KernelGeometry, tile: Tile) -> dict[str, int]:
        """Pixels stay while weights pass, in units whose inputs take a quarter of a cache."""
        setting = self._setting(geometry, tile)
        tiles = -(-geometry.pixels // tile.pixels)
        chunks = -(-4 * self._input_bytes(geometry) // CACHE_BYTES)
        return {**setting, "order": 1, "tiles": min(setting["tiles"], max(UNIT_TILES, -(-tiles // chunks)))}

    def _input_bytes(self, geometry: KernelGeometry) -> int:
        return self.element.bytes * geometry.channels * geometry.height * geometry.width

    def _traffic(self, geometry: KernelGeometry, setting: Parameters) -> float:
        """Bytes that come from beyond a second-level cache."""
        inputs = self._input_bytes(geometry)
        weights = self.element.bytes * geometry.channels // geometry.groups * geometry.taps * geometry.out_channels
        passes = -(-geometry.out_channels // geometry.groups // setting["oc_bn"])
        chunks = -(-geometry.pixels // (setting["tiles"] * setting["reg_n"]))
        if setting["order"]:
            return inputs + weights * (chunks if 2 * weights > CACHE_BYTES else 1)
        return inputs * (passes if 2 * inputs > CACHE_BYTES else 1) + weights

    def _fits(self, geometry: KernelGeometry, tile: Tile) -> bool:
        """Whether there are panels of so many vectors, which lie within one group where they can be narrower.

        Half vectors are for channels that end with half a block.
        """
        if (
            tile.length < self.layout.block
            and not 0 < geometry.out_channels // geometry.groups % self.layout.block <= tile.length
        ):
            return False
        vectors = set_vectors(geometry.out_channels, geometry.groups, tile.length)
        per_group = geometry.out_channels // geometry.groups
        if geometry.groups > 1 and per_group % tile.length:
            return tile.vectors == 1
        panels = -(-vectors // tile.vectors)
        return -(-vectors // panels) == tile.vectors

    def _cycles(self, geometry: KernelGeometry, tile: Tile) -> float:
        """About how long a layer takes: good for an order of tiles, no time.

        Multiply-adds of a whole vector take a cycle and of half a one half of it, if loads keep up; starting and storing a tile
        costs something per output vector, per pixel and in itself.
        """
        pixels = {t.vectors: t.pixels for t in self.tiles if t.length == tile.length}
        flat = geometry.taps == 1 and geometry.strides == (1, 1)
        slower = (_SLOWER_FLAT if flat else _SLOWER)[tile.length < self.layout.block]
        cycles = 0.0
        for panel in panels(geometry.out_channels, geometry.channels, geometry.groups, tile):
            vectors = panel.outputs // tile.length
            lanes, work = (panel.end - panel.begin) * geometry.taps, panel.outputs / self.layout.block
            full, left = divmod(geometry.pixels, pixels[vectors])
            for count, times in ((pixels[vectors], full), (computed_pixels(left, pixels[vectors]), int(left > 0))):
                multiply_adds = lanes * work * (count * slower[vectors - 1] + 0.15)
                cycles += times * (multiply_adds + 3 * count * work + (30 if flat else 30 + 8 * count))
        return cycles * geometry.batch

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        (tile,) = (t for t in self.tiles if (t.outputs, t.pixels) == (parameters["oc_bn"], parameters["reg_n"]))
        weights = weight_panels(layer.constants[1], geometry.groups, tile, self.layout.block)
        blocks = -(-parameters["ic_bn"] // self.layout.block)
        lanes = -(-geometry.out_channels // tile.length) * tile.length
        return lowering(
            tile.kernel(self.layout.block),
            layer,
            weights,
            lanes,
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            tiles=parameters["tiles"],
            order=parameters["order"],
            blocks=blocks,
        )


def computed_pixels(count: int, most: int) -> int:
    """How many pixels a tile of up to `most` computes where `count` are left: it has code for a quarter, half and all."""
    quarter, half = (most + 3) // 4, (most + 1) // 2
    return 0 if count == 0 else quarter if count <= quarter else half if count <= half else most


def set_vectors(outputs: int, groups: int, length: int) -> int:
    """Vectors per set of output channels: a group, where groups are made of whole vectors, else all."""
    per_group = outputs // groups
    return per_group // length if per_group % length == 0 else -(-outputs // length)


@dataclass(frozen=True)
class Panel:
    """Output channels [first, first + outputs) and the input channels [begin, end) that they read.

    Output channels beyond the layer's are padding.
    """

    first: int
    outputs: int
    begin: int
    end: int


def panels(outputs: int, inputs: int, groups: int, tile: Tile) -> list[Panel]:
    """The panels that the kernel of `tile` computes one after another; those of a set differ by a vector at most."""
    vectors = set_vectors(outputs, groups, tile.length)
    count = -(-vectors // tile.vectors)
    per_group = outputs // groups
    found = []
    for begin in range(0, -(-outputs // tile.length), vectors):
        for i in range(count):
            first, end = (tile.length * (begin + vectors * k // count) for k in (i, i + 1))
            low, high = first // per_group, (min(end, outputs) - 1) // per_group + 1
            found.append(Panel(first, end - first, low * inputs // groups, high * inputs // groups))
    return found


def weight_panels(weight: np.ndarray, groups: int, tile: Tile, block: int) -> Prepared:
    """Weights O,C/g,KH,KW as the direct kernels read them: panel after panel.

    A panel holds [input block][tap][lane][output channel], with only those lanes that its groups read; where panels read
    different numbers of lanes, each has room for the most.
    """
    outputs, per_group = weight.shape[:2]
    taps = weight.shape[2] * weight.shape[3]
    source = weight.reshape(outputs, per_group, taps)
    made = panels(outputs, per_group * groups, groups, tile)
    most = max(panel.end - panel.begin for panel in made)
    write = (
        partial(_write_panel, source, block) if groups == 1 else partial(_write_grouped_panel, source, groups, block)
    )
    begins = accumulate((most * taps * panel.outputs for panel in made), initial=0)
    pieces = [
        Piece(begin, most * taps * panel.outputs, partial(write, panel))
        for begin, panel in zip(begins, made, strict=False)
    ]
    return Prepared(most * taps * sum(panel.outputs for panel in made), pieces)


def _write_panel(source: np.ndarray, block: int, panel: Panel, room: np.ndarray) -> None:
    """Writes a panel of weights O,C,taps that all input channels have a part in."""
    rows = source[panel.first : panel.first + panel.outputs]
    count, channels, taps = rows.shape
    body = channels // block * block
    full = room[: body * taps * panel.outputs].reshape(-1, taps, block, panel.outputs)
    full[..., :count] = rows[:, :body].reshape(count, -1, block, taps).transpose(1, 3, 2, 0)
    left = room[body * taps * panel.outputs :].reshape(taps, channels - body, panel.outputs)
    left[..., :count] = rows[:, body:].transpose(2, 1, 0)


def _write_grouped_panel(source: np.ndarray, groups: int, block: int, panel: Panel, room: np.ndarray) -> None:
    """Writes a panel of weights O,C/g,taps; room that it does not need stays as it is."""
    outputs, per_group, taps = source.shape
    outputs_per_group = outputs // groups
    lanes = np.zeros((panel.end - panel.begin, taps, panel.outputs), np.float32)
    for group in range(panel.begin // per_group, panel.end // per_group):
        low = max(panel.first, group * outputs_per_group)
        high = min(panel.first + panel.outputs, (group + 1) * outputs_per_group)
        at = group * per_group - panel.begin
        lanes[at : at + per_group, :, low - panel.first : high - panel.first] = source[low:high].transpose(1, 2, 0)
    room[: lanes.size] = _by_blocks(lanes, panel.begin, block)


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
