"""Winograd's minimal filtering: interpolation points, weight transforms and estimated costs.

Mirrors engine/kernels/winograd/winograd_grid.h and the order of weights in winograd.c. The OpenCL kernels read the same order
for undivided kernels.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from nnstretch.devices.base.constants import Constant, Piece, Prepared, Source
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type

_BLOCKS = 4  # of input channels, encoded at a time
_ENCODED, _ENCODED_INT16 = 32, 128  # input channels encoded at a time
INT16_GROUP = 16  # input channels whose int16 weights of an output have one scale; winograd.h has them, too
_SCALE_ELEMENTS = 2  # elements of int16 that a scale takes
LARGEST_STRIDE = 2
LEAST_GROUP = 4  # minimum input channels per group: with fewer, encoding costs more than the products save
_CACHED_WEIGHTS = 1 << 20  # bytes of encoded weights that mostly fit the second-level cache
_ENCODED_BYTES = 1 << 19  # bytes of a block's encoded input that stay in that cache while weights stream through it
_FEW_TILES, _MANY_TILES = 16, 28  # tiles per block that hide the latency of weights from that cache, and from memory
_MEMORY_COST = {
    "float32": 11,
    "int16": 9,
}  # time to load a vector of weights from memory, in vector multiply-adds, by type
_TRANSFORM_COST = {4: 60, 6: 160, 7: 260, 8: 400}  # time to encode or decode a 2-D vector of tiles, by alpha
_LINE_COST = {4: 12, 6: 20, 7: 25, 8: 30}  # the same for transforms in one dimension
_PRODUCT_COST = 4  # time to start and store the sum of a tile at one position, in the same unit
_WORTH_MEASURING = 1.25  # transforms with a larger ratio of estimated time to the best transform's are not measured
_MOST_INT16_TILES = 64  # tiles up to which products may take less time than to read their weights from memory
_WORTH_TRYING = 0.9  # highest ratio of estimated time to a direct convolution's, except for plain 3×3 kernels

POINTS = {
    4: (0.0, 1.0, -1.0),
    6: (0.0, 0.75, -0.75, 1.5, -1.5),
    7: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0),
    8: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0),
}
"""Interpolation points besides infinity, by alpha.

