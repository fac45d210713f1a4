"""Convolutions of float32 tensors whose products are of float16."""

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
from nnstretch.graph.dtypes import FLOAT16, element_type
from nnstretch.graph.layer import Layer

FEATURES = frozenset({"asimdhp"})
"""CPU features: with one of them, products of float16 are faster than those of float32."""
TERMS = 64, 128
"""Products that are added up in float16."""
MOST_CHANNELS = 1.5
"""Input channels that a vector multiplies, per channel of a group; with more, other routines are faster."""


class Float16Convolution(BlockedConvolution):
    """Rounds input rows and weights to float16; adds up some products in float16 at a time, and these sums in float32.

    With n products at a time, an output's error is at most (n + 2) · 2⁻¹¹ times the sum of its terms' sizes, whatever the
    number of channels. Of the output's range it is about 1.3e-3 with 64 products, and 2e-3 with 128.

    Inputs and weights may have any size: powers of two bring both into the range of float16, one for the inputs of a unit of
    work and one for the weights of an output. Inputs below 2⁻¹⁹ of the largest of their unit may become 0, as may weights below
    2⁻²⁴ of the largest of their output.

    A vector of outputs, which are two blocks, multiplies the channels of all groups of its lanes, by zeros where they are
    another group's.

    Routine parameters:
        rows: output rows per unit of work.
        split: shares of the output channels, each in a unit of its own.
        terms: products that are added up in float16; more take less time and have a larger error.
    """

    descriptor = Descriptor("cpu", FLOAT16, "rows")
    rounds_to = FLOAT16

    @property
    def lanes(self) -> int:
        """Channels of a vector."""
        return 2 * self.layout.block

    def covers(self, geometry: KernelGeometry) -> bool:
        if self.features.isdisjoint(FEATURES):
            return False
        ranges = channel_ranges(geometry.channels, geometry.out_channels, geometry.groups, self.lanes, self.lanes)
        most = max(end - begin for begin, end in ranges) * self.lanes
        return most <= MOST_CHANNELS * geometry.group_in and self._bytes(geometry, 1) <= ROW_BYTES

    def _bytes(self, geometry: KernelGeometry, rows: int) -> int:
        """Bytes of the rounded rows of some output rows."""
        pixel = -(-geometry.channels // self.lanes) * self.lanes * element_type(FLOAT16).bytes
        return rounded_rows_bytes(geometry, rows, pixel)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return with_terms(self._work(layer).parameter_space(), self._products(layer))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return with_terms(self._work(layer).search_space(), self._products(layer))

    def _products(self, layer: Layer) -> int:
        """Products of an output."""
        geometry = KernelGeometry.of(layer)
        return geometry.group_in * geometry.taps

    def _work(self, layer: Layer) -> ConvertedRows:
        geometry = KernelGeometry.of(layer)
        pairs, bytes_of = -(-geometry.out_channels // (2 * self.lanes)), partial(self._bytes, geometry)
        return ConvertedRows(geometry.out_height, geometry.batch, pairs, self.units(UNITS), bytes_of)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        geometry = KernelGeometry.of(layer)
        return lowering(
            family("conv_float16").kernel(),
            layer,
            prepared_weights(layer.constants[1], geometry.groups, self.lanes),
            -(-geometry.out_channels // self.lanes) * self.lanes,
            geometry=geometry_parameters(geometry),
            groups=geometry.groups,
            rows=parameters["rows"],
            split=parameters["split"],
            terms=parameters["terms"],
        )


class Float16PatchConvolution(PatchConvolution):
    """A convolution of patches that do not overlap, by products of float16."""

    descriptor = Descriptor("cpu", FLOAT16, "patches")
    rounds_to = FLOAT16
    convolution = Float16Convolution


def with_terms(settings: Sequence[Parameters], products: int) -> Sequence[Parameters]:
    """The settings with 64 terms, and with more where outputs have as many products."""
    some = [terms for terms in TERMS if terms == TERMS[0] or products >= terms]
    return [{**setting, "terms": terms} for terms in some for setting in settings]


def prepared_weights(weight: np.ndarray, groups: int, lanes: int) -> Prepared:
    """Weights O,C/g,KH,KW as vectors: float32[lane], then float16[part][kernel row][kernel column][channel][lane].

    The first are powers of two, by which the others, which are at most 1, are multiplied. A vector has the parts in which its
    channels lie, with zeros for channels of other groups.
    """
    outputs, inputs, height, width = weight.shape
    ranges = channel_ranges(inputs * groups, outputs, groups, lanes, lanes)
    parts = max(end - begin for begin, end in ranges)

    def by_vector() -> np.ndarray:
        factors = np.ones(len(ranges) * lanes, np.float32)
        factors[:outputs] = weight_factors(weight)
        firsts = [begin * lanes for begin, _ in ranges]
        made = weights_of_vectors(weight / factors[:outputs, None, None, None], groups, lanes, firsts, parts * lanes)
        by_part = made.astype(np.float16).reshape(-1, lanes, parts, lanes, height, width).transpose(0, 2, 4, 5, 3, 1)
        halves = factors.reshape(-1, lanes).view(np.float16)
        return np.concatenate([halves, by_part.reshape(len(ranges), -1)], axis=1)

    size = len(ranges) * lanes * (element_type("float32").bytes // element_type(FLOAT16).bytes)
    size += len(ranges) * lanes * parts * lanes * height * width
    return whole(size, by_vector, FLOAT16, ("float16 rows", Source(weight), groups, lanes))


def weight_factors(weight: np.ndarray) -> np.ndarray:
    """For each output of weights O,… the power of two by which its weights are divided; all below 2¹²⁷ are at most 1 then."""
    largest = np.abs(weight.reshape(len(weight), -1)).max(axis=1)
    _, exponents = np.frexp(largest)
    factors: np.ndarray = np.ldexp(np.float32(1), np.clip(exponents, -126, 127))
    return factors


ROUTINES = (Float16Convolution, Float16PatchConvolution)
