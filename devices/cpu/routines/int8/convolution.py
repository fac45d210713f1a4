"""Convolutions of int8 in the blocked layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from nnstretch.devices.algorithms.quantized import parameters_of
from nnstretch.devices.algorithms.quantized_products import QUAD, corrected_bias, has_int8_operands, padded
from nnstretch.devices.base.constants import Piece, Prepared, Source, whole
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, distinct, shares
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.converted_rows import ROW_BYTES, ConvertedRows
from nnstretch.devices.cpu.routines.converted_rows import UNITS as UNITS_OF_ROWS
from nnstretch.devices.cpu.routines.convolution.base import BlockedConvolution, geometry_parameters
from nnstretch.devices.cpu.routines.convolution.direct import computed_pixels, set_vectors
from nnstretch.devices.cpu.routines.int8.weighted import QUAD_PRODUCTS, has_narrow_kernels, kernel_for, lowering
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.layer import Layer

UNITS = 48  # units of work that balance the load of four threads
UNIT_TILES = 3  # minimum tiles per unit, so that scheduling it costs little
TILES = 3  # maximum register tiles measured per layer
FAR_SLOWER = 1.15  # tiles with a larger ratio of estimated time to the best tile's are not measured
MOST_CHUNKS = 64  # maximum parts into which a thorough search divides pixels
CACHE_BYTES = 1 << 20  # size of many second-level caches
PLANAR_ROWS = 16  # maximum output rows of a planar unit: few enough for the first-level cache
PLANAR_UNITS = 16  # planar units of work that four threads share evenly
MOST_TAPS = 512  # kernels of more taps have sums beyond the whole numbers of float32
UNIT_BYTES = 1 << 15  # minimum bytes of a depthwise unit of work, so that scheduling it costs little
FEW_ROWS = 8  # output rows of the smaller depthwise units that are measured
STRIP = 14  # columns of the widest strips of the depthwise kernel
LEAST_PIXELS = 7  # fewer leave most of a strip unused
MOST_GROUPS = 4  # groups whose outputs the kernel with converted rows may compute in one vector
COLUMN_QUADS = 16  # quads of all these groups that lie beside each other in converted rows

_SLOWER_FLAT = (1.03, 1.0, 1.2, 1.0)
_SLOWER = (1.25, 1.06, 1.25, 1.0)
"""Cycles per instruction that adds a quad, by vectors per panel, measured on Zen 4: in narrow panels few share the load of an
input and, unless the convolution is flat, the computation of its address."""


class Int8Convolution(BlockedConvolution):
    """A convolution of int8."""

    def supports(self, layer: Layer) -> bool:
        if layer.op != "Conv" or len(layer.type_of(0).shape) != 4 or min(layer.ints("pads")) < 0:
            return False
        geometry = KernelGeometry.of(layer)
        fits = family("conv_int8").takes(geometry_parameters(geometry), "geometry")
        return fits and has_int8_operands(layer) and self.covers(geometry)


class DirectInt8Convolution(Int8Convolution):
    """Convolution with any kernel, stride, padding, dilation and groups, except depthwise ones.

    Routine parameters:
        oc_bn: output channels per panel of weights.
        reg_n: output pixels of the register tile.
        tiles: register tiles per unit of work.
        order: 0 to keep a panel of weights in the cache over all pixels, 1 to keep pixels over all panels.
    """

    descriptor = Descriptor("cpu", "int8", "direct")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.tiles = family("conv_int8").tiles(isa)

    def covers(self, geometry: KernelGeometry) -> bool:
        return geometry.group_in > 1 or geometry.group_out > 1 or geometry.groups == 1

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        cycles = {tile: self._cycles(geometry, tile) for tile in self.tiles if self._fits(geometry, tile)}
        fitting = sorted(cycles, key=lambda tile: cycles[tile])
        limit = FAR_SLOWER * cycles[fitting[0]]
        settings = [self._setting(geometry, tile) for tile in fitting[:TILES] if cycles[tile] <= limit]
        by_pixels = self._setting_by_pixels(geometry, fitting[0])
        if self._traffic(geometry, by_pixels) < self._traffic(geometry, settings[0]):
            settings.append(by_pixels)
        return distinct(settings)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        settings = (
            {**self._setting(geometry, tile), "tiles": tiles, "order": order}
            for tile in self.tiles
            if self._fits(geometry, tile)
            for tiles in shares(-(-geometry.pixels // tile[0]), MOST_CHUNKS)
            for order in (0, 1)
        )
        return distinct(self.parameter_space(layer), settings)

    def _setting(self, geometry: KernelGeometry, tile: tuple[int, int]) -> dict[str, int]:
        """The setting that keeps weights in the cache, with units that several threads can share evenly."""
        pixels, vectors = tile
        outputs = vectors * self.layout.block
        tiles = -(-geometry.pixels // pixels)
        panels = geometry.batch * -(-geometry.out_channels // outputs)
        chunks = max(1, min(-(-self.units(UNITS) // panels), tiles // UNIT_TILES))
        return {"oc_bn": outputs, "reg_n": pixels, "tiles": -(-tiles // chunks), "order": 0}

    def _setting_by_pixels(self, geometry: KernelGeometry, tile: tuple[int, int]) -> dict[str, int]:
        """The setting that keeps pixels in the cache, with units whose inputs take a quarter of it."""
        setting = self._setting(geometry, tile)
        tiles = -(-geometry.pixels // tile[0])
        chunks = -(-4 * self._input_bytes(geometry) // CACHE_BYTES)
        return {**setting, "order": 1, "tiles": min(setting["tiles"], max(UNIT_TILES, -(-tiles // chunks)))}

    def _input_bytes(self, geometry: KernelGeometry) -> int:
        block = self.layout.block
        return -(-geometry.channels // block) * block * geometry.height * geometry.width

    def _traffic(self, geometry: KernelGeometry, setting: Parameters) -> float:
        """Bytes read from beyond the second-level cache."""
        inputs = self._input_bytes(geometry)
        weights = geometry.group_in * geometry.taps * geometry.out_channels
        passes = -(-geometry.group_out // setting["oc_bn"])
        chunks = -(-geometry.pixels // (setting["tiles"] * setting["reg_n"]))
        if setting["order"]:
            return inputs + weights * (chunks if 2 * weights > CACHE_BYTES else 1)
        return inputs * (passes if 2 * inputs > CACHE_BYTES else 1) + weights

    def _fits(self, geometry: KernelGeometry, tile: tuple[int, int]) -> bool:
        """Whether the layer has panels as wide as the tile; panels that meet several groups have one vector."""
        block, (_, most) = self.layout.block, tile
        if geometry.groups > 1 and geometry.group_out % block:
            return most == 1
        vectors = set_vectors(geometry.out_channels, geometry.groups, block)
        return -(-vectors // -(-vectors // most)) == most

    def _cycles(self, geometry: KernelGeometry, tile: tuple[int, int]) -> float:
        """Estimated cycles of a layer, for comparing tiles only.

        Starting and storing a tile has a constant cost, a cost per vector and, unless the convolution is flat, per pixel.
        """
        pixels = {vectors: count for count, vectors in self.tiles}
        flat = geometry.taps == 1 and geometry.strides == (1, 1)
        slower, cycles = _SLOWER_FLAT if flat else _SLOWER, 0.0
        for panel in panels(geometry.out_channels, geometry.channels, geometry.groups, tile[1], self.layout.block):
            vectors = panel.outputs // self.layout.block
            quads = (panel.end - panel.begin) * geometry.taps
            full, left = divmod(geometry.pixels, pixels[vectors])
            for count, times in ((pixels[vectors], full), (computed_pixels(left, pixels[vectors]), int(left > 0))):
                sums = quads * (count * vectors * slower[vectors - 1] + 0.5)
                cycles += times * (sums + 3 * count * vectors + (20 if flat else 20 + 10 * count))
        return cycles * geometry.batch

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry, block = KernelGeometry.of(layer), self.layout.block
        vectors = parameters["oc_bn"] // block
        return lowering(
            kernel_for(layer, block, "conv_int8", pixels=parameters["reg_n"], vectors=vectors),
            layer,
            weight_panels(layer.constants[1], geometry.groups, vectors, block),
            corrected_bias(layer, -(-geometry.out_channels // block) * block),
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            tiles=parameters["tiles"],
            order=parameters["order"],
            zero=parameters_of(layer.type_of(0)).zero_point,
        )


@dataclass(frozen=True)
class QuadPanel:
    """Output channels [first, first + outputs) and the quads of input channels [begin, end) that they read.

    Output channels beyond the layer's are padding.
    """

    first: int
    outputs: int
    begin: int
    end: int


def panels(outputs: int, inputs: int, groups: int, most: int, block: int) -> list[QuadPanel]:
    """The panels of kernels with at most `most` vectors per panel, in order; widths in a set differ by at most one vector."""
    vectors = set_vectors(outputs, groups, block)
    count, per_group = -(-vectors // most), outputs // groups
    found = []
    for begin in range(0, -(-outputs // block), vectors):
        for i in range(count):
            first, end = (block * (begin + vectors * k // count) for k in (i, i + 1))
            low, high = first // per_group, (min(end, outputs) - 1) // per_group + 1
            lanes = low * inputs // groups, high * inputs // groups
            found.append(QuadPanel(first, end - first, lanes[0] // QUAD, -(-lanes[1] // QUAD)))
    return found


def weight_panels(weight: np.ndarray, groups: int, most: int, block: int) -> Prepared:
    """Weights O,C/g,KH,KW as the kernels with at most `most` vectors per panel read them: panel after panel.

    A panel holds [input block][tap][quad][output channel][4] with only the quads that its groups read. All panels reserve
    memory for the largest number of quads.
    """
    outputs, per_group = weight.shape[:2]
    taps = weight.shape[2] * weight.shape[3]
    source = weight.reshape(outputs, per_group, taps)
    made = panels(outputs, per_group * groups, groups, most, block)
    per_output = max(panel.end - panel.begin for panel in made) * QUAD * taps
    begins = accumulate((per_output * panel.outputs for panel in made), initial=0)
    pieces = [
        Piece(begin, per_output * panel.outputs, partial(_write_panel, source, groups, block, panel))
        for begin, panel in zip(begins, made, strict=False)
    ]
    size = per_output * sum(panel.outputs for panel in made)
    return Prepared(size, pieces, "int8", ("int8 direct", Source(weight), groups, most, block))


def _write_panel(source: np.ndarray, groups: int, block: int, panel: QuadPanel, target: np.ndarray) -> None:
    """Writes a panel of weights O,C/g,taps; unused memory at its end keeps its value."""
    outputs, per_group, taps = source.shape
    group_out, quads = outputs // groups, panel.end - panel.begin
    lanes = np.zeros((panel.outputs, quads * QUAD, taps), np.int8)
    last = min(panel.first + panel.outputs, outputs)
    for group in range(panel.first // group_out, (last - 1) // group_out + 1):
        low, high = max(panel.first, group * group_out), min(last, (group + 1) * group_out)
        at = group * per_group - panel.begin * QUAD
        lanes[low - panel.first : high - panel.first, at : at + per_group] = source[low:high]
    by_quad = lanes.reshape(panel.outputs, quads, QUAD, taps)
    each = block // QUAD
    head = min(-panel.begin % each, quads)
    body = head + (quads - head) // each * each
    at = 0
    for begin, end, size in ((0, head, head), (head, body, each), (body, quads, quads - body)):
        if begin == end:
            continue
        part = by_quad[:, begin:end].reshape(panel.outputs, -1, size, QUAD, taps).transpose(1, 4, 2, 0, 3)
        target[at : at + part.size].reshape(part.shape)[:] = part
        at += part.size


class PlanarInt8Convolution(Int8Convolution):
    """First layers: reads NCHW with fewer channels than a block, and writes the blocked layout.

    Routine parameters:
        pixels, vectors: the register tile, which names the kernel.
        rows: output rows per unit of work.
    """

    descriptor = Descriptor("cpu", "int8", "planar")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self.tiles = family("conv_int8_planar").tiles(isa)

    def covers(self, geometry: KernelGeometry) -> bool:
        few = geometry.groups == 1 and geometry.channels < self.layout.block and geometry.dilations[1] == 1
        rows = (PLANAR_ROWS - 1) * geometry.strides[0] + geometry.extents[0]
        columns = (geometry.out_width + 2 * STRIP) * geometry.strides[1] + geometry.kernel[1] + QUAD
        return few and geometry.channels * rows * columns <= ROW_BYTES

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(layer, parameters)
        return (PLAIN, *inputs[1:]), outputs

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        blocks = -(-geometry.out_channels // self.layout.block)
        rows = max(1, min(PLANAR_ROWS, -(-geometry.batch * geometry.out_height // self.units(PLANAR_UNITS))))
        fitting = [tile for tile in self.tiles if blocks % tile[1] == 0]
        return tuple({"pixels": pixels, "vectors": vectors, "rows": rows} for pixels, vectors in fitting[:2])

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        default = self.parameter_space(layer)
        height = KernelGeometry.of(layer).out_height
        rows = [part for part in shares(height, height) if part <= PLANAR_ROWS]
        return distinct(default, ({**setting, "rows": part} for setting in default for part in rows))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry, block = KernelGeometry.of(layer), self.layout.block
        vectors, weight = parameters["vectors"], layer.constants[1]
        lanes = -(-geometry.out_channels // block) * block
        quads = -(-geometry.kernel[1] * geometry.channels // QUAD)

        def by_panel() -> np.ndarray:
            """Weights as [panel][kernel row][quad][lane][4]; of a kernel row the channels of a column are neighbours."""
            outputs, channels, height, width = weight.shape
            made = np.zeros((lanes, height, quads * QUAD), np.int8)
            made[:outputs, :, : width * channels] = weight.transpose(0, 2, 3, 1).reshape(outputs, height, -1)
            panels = made.reshape(-1, vectors * block, height, quads, QUAD)
            return np.ascontiguousarray(panels.transpose(0, 2, 3, 1, 4))

        size = lanes * geometry.kernel[0] * quads * QUAD
        return lowering(
            kernel_for(layer, block, "conv_int8_planar", pixels=parameters["pixels"], vectors=vectors),
            layer,
            whole(size, by_panel, "int8", ("int8 planar", Source(weight), block, vectors)),
            corrected_bias(layer, lanes),
            geometry=geometry_parameters(geometry),
            rows=parameters["rows"],
            zero=parameters_of(layer.type_of(0)).zero_point,
        )


class RowsInt8Convolution(Int8Convolution):
    """Converts input rows to quads that all outputs read. Groups need not be whole vectors.

    It computes convolutions without groups where the CPU's instructions use converted rows best: on x86-64, whose other CPUs
    multiply int16, and on ARM with products of eight channels (i8mm) or with long products, without those of quads.

    Routine parameters:
        rows: output rows per unit of work.
        split: shares of the output channels that read the same input, each in a unit of its own.
    """

    descriptor = Descriptor("cpu", "int8", "rows")

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self._is_x86 = isa.architecture == "x86_64"
        self._is_arm = isa.architecture in ("aarch64", "armv7")

    @property
    def _converts_all(self) -> bool:
        """Whether convolutions without groups gain by converted rows."""
        return self._is_x86 or (self._is_arm and ("i8mm" in self.features or "asimddp" not in self.features))

    def _quad_bytes(self, layer: Layer | None) -> int:
        """Bytes of a converted quad: CPUs that multiply int16 keep it so, except for narrow weights."""
        wide = self._is_x86 and self.features.isdisjoint(QUAD_PRODUCTS)
        narrow = layer is not None and has_narrow_kernels(layer, self.layout.block)
        return 2 * QUAD if wide and not narrow else QUAD

    def covers(self, geometry: KernelGeometry) -> bool:
        if geometry.group_in % QUAD:
            return False
        if geometry.groups == 1 and (not self._converts_all or geometry.pixels < LEAST_PIXELS):
            return False
        return self._groups_of_set(geometry) <= MOST_GROUPS and self._bytes(geometry, None, 1) <= ROW_BYTES

    def _groups_of_set(self, geometry: KernelGeometry) -> int:
        """The fewest groups whose outputs are whole vectors."""
        return 1 if geometry.groups == 1 else self.layout.block // math.gcd(geometry.group_out, self.layout.block)

    def _sets(self, geometry: KernelGeometry) -> int:
        return -(-geometry.groups // self._groups_of_set(geometry))

    def _per_part(self, geometry: KernelGeometry) -> int:
        """Quads of a group in a part of the converted rows."""
        return COLUMN_QUADS // self._groups_of_set(geometry)

    def _parts(self, geometry: KernelGeometry) -> int:
        """Parts of a converted row, each with as many quads of every group of a set."""
        return -(-geometry.group_in // QUAD // self._per_part(geometry))

    def _bytes(self, geometry: KernelGeometry, layer: Layer | None, rows: int) -> int:
        """Bytes of the converted rows of some output rows of a layer; without it, at most."""
        (height, width), (down, right) = geometry.extents, geometry.strides
        columns = (geometry.out_width - 1) * right + width
        return self._parts(geometry) * ((rows - 1) * down + height) * columns * COLUMN_QUADS * self._quad_bytes(layer)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).parameter_space()

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).search_space()

    def _work(self, layer: Layer) -> ConvertedRows:
        geometry = KernelGeometry.of(layer)
        sets = self._sets(geometry)
        pairs = -(-geometry.out_channels // sets // (2 * self.layout.block))
        repeats, bytes_of = geometry.batch * sets, partial(self._bytes, geometry, layer)
        return ConvertedRows(geometry.out_height, repeats, pairs, self.units(UNITS_OF_ROWS), bytes_of)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry, block = KernelGeometry.of(layer), self.layout.block
        weight, lanes = layer.constants[1], -(-geometry.out_channels // block) * block
        per_part, packed = self._per_part(geometry), "amx_int8" not in self.features
        quads = geometry.group_in // QUAD if packed else self._parts(geometry) * per_part

        def by_block() -> np.ndarray:
            """Weights as [block][part][kernel row][kernel column][quad][lane][4]."""
            outputs, inputs, height, width = weight.shape
            made = np.zeros((lanes, quads * QUAD, height, width), np.int8)
            made[:outputs, :inputs] = weight
            whole_rows = made.reshape(-1, block, quads, QUAD, height, width).transpose(0, 4, 5, 2, 1, 3)
            parts = [
                whole_rows[:, :, :, k : k + per_part].reshape(len(whole_rows), -1) for k in range(0, quads, per_part)
            ]
            return np.concatenate(parts, axis=1)

        return lowering(
            kernel_for(layer, block, "rows_int8"),
            layer,
            whole(
                lanes * quads * QUAD * geometry.taps,
                by_block,
                "int8",
                ("int8 rows", Source(weight), geometry.groups, block, packed),
            ),
            corrected_bias(layer, lanes),
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            rows=parameters["rows"],
            zero=parameters_of(layer.type_of(0)).zero_point,
            split=parameters.get("split", 1),
            packed=int(packed),
        )


class DepthwiseInt8Convolution(Int8Convolution):
    """Groups of one channel with one output each.

    Routine parameters:
        rows: output rows per unit of work.
    """

    descriptor = Descriptor("cpu", "int8", "depthwise")

    def covers(self, geometry: KernelGeometry) -> bool:
        columns = (geometry.out_width + STRIP) * geometry.strides[1] + geometry.extents[1]
        bytes_of_rows = 4 * geometry.kernel[0] * columns * self.layout.block
        depthwise = 1 < geometry.groups == geometry.channels == geometry.out_channels
        return depthwise and geometry.taps <= MOST_TAPS and bytes_of_rows <= ROW_BYTES

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        geometry = KernelGeometry.of(layer)
        row = geometry.out_width * self.layout.block
        rows = max(1, min(-(-UNIT_BYTES // row), geometry.out_height))
        few = min(FEW_ROWS, rows)
        return distinct({"rows": count} for count in (rows, few))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        rows = KernelGeometry.of(layer).out_height
        return distinct(self.parameter_space(layer), ({"rows": part} for part in shares(rows, rows)))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry, block = KernelGeometry.of(layer), self.layout.block
        weight, lanes = layer.constants[1], -(-geometry.channels // block) * block

        def by_block() -> np.ndarray:
            """Weights as [block][tap][lane]."""
            rows = padded(weight.reshape(len(weight), -1).T, lanes)
            return np.ascontiguousarray(rows.reshape(-1, lanes // block, block).transpose(1, 0, 2))

        return lowering(
            family("depthwise_int8").kernel(),
            layer,
            whole(lanes * geometry.taps, by_block, "int8", ("int8 depthwise", Source(weight), block)),
            corrected_bias(layer, lanes),
            geometry=geometry_parameters(geometry),
            rows=parameters["rows"],
            zero=parameters_of(layer.type_of(0)).zero_point,
        )


ROUTINES = (DepthwiseInt8Convolution, PlanarInt8Convolution, RowsInt8Convolution, DirectInt8Convolution)
