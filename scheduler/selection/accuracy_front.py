"""Fronts of latency, other resources and measured accuracy (QS-DNN, section VI-C and figures 10 to 13).

Accuracies are measured, so only of plans on the front of resources that are known by then. QS-DNN measures those that are up
to 25 % slower than the fastest; here such plans come first, and slower ones fill what is left of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.scheduler.selection.accuracy import Measure
from nnstretch.scheduler.selection.constraints.pareto import pareto
from nnstretch.scheduler.selection.problem import Assignment, Problem

_SLOWER = 0.25
"""Share by which plans that are measured first may be slower than the fastest (QS-DNN, section VI-C)."""


@dataclass(frozen=True)
class AccuracyFront:
    """Plans that no other measured one beats in latency, in all resources and in accuracy, the fastest first.

    Attributes:
        points: their assignments.
        accuracies: measured ones, in percent.
        candidates: number of plans on the front without accuracy.
        measured: number of plans whose accuracy was measured.
        gap: of the front without accuracy (`ParetoFront.gap`).
    """

    points: tuple[Assignment, ...]
    accuracies: tuple[float, ...]
    candidates: int
    measured: int
    gap: float


def accuracy_front(
    problem: Problem, resources: Sequence[str], order: str, accuracy: Measure, most: int
) -> AccuracyFront:
    """Measures plans on the front of cost, resources and what says how accurate they probably are.

    Args:
        problem: with amounts of the resources.
        resources: that count in the result; may be empty.
        order: the resource that stands for accuracy among the candidates: the more of it, the less accurate.
        accuracy: measures a plan, in percent.
        most: number of plans that are measured at most; 2 or more.

    Raises:
        SelectionError: no assignment is within the limits.
    """
    front = pareto(problem, [*dict.fromkeys((*resources, order))])
    chosen = measured_first(front.points, most)
    accuracies = [accuracy(point) for point in chosen]
    rows = [
        (point.cost, *(point.amounts[name] for name in resources), -reached)
        for point, reached in zip(chosen, accuracies, strict=True)
    ]
    kept = [number for number in range(len(rows)) if not any(_beats(other, rows[number]) for other in rows)]
    kept = [number for place, number in enumerate(kept) if rows[number] not in [rows[k] for k in kept[:place]]]
    return AccuracyFront(
        tuple(chosen[number] for number in kept),
        tuple(accuracies[number] for number in kept),
        len(front.points),
        len(chosen),
        front.gap,
    )


def measured_first(points: Sequence[Assignment], most: int) -> list[Assignment]:
    """At most `most` points of a front, both ends among them, evenly spread; those near the fastest come before others.

    Args:
        points: the fastest first.
        most: 2 or more.
    """
    if len(points) <= most:
        return list(points)
    near = [point for point in points if point.cost <= (1 + _SLOWER) * points[0].cost]
    far = points[len(near) :]
    slots = max(most - len(near), 1) if far else 0
    return [*_spread(near, most - slots), *_spread(far[::-1], slots)[::-1]]


def _spread(points: Sequence[Assignment], count: int) -> list[Assignment]:
    """A number of points, evenly spread, with the first and, of several, the last."""
    if len(points) <= count:
        return list(points)
    return [points[round(number * (len(points) - 1) / max(count - 1, 1))] for number in range(count)]


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)
