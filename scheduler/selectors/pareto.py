"""Pareto fronts: all trade-offs between cost and other resources (QS-DNN, figures 10 to 13; SoftNeuro's future work)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.errors import SelectionError, UsageError
from nnstretch.scheduler.problem import Assignment, Problem, assignment
from nnstretch.scheduler.selectors.labels import front
from nnstretch.scheduler.selectors.limits import cheapest_within, check_limits
from nnstretch.scheduler.selectors.presolve import reduced

_ROOM = 20_000
"""Labels of one node for two objectives; comparing takes longer with more of them."""
_ROOM_OF_MANY = 3_000


@dataclass(frozen=True)
class ParetoFront:
    """Assignments of which none is better than another in cost and all resources, the cheapest first.

    Attributes:
        points: the assignments, with their amounts.
        gap: 0 if the front is complete. Else what was left out is, in cost and in every resource but the first,
            better by at most this share of the least than some point that is no worse in the rest.
    """

    points: tuple[Assignment, ...]
    gap: float


def pareto(problem: Problem, resources: Sequence[str], room: int | None = None) -> ParetoFront:
    """The front of cost against `resources`, within the problem's limits.

    Args:
        problem: with amounts of the resources.
        resources: one or more.
        room: labels of one node beyond which those are thinned out that differ least; then the front's gap says so.

    Raises:
        UsageError: amounts of a resource are not known.
        SelectionError: nothing is within the limits.
    """
    unknown = [r for r in resources if r not in problem.amounts]
    if unknown or not resources:
        known = ", ".join(problem.amounts) or "none"
        raise UsageError(
            f"a front needs resources whose amounts are known ({known}), not {', '.join(unknown) or 'none'}"
        )
    check_limits(problem)
    reduction = reduced(problem, amounts=resources)
    heeded = len(set(resources) | set(problem.limits))
    found = front(reduction.problem, resources, room or (_ROOM if heeded == 1 else _ROOM_OF_MANY))
    if not found.choices:
        cheapest_within(reduction.problem)
        raise SelectionError("labels were lost in a front that is not empty")
    points = [assignment(problem, reduction.lift(c), None) for c in found.choices]
    best = _undominated(points, resources)
    return ParetoFront(tuple(best), _share(found.slack, best, resources))


def _undominated(points: Sequence[Assignment], resources: Sequence[str]) -> list[Assignment]:
    """The points that no other one equals or beats, the cheapest first."""
    ordered = sorted(points, key=lambda p: (p.cost, *(p.amounts[r] for r in resources), p.choices))
    kept: list[Assignment] = []
    table = np.zeros((0, len(resources)))
    for point in ordered:
        mine = np.array([point.amounts[r] for r in resources])
        if not np.any(np.all(table <= mine, axis=1)):
            kept.append(point)
            table = np.vstack([table, mine])
    return kept


def _share(slack: np.ndarray, points: Sequence[Assignment], resources: Sequence[str]) -> float:
    """What was thinned out, as a share of the least cost and amounts."""
    least = [min(p.cost for p in points), *(min(p.amounts[r] for p in points) for r in resources)]
    shares = [s / m if m > 0 else np.inf for s, m in zip(slack, least, strict=False) if s > 0]
    return float(max(shares, default=0.0))