The input and output transforms (winograd_transform.h in engine/kernels/winograd, winograd_transform.cl in
opencl/kernels/winograd) use these points.
"""


def kernel_transform(alpha: int, taps: int) -> np.ndarray:
    """The matrix alpha×taps that encodes one dimension of a kernel, in float64.

    Row p is (1, p, p², …) divided by the product of p - q over the other finite points q, because the polynomials of the input
    transforms have leading coefficient 1. The last row belongs to infinity.
    """
    points = np.array(POINTS[alpha])
    differences = points[:, None] - points[None, :] + np.eye(len(points))
    rows = points[:, None] ** np.arange(taps) / differences.prod(axis=1)[:, None]
    return np.vstack([rows, np.eye(taps)[-1:]])


@dataclass(frozen=True)
class Axis:
    """A kernel along one axis, divided into parts for transforms with `alpha` positions and `taps` taps.

    The taps of a part are `stride` apart; a part has at most `taps` of them. A kernel with one tap is not transformed.
    """

    kernel: int
    stride: int
    alpha: int
    taps: int

    @property
    def plain(self) -> bool:
        """Whether the axis is not transformed."""
        return self.kernel == 1

    @property
    def positions(self) -> int:
        """Positions of an encoded tile."""
        return 1 if self.plain else self.alpha

    @property
    def outputs(self) -> int:
        """Outputs of a tile."""
        return 1 if self.plain else self.alpha - self.taps + 1

    @cached_property
    def first_taps(self) -> tuple[int, ...]:
        """First tap of each part."""
        if self.plain:
            return (0,)
        longest = math.ceil(self.kernel / self.stride)
        pieces = math.ceil(longest / self.taps)
        return tuple(phase + self.stride * piece * self.taps for phase in range(self.stride) for piece in range(pieces))

    def whole(self, part: int) -> bool:
        """Whether the part has as many taps as the transform; other parts are 0 at infinity."""
        return self.plain or self.first_taps[part] + self.stride * (self.taps - 1) < self.kernel

    @cached_property
    def all_parts(self) -> int:
        """Parts that are not 0, summed over all positions."""
        whole = sum(map(self.whole, range(len(self.first_taps))))
        return (self.positions - 1) * len(self.first_taps) + whole

    def transform(self, part: int) -> np.ndarray:
        """The matrix positions×kernel that encodes a part, in float64."""
        if self.plain:
            return np.ones((1, 1))
        picked = range(self.first_taps[part], self.kernel, self.stride)[: self.taps]
        result = np.zeros((self.alpha, self.kernel))
        result[:, list(picked)] = kernel_transform(self.alpha, self.taps)[:, : len(picked)]
        return result


@dataclass(frozen=True)
class Division:
    """A kernel divided into parts along both axes."""

    down: Axis
    across: Axis

    @cached_property
    def parts(self) -> list[tuple[int, int]]:
        """Parts (row, column) ordered so that those with whole rows are adjacent, and those with whole columns too."""
        both = [(i, j) for i in range(len(self.down.first_taps)) for j in range(len(self.across.first_taps))]
        kinds = [(True, False), (True, True), (False, True), (False, False)]
        return sorted(both, key=lambda part: kinds.index((self.down.whole(part[0]), self.across.whole(part[1]))))

    def parts_at(self, position: int) -> slice:
        """The parts that have weights at a position."""
        row, column = divmod(position, self.across.positions)
        infinite_row = not self.down.plain and row == self.down.alpha - 1
        infinite_column = not self.across.plain and column == self.across.alpha - 1
        needed = [
            index
            for index, (i, j) in enumerate(self.parts)
            if (self.down.whole(i) or not infinite_row) and (self.across.whole(j) or not infinite_column)
        ]
        return slice(needed[0], needed[-1] + 1) if needed else slice(0, 0)

    @property
    def positions(self) -> int:
        """Positions of an encoded tile."""
        return self.down.positions * self.across.positions

    @property
    def all_parts(self) -> int:
        """Parts that are not 0, summed over all positions."""
        return self.down.all_parts * self.across.all_parts

    @cached_property
    def transforms(self) -> tuple[np.ndarray, ...]:
        """The matrix of every part, positions × taps."""
        return tuple(np.kron(self.down.transform(i), self.across.transform(j)) for i, j in self.parts)

    def encoded(self, weight: np.ndarray) -> np.ndarray:
        """Weights O,C/g,KH,KW encoded to position, part, O, C/g."""
        outputs, per_group = weight.shape[:2]
        taps = weight.reshape(outputs * per_group, -1).T.astype(np.float64)
        result = np.empty((self.positions, len(self.parts), outputs * per_group), np.float32)
        for index, transform in enumerate(self.transforms):
            result[:, index] = transform @ taps
        return result.reshape(self.positions, len(self.parts), outputs, per_group)


def division_of(geometry: KernelGeometry, alpha: int, taps: int) -> Division:
    """The geometry's kernel divided for a transform of `alpha` positions and `taps` taps."""
    down, across = (Axis(k, s, alpha, taps) for k, s in zip(geometry.kernel, geometry.strides, strict=True))
    return Division(down, across)


def reads_plain(geometry: KernelGeometry) -> bool:
    """Whether the input has so few channels that kernels read it as a plain tensor."""
    return geometry.groups == 1 and geometry.channels < LEAST_GROUP


