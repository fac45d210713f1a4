"""Elements that are tied to each other, directly or through others, and by which one of them each is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class UnionFind:
    """Elements, numbered in the order in which they are made, and what ties them."""

    def __init__(self) -> None:
        """There are no elements yet."""
        self._count = 0
        self._left: list[Indices] = []
        self._right: list[Indices] = []

    def add(self, count: int) -> Indices:
        """So many new elements."""
        start = self._count
        self._count += count
        return np.arange(start, self._count, dtype=np.int64)

    def union(self, left: Indices, right: Indices) -> None:
        """UnionFind what has the same place in both, which are broadcast to each other."""
        left, right = np.broadcast_arrays(left, right)
        self._left.append(left.reshape(-1))
        self._right.append(right.reshape(-1))

    def roots(self) -> Indices:
        """For every element the first of all that it is tied to."""
        return component_roots(self._count, self._left, self._right)


def component_roots(count: int, left: list[Indices], right: list[Indices]) -> Indices:
    """For each of `count` elements the smallest that it is connected to by the edges from `left` to `right`."""
    roots = np.arange(count, dtype=np.int64)
    if not left:
        return roots
    ends, others = np.concatenate(left), np.concatenate(right)
    while True:
        low = np.minimum(roots[ends], roots[others])
        found = roots.copy()
        # A root that meets a smaller one takes it along, with all elements that point to it.
        for side in (ends, others):
            np.minimum.at(found, roots[side], low)
            np.minimum.at(found, side, low)
        while not np.array_equal(further := found[found], found):
            found = further
        if np.array_equal(found, roots):
            return roots
        roots = found
