"""Direct convolution of blocked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from nnstretch.devices.base.constants import Piece, Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, geometry_parameters, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

UNITS = 48  # units of work that balance the load of four threads
UNIT_TILES = 3  # minimum tiles per unit, so that scheduling it costs little
PASS_BLOCKS = 8  # input blocks per pass if a sum takes several passes
TILES = 3  # maximum register tiles measured per layer
FAR_SLOWER = 1.15  # tiles with a larger ratio of estimated time to the best tile's are not measured
MOST_CHUNKS, MOST_PASSES = 64, 4  # maximum parts into which a thorough search divides pixels and input channels
CACHE_BYTES = 1 << 20  # size of many second-level caches
ALL_CHANNELS = 1 << 20  # input channels per pass if a sum takes one pass: the maximum of a layer


# Cycles per multiply-add by vectors per panel, for whole and half vectors: in narrow panels, few multiply-adds share the load
# of an input and, unless the convolution is flat, its address computation.
_SLOWER_FLAT = ((1.03, 1.0, 1.0, 1.01), (1.4, 1.2, 1.06, 1.05))
_SLOWER = ((1.4, 1.05, 1.03, 1.0), (2.2, 1.5, 1.08, 1.05))


@dataclass(frozen=True)
class Tile:
    """A register tile of the engine: the widest panel of one kernel.

    Attributes:
        pixels: output pixels whose sums stay in registers.
        vectors: output vectors per panel.
        length: outputs per vector; the engine's block or half of it.
    """

    pixels: int
    vectors: int
    length: int

    @property
    def outputs(self) -> int:
        """Output channels per panel."""
        return self.vectors * self.length

    def kernel(self, block: int) -> str:
        """Name of the kernel in an engine with this block."""
        kind = "v" if self.length == block else "h"
        return family("conv_direct").kernel(pixels=self.pixels, vectors=self.vectors, kind=kind)


class DirectConvolution(BlockedConvolution):
    """Convolution with any kernel, stride, padding, dilation and groups (NeoCPU, section 3.1).

    Routine parameters; the first three are NeoCPU's schedule (section 3.1.1):
        ic_bn: input channels per pass; with fewer, weights stay in the first-level cache and partial sums go to memory.
        oc_bn: output channels per panel of weights.
        reg_n: output pixels of the register tile.
        tiles: register tiles per unit of work.
        order: 0 to keep a panel of weights in the cache over all pixels, 1 to keep pixels over all panels.

    NeoCPU's unroll_ker has no counterpart. The loop over a block's input channels is always partly unrolled. The loop over the
    kernel's taps never is: each iteration has hundreds of multiply-adds.
    """

    descriptor = Descriptor("cpu", "float32", "direct")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        lengths = {"v": isa.block, "h": isa.block // 2}
        self.tiles = tuple(
            Tile(pixels, vectors, lengths[str(kernel.tile["kind"])])
            for kernel in family("conv_direct").on(isa)
            for pixels, vectors in [kernel.numbers("pixels", "vectors")]
        )

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
        """The setting that keeps weights in the cache, with units that several threads can share evenly."""
        tiles = -(-geometry.pixels // tile.pixels)
        panels = geometry.batch * -(-geometry.out_channels // tile.outputs)
        chunks = max(1, min(-(-self.units(UNITS) // panels), tiles // UNIT_TILES))
        return {
            "ic_bn": ALL_CHANNELS,
            "oc_bn": tile.outputs,
            "reg_n": tile.pixels,
            "tiles": -(-tiles // chunks),
            "order": 0,
        }

    def _setting_by_pixels(self, geometry: KernelGeometry, tile: Tile) -> dict[str, int]:
        """The setting that keeps pixels in the cache, with units whose inputs take a quarter of it."""
        setting = self._setting(geometry, tile)
        tiles = -(-geometry.pixels // tile.pixels)
        chunks = -(-4 * self._input_bytes(geometry) // CACHE_BYTES)
        return {**setting, "order": 1, "tiles": min(setting["tiles"], max(UNIT_TILES, -(-tiles // chunks)))}

    def _input_bytes(self, geometry: KernelGeometry) -> int:
        return self.element.bytes * geometry.channels * geometry.height * geometry.width

    def _traffic(self, geometry: KernelGeometry, setting: Parameters) -> float:
        """Bytes read from beyond the second-level cache."""
        inputs = self._input_bytes(geometry)
        weights = self.element.bytes * geometry.channels // geometry.groups * geometry.taps * geometry.out_channels
        passes = -(-geometry.out_channels // geometry.groups // setting["oc_bn"])
        chunks = -(-geometry.pixels // (setting["tiles"] * setting["reg_n"]))
        if setting["order"]:
            return inputs + weights * (chunks if 2 * weights > CACHE_BYTES else 1)
        return inputs * (passes if 2 * inputs > CACHE_BYTES else 1) + weights

    def _fits(self, geometry: KernelGeometry, tile: Tile) -> bool:
        """Whether the layer has panels as wide as the tile; with groups, each panel must lie within one group.

        Tiles of half vectors are for groups whose last block is at most half full.
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
        """Estimated cycles of a layer, for comparing tiles only.

        A multiply-add takes a cycle for a whole vector and half a cycle for a half vector, if loads keep up. Starting and
        storing a tile has a constant cost, a cost per output vector and a cost per pixel.
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
    """Pixels that a tile of `most` pixels computes for the last `count`: kernels have code for a quarter, half and all."""
    quarter, half = (most + 3) // 4, (most + 1) // 2
    return 0 if count == 0 else quarter if count <= quarter else half if count <= half else most


def set_vectors(outputs: int, groups: int, length: int) -> int:
    """Vectors per set of output channels: a set is a group if groups consist of whole vectors, else all channels."""
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
    """The panels of the kernel of `tile`, in order; widths within a set differ by at most one vector."""
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

    A panel holds [input block][tap][lane][output channel] with only the lanes that its groups read. All panels reserve memory
    for the largest number of lanes.
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
    recipe = ("direct", Source(weight), groups, tile.length, tile.vectors, block)
    return Prepared(most * taps * sum(panel.outputs for panel in made), pieces, recipe=recipe)


def _write_panel(source: np.ndarray, block: int, panel: Panel, target: np.ndarray) -> None:
    """Writes a panel of weights O,C,taps of one group."""
    rows = source[panel.first : panel.first + panel.outputs]
    count, channels, taps = rows.shape
    body = channels // block * block
    full = target[: body * taps * panel.outputs].reshape(-1, taps, block, panel.outputs)
    full[..., :count] = rows[:, :body].reshape(count, -1, block, taps).transpose(1, 3, 2, 0)
    left = target[body * taps * panel.outputs :].reshape(taps, channels - body, panel.outputs)
    left[..., :count] = rows[:, body:].transpose(2, 1, 0)


def _write_grouped_panel(source: np.ndarray, groups: int, block: int, panel: Panel, target: np.ndarray) -> None:
    """Writes a panel of weights O,C/g,taps; unused memory at its end keeps its value."""
    outputs, per_group, taps = source.shape
    outputs_per_group = outputs // groups
    lanes = np.zeros((panel.end - panel.begin, taps, panel.outputs), np.float32)
    for group in range(panel.begin // per_group, panel.end // per_group):
        low = max(panel.first, group * outputs_per_group)
        high = min(panel.first + panel.outputs, (group + 1) * outputs_per_group)
        at = group * per_group - panel.begin
        lanes[at : at + per_group, :, low - panel.first : high - panel.first] = source[low:high].transpose(1, 2, 0)
    target[: lanes.size] = _by_blocks(lanes, panel.begin, block)


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


ROUTINES = (DirectConvolution,)