def tiles_of(geometry: KernelGeometry, division: Division) -> int:
    """Tiles of the output, of all images."""
    down, across = division.down.outputs, division.across.outputs
    return geometry.batch * -(-geometry.out_height // down) * -(-geometry.out_width // across)


def tiles_at_once(geometry: KernelGeometry, division: Division, inputs: int) -> int:
    """Tiles to encode before they are multiplied: few if the weights fit the cache, else enough to reuse streamed weights.

    Args:
        geometry: the convolution.
        division: its kernel.
        inputs: numbers of encoded input per position of a tile.
    """
    size = element_type(DEFAULT_DTYPE).bytes
    weights = division.all_parts * geometry.group_in * geometry.out_channels * size
    return (
        _FEW_TILES
        if weights <= _CACHED_WEIGHTS
        else max(_MANY_TILES, _ENCODED_BYTES // (division.positions * inputs * size))
    )


def estimated_cost(
    geometry: KernelGeometry,
    division: Division,
    block: int,
    inputs: int,
    packing: int = 0,
    stored: str = DEFAULT_DTYPE,
) -> float:
    """Estimated time in vector multiply-adds; products are limited by arithmetic or by loading weights from memory.

    Args:
        geometry: the convolution.
        division: its kernel.
        block: numbers per vector.
        inputs: vectors of encoded input per position of a tile.
        packing: additional cost per tile.
        stored: type of the weights in memory.
    """
    tiles, outputs = tiles_of(geometry, division), -(-geometry.out_channels // block)
    weights = division.all_parts * outputs * geometry.group_in
    flat = division.down.plain or division.across.plain
    transform = (_LINE_COST if flat else _TRANSFORM_COST)[division.down.alpha] * (inputs + outputs)
    sums = _PRODUCT_COST * division.positions * outputs
    return max(weights * tiles, weights * _MEMORY_COST[stored]) + (transform + packing + sums) * tiles


def is_worth_trying(geometry: KernelGeometry, costs: Collection[float], block: int) -> bool:
    """Whether the lowest of the estimated costs is clearly below the vector multiply-adds of a direct convolution."""
    direct = geometry.batch * geometry.pixels * geometry.taps * -(-geometry.out_channels // block) * geometry.group_in
    return min(costs) < _WORTH_TRYING * direct


def worth_measuring(costs: Mapping[Division, float]) -> list[Division]:
    """The division with the lowest estimated cost, and the second if it is close."""
    best, *others = sorted(costs, key=costs.__getitem__)
    return [best, *(other for other in others[:1] if costs[other] < _WORTH_MEASURING * costs[best])]


def weight_panels(
    weight: np.ndarray, groups: int, width: int, block: int, division: Division, *, halved: bool
) -> np.ndarray:
    """Weights O,C/g,KH,KW as the kernels read them: one row per panel of `width` output channels.

    A panel holds [position][piece][input block][part][input channel][output channel]. It contains only the input
    channels that its groups read and the parts that are not 0 at the position. With `halved`, a panel whose halves
    belong to different groups has two pieces, else one. `width` is a multiple of `block`, the block of the layout.
    """
    outputs, per_group = weight.shape[:2]
    encoded = division.encoded(weight)
    padded = -(-outputs // block) * block
    if groups == 1:
        full = np.zeros((*encoded.shape[:2], padded, per_group), np.float32)
        full[:, :, :outputs] = encoded
        return np.concatenate(list(_dense_rows(full, width, block, division)), axis=1)
    pieces = [_pieces(first, width, outputs, outputs // groups, halved) for first in range(0, padded, width)]
    return _grouped_panels(encoded, outputs // groups, pieces, block, division)


def prepared_panels(
    weight: np.ndarray, groups: int, width: int, block: int, division: Division, *, halved: bool
) -> Constant:
    """The result of `weight_panels`, flat; with one group it is written in place."""
    if groups > 1:
        return weight_panels(weight, groups, width, block, division, halved=halved)
    outputs, channels = weight.shape[:2]
    padded = -(-outputs // block) * block
    recipe = ("winograd", Source(weight), width, block, division)
    used = [position for position in range(division.positions) if division.parts_at(position) != slice(0, 0)]
    if len(division.parts) > 1:
        size = division.all_parts * channels * width
        pieces = [
            Piece(number * size, size, partial(_write_parts, weight[first : first + width], width, block, division))
            for number, first in enumerate(range(0, padded, width))
        ]
        return Prepared(size * len(pieces), pieces, recipe=recipe)
    (transform,) = (matrix[used] for matrix in division.transforms)
    source = weight.reshape(outputs, channels, -1)
    size = len(used) * channels * width
    pieces = [
        Piece(number * size, size, partial(_write_encoded, source[first : first + width], width, transform))
        for number, first in enumerate(range(0, padded, width))
    ]
    return Prepared(size * len(pieces), pieces, recipe=recipe)


def suits_int16(geometry: KernelGeometry, division: Division) -> bool:
    """Whether int16 weights are prepared for a convolution: 3 × 3, one group and part, and so few tiles that reading counts."""
    whole = (
        geometry.groups == 1 and geometry.kernel == (3, 3) and not reads_plain(geometry) and len(division.parts) == 1
    )
    return whole and tiles_of(geometry, division) <= _MOST_INT16_TILES


def prepared_int16_panels(weight: np.ndarray, width: int, division: Division) -> Prepared:
    """Weights O,C,KH,KW of one group and part as kernels read them that store them as int16.

    A panel of `width` output channels holds [position][group of input channels], each the scales of the output channels,
    float32, then [input channel][output channel].
    """
    outputs, channels = weight.shape[:2]
    (transform,) = division.transforms
    source = weight.reshape(outputs, channels, -1)
    size = len(transform) * width * int16_elements(channels)
    pieces = [
        Piece(number * size, size, partial(_write_int16, source[first : first + width], width, transform))
        for number, first in enumerate(range(0, outputs, width))
    ]
    return Prepared(size * len(pieces), pieces, "int16", recipe=("winograd_int16", Source(weight), width, division))


def _write_int16(rows: np.ndarray, width: int, transform: np.ndarray, place: np.ndarray) -> None:
    """Encodes weights of up to `width` outputs, O,C,taps, as a panel of `prepared_int16_panels`, in parts for the cache."""
    outputs, channels, taps = rows.shape
    panel = place.reshape(len(transform), -1)
    for begin, end in _runs(channels, INT16_GROUP, _ENCODED_INT16):
        groups = rows[:, begin:end].reshape(outputs, -1, min(INT16_GROUP, end - begin), taps)
        lanes = np.ascontiguousarray(groups.transpose(3, 2, 1, 0), np.float64)  # a channel of all groups together
        encoded = (transform @ lanes.reshape(taps, -1)).reshape(len(transform), *lanes.shape[1:])
        _write_steps(encoded, width, panel[:, width * int16_elements(begin) : width * int16_elements(end)])


def _write_steps(encoded: np.ndarray, width: int, place: np.ndarray) -> None:
    """Scales encoded weights, position,C,group,O, and writes scales and steps to position,(group,…)."""
    positions, _, groups, outputs = encoded.shape
    most = np.iinfo(np.int16).max
    found = place.reshape(positions, groups, -1)
    scales = np.zeros((positions, groups, width), np.float32)
    scales[..., :outputs] = np.maximum(encoded.max(axis=1), -encoded.min(axis=1)) / most
    found[..., : _SCALE_ELEMENTS * width] = scales.view(np.int16)
    encoded /= np.where(scales > 0, scales, 1)[:, None, :, :outputs]
    np.rint(encoded, out=encoded)
    steps = found[..., _SCALE_ELEMENTS * width :].reshape(positions, groups, -1, width)
    steps[..., :outputs] = encoded.transpose(0, 2, 1, 3)


def int16_elements(channels: int) -> int:
    """Elements per output channel and position of weights of `channels` input channels, with their scales."""
    return channels + _SCALE_ELEMENTS * -(-channels // INT16_GROUP)


def _write_parts(rows: np.ndarray, width: int, block: int, division: Division, place: np.ndarray) -> None:
    """Encodes weights of up to `width` outputs, O,C,KH,KW, as one row of `weight_panels`, in parts that fit the cache."""
    outputs, channels = rows.shape[:2]
    taps = rows.reshape(outputs, channels, -1)
    parts = [division.parts_at(position) for position in range(division.positions)]
    counts = [found.stop - found.start for found in parts]
    ends = channels * width * np.cumsum([0, *counts])
    for begin, end in _runs(channels, block, _BLOCKS * block):
        blocks = -(-(end - begin) // block)
        lanes = np.zeros((taps.shape[2], end - begin, width))
        lanes[..., :outputs] = taps[:, begin:end].transpose(2, 1, 0)
        for index, transform in enumerate(division.transforms):
            encoded = (transform @ lanes.reshape(len(lanes), -1)).reshape(-1, blocks, (end - begin) // blocks * width)
            for position, found in enumerate(parts):
                if found.start <= index < found.stop:
                    first, count = ends[position] + begin * counts[position] * width, counts[position]
                    own = place[first : first + (end - begin) * count * width].reshape(blocks, count, -1)
                    own[:, index - found.start] = encoded[position]


def _runs(channels: int, group: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most `most` channels [begin, end) with whole groups; a last group with fewer channels stands alone."""
    whole = channels // group * group
    for begin in range(0, whole, most):
        yield begin, min(begin + most, whole)
    if whole < channels:
        yield whole, channels


def _write_encoded(rows: np.ndarray, width: int, transform: np.ndarray, place: np.ndarray) -> None:
    """Encodes weights of up to `width` outputs, O,C,taps, as position,C,width, in parts that fit the cache."""
    outputs, channels, taps = rows.shape
    panel = place.reshape(len(transform), channels, width)
    for begin in range(0, channels, _ENCODED):
        part = rows[:, begin : begin + _ENCODED]
        lanes = np.zeros((taps, part.shape[1], width))
        lanes[..., :outputs] = part.transpose(2, 1, 0)
        panel[:, begin : begin + _ENCODED] = (transform @ lanes.reshape(taps, -1)).reshape(-1, *lanes.shape[1:])


def _dense_rows(encoded: np.ndarray, width: int, block: int, division: Division) -> Iterator[np.ndarray]:
    """Yields the weights of all panels, [panel][weight], for each position and input block."""
    outputs, channels = encoded.shape[2:]
    step = block if len(division.parts) > 1 else channels
    for position in range(division.positions):
        parts = encoded[position, division.parts_at(position)]
        for first in range(0, channels, step):
            lanes = parts[..., first : first + step]
            panels = lanes.reshape(len(parts), outputs // width, width, lanes.shape[-1])
            yield panels.transpose(1, 0, 3, 2).reshape(outputs // width, -1)


def _pieces(first: int, width: int, outputs: int, per_group: int, halved: bool) -> list[tuple[int, int]]:
    """The pieces [begin, end) of a panel of `width` output channels from `first` on."""
    middle, end = first + width // 2, first + width
    if halved and per_group % (width // 2) == 0 and middle < outputs and first // per_group != middle // per_group:
        return [(first, middle), (middle, end)]
    return [(first, end)]


def _grouped_panels(
    encoded: np.ndarray, per_group: int, panels: list[list[tuple[int, int]]], block: int, division: Division
) -> np.ndarray:
    """Panels of weights [position][part][output][input channel of its group], with zeros for channels of other groups."""
    rows = []
    for pieces in panels:
        made = [_piece(encoded, per_group, begin, end) for begin, end in pieces]
        parts = [
            blocked[position, division.parts_at(position)].ravel()
            for position in range(division.positions)
            for first, piece in made
            for blocked in _blocks(first, piece, block)
        ]
        rows.append(np.concatenate(parts))
    result = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for to, row in zip(result, rows, strict=True):
        to[: row.size] = row
    return result


def _piece(encoded: np.ndarray, per_group: int, begin: int, end: int) -> tuple[int, np.ndarray]:
    """The first input channel, and weights [position][part][input channel][output] of the outputs [begin, end)."""
    positions, parts, outputs, inputs = encoded.shape
    first, last = begin // per_group, (min(end, outputs) - 1) // per_group
    piece = np.zeros((positions, parts, (last - first + 1) * inputs, end - begin), np.float32)
    for group in range(first, last + 1):
        low, high = max(begin, group * per_group), min(end, (group + 1) * per_group, outputs)
        rows = slice((group - first) * inputs, (group - first + 1) * inputs)
        piece[:, :, rows, low - begin : high - begin] = encoded[:, :, low:high].transpose(0, 1, 3, 2)
    return first * inputs, piece


def _blocks(first: int, piece: np.ndarray, block: int) -> Iterator[np.ndarray]:
    """Splits a piece with first input channel `first` at the boundaries of input blocks."""
    lanes = piece.shape[2]
    begin = 0
    while begin < lanes:
        end = min(lanes, begin + block - (first + begin) % block)
        yield piece[:, :, begin:end]
        begin = end
