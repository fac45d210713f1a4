"""Winograd convolution of blocked tensors: a childnet of encoding, products of matrices, and decoding (SoftNeuro)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.cpu.routines.blocked import TiledConvolution
from nnstretch.devices.cpu.routines.window import Window, lowering
from nnstretch.devices.routine import Descriptor, Lowering, Parameters
from nnstretch.graph.layer import Layer

POINTS = {2: (1.0,), 4: (0.75, 1.5), 6: (0.5, 1.0, 2.0)}
"""The interpolation's points besides 0 and infinity, each with its negative, by the width m of the output tile.

The engine's transforms of inputs and outputs (kernels/winograd_transform.h) are made for these.
"""

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


class WinogradConvolution(TiledConvolution[tuple[int, int]]):
    """F(m×m, 3×3) for 3×3 convolutions with stride 1 and no dilation.

    `tiles` are the engine's, best first, the last of one vector.

    Routine parameters:
        m: width of the output tile; larger ones multiply less, read more weights and lose more digits.
        tiles, vectors: the register tile of the products.
        block: tiles that a thread encodes before it multiplies; their encoded input should fit its cache.
        panels: panels of outputs per unit of work; a thread that gets several units of a block encodes it once.
    """

    descriptor = Descriptor("cpu", "float32", "winograd")

    def covers(self, window: Window) -> bool:
        plain = window.kernel == (3, 3) and window.strides == (1, 1) and window.dilations == (1, 1)
        return plain and window.channels // window.groups >= LEAST_GROUP

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
        weights = weight_panels(layer.constants[1], window.groups, vectors * self.layout.block, self.layout.block, m)
        lanes = -(-window.outputs // self.layout.block) * self.layout.block
        return lowering(
            kernel, layer, weights, lanes, (*window.words(), window.groups, parameters["block"], parameters["panels"])
        )


def kernel_transform(m: int) -> np.ndarray:
    """The matrix (m + 2)×3 that encodes one dimension of a kernel, in float64.

    Row p is (1, p, p²) divided by the product of p - q over the other points q, which makes up for input transforms whose
    polynomials have the leading coefficient 1; the last row is infinity's.
    """
    points = np.array([0.0, *(sign * point for point in POINTS[m] for sign in (1, -1))])
    differences = points[:, None] - points[None, :] + np.eye(len(points))
    rows = points[:, None] ** np.arange(3) / differences.prod(axis=1)[:, None]
    return np.vstack([rows, [0.0, 0.0, 1.0]])


def weight_panels(weight: np.ndarray, groups: int, width: int, block: int, m: int) -> np.ndarray:
    """Weights O,C/g,3,3 as the kernels read them: one row per panel of `width` output channels.

    A panel holds [position][input channel][output channel] with only those input channels that its groups read; where its two
    halves are computed one by one, it holds [position][half][input channel][output channel].
    """
    outputs, per_group = weight.shape[:2]
    transform = kernel_transform(m)
    both = np.kron(transform, transform).astype(np.float64)
    encoded = (both @ weight.reshape(-1, 9).T.astype(np.float64)).astype(np.float32)
    encoded = encoded.reshape(len(both), outputs, per_group)
    padded = -(-outputs // block) * block
    if groups == 1:
        full = np.zeros((len(both), padded, per_group), np.float32)
        full[:, :outputs] = encoded
        return full.reshape(len(both), padded // width, width, per_group).transpose(1, 0, 3, 2)
    pieces = [_pieces(first, width, outputs, outputs // groups, block) for first in range(0, padded, width)]
    return _grouped_panels(encoded, outputs // groups, pieces)


HALVED_BLOCK = 16
"""The block of engines that compute the halves of a vector one by one where they belong to different groups."""


def _pieces(first: int, width: int, outputs: int, per_group: int, block: int) -> list[tuple[int, int]]:
    """The output channels [begin, end) that a panel of `width` from `first` on computes together, as the kernels see it."""
    middle, end = first + width // 2, first + width
    halved = block == HALVED_BLOCK and width == block and per_group % (width // 2) == 0
    if halved and middle < outputs and first // per_group != middle // per_group:
        return [(first, middle), (middle, end)]
    return [(first, end)]


def _grouped_panels(encoded: np.ndarray, per_group: int, panels: list[list[tuple[int, int]]]) -> np.ndarray:
    """Panels of weights [position][output][input channel of its group]; channels of other groups get zeros."""
    rows = [np.concatenate([_piece(encoded, per_group, *p) for p in pieces], axis=1).ravel() for pieces in panels]
    result = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for to, row in zip(result, rows, strict=True):
        to[: row.size] = row
    return result


def _piece(encoded: np.ndarray, per_group: int, begin: int, end: int) -> np.ndarray:
    """Weights [position][input channel · output] of the outputs [begin, end), with the inputs of all their groups."""
    positions, outputs, inputs = encoded.shape
    first, last = begin // per_group, (min(end, outputs) - 1) // per_group
    piece = np.zeros((positions, (last - first + 1) * inputs, end - begin), np.float32)
    for group in range(first, last + 1):
        low, high = max(begin, group * per_group), min(end, (group + 1) * per_group, outputs)
        rows = slice((group - first) * inputs, (group - first + 1) * inputs)
        piece[:, rows, low - begin : high - begin] = encoded[:, low:high].transpose(0, 2, 1)
    return piece.reshape(positions, -1)
