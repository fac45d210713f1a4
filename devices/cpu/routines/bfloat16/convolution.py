"""Convolutions of float32 tensors whose products are of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.base.constants import Prepared, Source, whole
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.converted_rows import ROW_BYTES, UNITS, ConvertedRows, rounded_rows_bytes
from nnstretch.devices.cpu.routines.convolution.base import (
    BlockedConvolution,
    channel_ranges,
    geometry_parameters,
    lowering,
    weights_of_vectors,
)
from nnstretch.devices.cpu.routines.convolution.patches import PatchConvolution
from nnstretch.graph.dtypes import BFLOAT16, element_type
from nnstretch.graph.layer import Layer

FEATURES = frozenset({"avx512_bf16", "bf16"})
"""CPU features: with one of them, products of bfloat16 are faster than those of float32."""
PAIRS = 16  # pairs of channels that lie beside each other in rounded rows
MOST_PAIRS = 1.5  # pairs that a vector multiplies, per input channel of a group; with more, other routines are faster


class Bfloat16Convolution(BlockedConvolution):
    """Rounds input rows and weights to bfloat16, and adds up products in float32.

    A vector of outputs multiplies the channels of all groups of its lanes, by zeros where they are another group's.

    Routine parameters:
        rows: output rows per unit of work.
        split: shares of the output channels, each in a unit of its own.
    """

    descriptor = Descriptor("cpu", BFLOAT16, "rows")
    rounds_to = BFLOAT16

    def covers(self, geometry: KernelGeometry) -> bool:
        if self.features.isdisjoint(FEATURES):
            return False
        most = max(
            end - begin
            for begin, end in channel_ranges(
                geometry.channels, geometry.out_channels, geometry.groups, self.layout.block, 2
            )
        )
        return most <= MOST_PAIRS * geometry.group_in and self._bytes(geometry, 1) <= ROW_BYTES

    def _bytes(self, geometry: KernelGeometry, rows: int) -> int:
        """Bytes of the rounded rows of some output rows."""
        return rounded_rows_bytes(geometry, rows, rounded_bytes(geometry.channels))

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).parameter_space()

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._work(layer).search_space()

    def _work(self, layer: Layer) -> ConvertedRows:
        geometry = KernelGeometry.of(layer)
        pairs, bytes_of = -(-geometry.out_channels // (2 * self.layout.block)), partial(self._bytes, geometry)
        return ConvertedRows(geometry.out_height, geometry.batch, pairs, self.units(UNITS), bytes_of)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry, block = KernelGeometry.of(layer), self.layout.block
        return lowering(
            family("conv_bfloat16").kernel(),
            layer,
            prepared_weights(layer.constants[1], geometry.groups, block),
            -(-geometry.out_channels // block) * block,
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            rows=parameters["rows"],
            split=parameters["split"],
        )


class Bfloat16PatchConvolution(PatchConvolution):
    """A convolution of patches that do not overlap, by products of bfloat16."""

    descriptor = Descriptor("cpu", BFLOAT16, "patches")
    rounds_to = BFLOAT16
    convolution = Bfloat16Convolution


def rounded_bytes(channels: int) -> int:
    """Bytes of the channels of a rounded pixel, in whole parts."""
    return -(-channels // (2 * PAIRS)) * 2 * PAIRS * element_type(BFLOAT16).bytes


def prepared_weights(weight: np.ndarray, groups: int, block: int) -> Prepared:
    """Weights O,C/g,KH,KW as [output block][part][kernel row][kernel column][pair][lane][2] of bfloat16.

    A block has the parts of the rounded rows in which its pairs lie, with zeros for channels of other groups.
    """
    outputs, inputs, height, width = weight.shape
    ranges = channel_ranges(inputs * groups, outputs, groups, block, 2)
    parts = max(-(-end // PAIRS) - begin // PAIRS for begin, end in ranges)

    def by_block() -> np.ndarray:
        firsts = [begin // PAIRS * PAIRS * 2 for begin, _ in ranges]
        made = weights_of_vectors(weight, groups, block, firsts, parts * PAIRS * 2)
        by_pair = rounded(made).reshape(-1, block, parts, PAIRS, 2, height, width)
        return by_pair.transpose(0, 2, 5, 6, 3, 1, 4)

    size = len(ranges) * block * parts * PAIRS * 2 * height * width
    return whole(size, by_block, BFLOAT16, ("bfloat16 rows", Source(weight), groups, block))


def rounded(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 of each float32 that is a number, of two the even one."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


ROUTINES = (Bfloat16Convolution, Bfloat16PatchConvolution)
