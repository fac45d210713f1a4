"""Pareto fronts, and the volume that one dominates. Every objective is minimised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """The volume between points and a reference that is worse than they are; every objective is minimised.

    Slices the last objective and adds up the slices (exact; meant for fronts of some hundred points).

    Args:
        points: values of the objectives; those beyond the reference count for nothing.
        reference: a value per objective.
    """
    inside = [tuple(point) for point in points if all(v < r for v, r in zip(point, reference, strict=True))]
    return _volume(sorted(set(inside), key=lambda point: point[-1]), tuple(reference))


def _volume(points: Sequence[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """The volume of points that ascend in the last objective."""
    if not points:
        return 0.0
    if len(reference) == 1:
        return reference[0] - points[0][0]
    total = 0.0
    front: list[tuple[float, ...]] = []
    for number, point in enumerate(points):
        front = _with(front, point[:-1])
        above = points[number + 1][-1] if number + 1 < len(points) else reference[-1]
        if above > point[-1]:
            total += (above - point[-1]) * _volume(sorted(front, key=lambda p: p[-1]), reference[:-1])
    return total


def _with(front: list[tuple[float, ...]], point: tuple[float, ...]) -> list[tuple[float, ...]]:
    """The front with another point, without those that are dominated."""
    if any(all(a <= b for a, b in zip(other, point, strict=True)) for other in front):
        return front
    return [*(other for other in front if any(a < b for a, b in zip(other, point, strict=True))), point]
