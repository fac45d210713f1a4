"""Winograd's minimal filtering F(m×m, 3×3): its points, and what kernels become under its transform, on any processor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

POINTS = {2: (1.0,), 4: (0.75, 1.5), 6: (0.5, 1.0, 2.0)}
"""The interpolation's points besides 0 and infinity, each with its negative, by the width m of the output tile.

The transforms of inputs and outputs (devices/engine/kernels/winograd_transform.h, devices/opencl/kernels/winograd_transform.cl)
are made for these.
"""


def kernel_transform(m: int) -> np.ndarray:
    """The matrix (m + 2)×3 that encodes one dimension of a kernel, in float64.

    Row p is (1, p, p²) divided by the product of p - q over the other points q, which makes up for input transforms whose
    polynomials have the leading coefficient 1; the last row is infinity's.
    """
    points = np.array([0.0, *(sign * point for point in POINTS[m] for sign in (1, -1))])
    differences = points[:, None] - points[None, :] + np.eye(len(points))
    rows = points[:, None] ** np.arange(3) / differences.prod(axis=1)[:, None]
    return np.vstack([rows, [0.0, 0.0, 1.0]])


Piece = tuple[int, int]
"""Output channels [begin, end) that are computed together."""


def weight_panels(weight: np.ndarray, groups: int, width: int, block: int, m: int, halved: bool) -> np.ndarray:
    """Weights O,C/g,3,3 as the kernels read them: one row per panel of `width` output channels.

    A panel holds [position][input channel][output channel] with only those input channels that its groups read; where its two
    halves are computed one by one, it holds [position][half][input channel][output channel].

    Args:
        weight: the convolution's weights.
        groups: its groups.
        width: output channels of a panel, a multiple of `block`.
        block: the block of the blocked layout, to which output channels are padded.
        m: the width of the output tile.
        halved: whether halves of a panel that belong to different groups are computed one by one.
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
    pieces = [_pieces(first, width, outputs, outputs // groups, halved) for first in range(0, padded, width)]
    return _grouped_panels(encoded, outputs // groups, pieces)


def _pieces(first: int, width: int, outputs: int, per_group: int, halved: bool) -> list[Piece]:
    """The output channels that a panel of `width` from `first` on computes together, as the kernels see it."""
    middle, end = first + width // 2, first + width
    halves = halved and per_group % (width // 2) == 0
    if halves and middle < outputs and first // per_group != middle // per_group:
        return [(first, middle), (middle, end)]
    return [(first, end)]


def _grouped_panels(encoded: np.ndarray, per_group: int, panels: Sequence[Sequence[Piece]]) -> np.ndarray:
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
