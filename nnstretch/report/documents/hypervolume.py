"""Pareto fronts, and the volume that one dominates. Every objective is minimised."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

_EXACT = 3
"""Most objectives with an exact history; with more it is estimated."""
_SAMPLES = 1 << 14
"""Random places by which it is estimated: a standard error below 0.4 % of the box."""

_Point = Sequence[float]


def undominated(values: np.ndarray) -> list[int]:
    """Rows that no other row beats, ascending; of equal rows all.

    Args:
        values: points × objectives.
    """
    left = np.arange(len(values))
    at = 0
    while at < len(left):
        point = values[left[at]]
        kept = (values[left] < point).any(axis=1) | (values[left] == point).all(axis=1)
        left = left[kept]
        at = int(kept[:at].sum()) + 1
    return sorted(left.tolist())


def hypervolume(points: Iterable[_Point], reference: _Point) -> float:
    """The volume between points and a reference that is worse than they are; every objective is minimised.

    Exact. It takes n log n steps for n points of up to three objectives, and n times as many for each further one.

    Args:
        points: values of the objectives; those beyond the reference count for nothing.
        reference: a value per objective.
    """
    inside = {tuple(point) for point in points if all(v < r for v, r in zip(point, reference, strict=True))}
    return _volume(sorted(inside, key=lambda point: point[-1]), tuple(reference))


def is_estimated(objectives: int) -> bool:
    """Whether a history of this number of objectives is estimated."""
    return objectives > _EXACT


def hypervolume_history(values: np.ndarray, most: int) -> list[tuple[int, float]]:
    """The volume that the first points dominate, from point to point. Only undominated points cost time.

    Args:
        values: points × objectives, in the unit box, whose upper end is the reference.
        most: number of volumes.

    Returns:
        (number of points, volume) in order; the last one is for all points.
    """
    step = max(1, -(-len(values) // most))
    ends = {*range(step, len(values), step), len(values)}
    front: Front = SampledFront(values.shape[1]) if is_estimated(values.shape[1]) else ExactFront(values.shape[1])
    found = []
    for number, point in enumerate(values, start=1):
        front.add(point)
        if number in ends:
            found.append((number, front.volume()))
    return found


class ExactFront:
    """The undominated ones among the points so far, and their volume to the end of the unit box."""

    def __init__(self, objectives: int) -> None:
        """A front without points."""
        self._points = np.empty((0, objectives))
        self._volume: float | None = 0.0

    def add(self, point: np.ndarray) -> None:
        """Adds a point; those that it dominates leave."""
        if (self._points <= point).all(axis=1).any():
            return
        self._points = np.vstack([self._points[(self._points < point).any(axis=1)], point])
        self._volume = None

    def volume(self) -> float:
        """The dominated share of the box."""
        if self._volume is None:
            self._volume = hypervolume(self._points.tolist(), [1.0] * self._points.shape[1])
        return self._volume


class SampledFront:
    """The share of random places of the unit box that the points so far dominate."""

    def __init__(self, objectives: int) -> None:
        """A front without points; the places are the same every time."""
        self._left = np.random.default_rng(0).random((_SAMPLES, objectives))

    def add(self, point: np.ndarray) -> None:
        """Adds a point."""
        self._left = self._left[(self._left < point).any(axis=1)]

    def volume(self) -> float:
        """The dominated share of the box."""
        return 1.0 - len(self._left) / _SAMPLES


Front = ExactFront | SampledFront


def _volume(points: Sequence[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """The volume of points that ascend in the last objective."""
    if not points:
        return 0.0
    if len(reference) == 1:
        return reference[0] - points[0][0]
    if len(reference) == 2:
        stairs = _Stairs(*reference)
        for x, y in points:
            stairs.add(x, y)
        return stairs.area
    stairs = _Stairs(*reference[:2])
    total = 0.0
    ends = [*(point[-1] for point in points[1:]), reference[-1]]
    for number, (point, end) in enumerate(zip(points, ends, strict=True)):
        if len(reference) == 3:
            stairs.add(*point[:2])
        if end > point[-1]:
            area = stairs.area if len(reference) == 3 else _slice(points[: number + 1], reference[:-1])
            total += (end - point[-1]) * area
    return total


def _slice(points: Sequence[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """The volume of points without their last objective."""
    return _volume(sorted({point[:-1] for point in points}, key=lambda point: point[-1]), reference)


class _Stairs:
    """The area that points of two objectives dominate; a point is added in logarithmic time, but for those that it removes."""

    def __init__(self, right: float, top: float) -> None:
        self._right, self._top = right, top
        self._xs: list[float] = []
        self._ys: list[float] = []
        self.area = 0.0

    def add(self, x: float, y: float) -> None:
        first = bisect_left(self._xs, x)
        above = self._ys[first - 1] if first else self._top
        if above <= y or (first < len(self._xs) and self._xs[first] == x and self._ys[first] <= y):
            return
        end, left = first, x
        while end < len(self._xs) and self._ys[end] >= y:
            self.area += (self._xs[end] - left) * (above - y)
            left, above = self._xs[end], self._ys[end]
            end += 1
        self.area += ((self._xs[end] if end < len(self._xs) else self._right) - left) * (above - y)
        self._xs[first:end] = [x]
        self._ys[first:end] = [y]
