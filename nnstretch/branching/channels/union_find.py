"""Union-find over channels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class UnionFind:
    """Disjoint sets of elements, which are numbered in the order in which they are added."""

    def __init__(self) -> None:
        """Starts without elements."""
        self._count = 0
        self._left: list[Indices] = []
        self._right: list[Indices] = []

    def add(self, count: int) -> Indices:
        """Adds `count` elements, each in a set of its own, and returns their numbers."""
        start = self._count
        self._count += count
        return np.arange(start, self._count, dtype=np.int64)

    def union(self, left: Indices, right: Indices) -> None:
        """Merges the sets of elements at the same position in both arrays, which are broadcast to each other."""
        left, right = np.broadcast_arrays(left, right)
        self._left.append(left.reshape(-1))
        self._right.append(right.reshape(-1))

    def roots(self) -> Indices:
        """The smallest element of every element's set."""
        return component_roots(self._count, self._left, self._right)


def component_roots(count: int, left: list[Indices], right: list[Indices]) -> Indices:
    """Connected components of `count` elements: the smallest element of each one's component.

    Args:
        count: number of elements.
        left: one end of every edge, in arrays.
        right: the other ends, in arrays of equal lengths.
    """
    roots = np.arange(count, dtype=np.int64)
    if not left:
        return roots
    ends, others = np.concatenate(left), np.concatenate(right)
    while True:
        low = np.minimum(roots[ends], roots[others])
        found = roots.copy()
        # A root with a smaller neighbour adopts it, and all elements that point to the root follow.
        for side in (ends, others):
            np.minimum.at(found, roots[side], low)
            np.minimum.at(found, side, low)
        while not np.array_equal(further := found[found], found):
            found = further
        if np.array_equal(found, roots):
            return roots
        roots = found
