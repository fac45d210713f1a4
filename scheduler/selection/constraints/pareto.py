"""Pareto fronts: all trade-offs between cost and other resources (QS-DNN, figures 10 to 13; SoftNeuro's future work)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import SelectionError, UsageError
from nnstretch.scheduler.selection.constraints.labels import front
from nnstretch.scheduler.selection.constraints.limits import cheapest_within, check_limits
from nnstretch.scheduler.selection.presolve import Reduction, reduced
from nnstretch.scheduler.selection.problem import Assignment, Costs, Problem, assignment

_ROOM = 20_000
"""Labels of one node for two objectives; comparing takes longer with more of them."""
_ROOM_OF_MANY = 3_000
_PRICES = 12
"""How many prices every resource but the first is tried at."""
_CORNERS = 400
"""Budgets of each resource at which a front of many objectives is compared with its bound."""


@dataclass(frozen=True)
class ParetoFront:
    """Assignments of which none is better than another in cost and all resources, the cheapest first.

    Attributes:
        points: the assignments, with their amounts.
        gap: 0 if the front is complete. Else, whatever the budgets of the resources are, as long as one of these is within
            them: the best of these costs at most this share more than it would have to.
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
    small = reduction.problem
    heeded = tuple(dict.fromkeys((*resources, *problem.limits)))
    found = front(small, resources, room or (_ROOM if len(heeded) == 1 else _ROOM_OF_MANY))
    if not found.choices:
        cheapest_within(small)
        raise SelectionError("labels were lost in a front that is not empty")
    if len(resources) > 1 and found.slack.any():
        choices, bounds = _priced_fronts(small, resources, room or _ROOM)
        points = _lifted(problem, reduction, [*choices, *found.choices])
        best = _undominated(points, resources)
        return ParetoFront(tuple(best), _worst_gap(best, bounds, resources, reduction, problem))
    best = _undominated(_lifted(problem, reduction, found.choices), resources)
    return ParetoFront(tuple(best), _share(float(found.slack[0]), min(p.cost for p in best)))


def _share(slack: float, least: float) -> float:
    """Slack as a share of the least cost, at most 1."""
    if slack <= 0:
        return 0.0
    return min(1.0, slack / least) if least > 0 else 1.0


def _lifted(problem: Problem, reduction: Reduction, choices: Sequence[Sequence[int]]) -> list[Assignment]:
    return [assignment(problem, reduction.lift(c), None) for c in choices]


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


@dataclass(frozen=True, eq=False)
class _Bound:
    """What a front at some prices proves: with at most so much of the first resource, cost and priced amounts are so high.

    Amounts of the first resource ascend, costs (less what was thinned out) descend.
    """

    prices: Costs
    amounts: Costs
    costs: Costs

    def at(self, budgets: Costs) -> Costs:
        """Least priced cost below budgets of the first resource; infinite below what any assignment needs."""
        place = np.searchsorted(self.amounts, budgets, side="left") - 1
        return np.where(place >= 0, self.costs[np.maximum(place, 0)], np.inf)


def _priced_fronts(problem: Problem, resources: Sequence[str], room: int) -> tuple[list[tuple[int, ...]], list[_Bound]]:
    """Fronts of cost against the first resource alone, with all others at prices from nothing to all that counts."""
    others = resources[1:]
    ranges = [_price_range(problem, r) for r in others]
    choices: list[tuple[int, ...]] = []
    bounds: list[_Bound] = []
    for prices in itertools.product(*ranges):
        costs = problem.costs
        for resource, price in zip(others, prices, strict=True):
            costs = tuple(c + price * a for c, a in zip(costs, problem.amounts[resource], strict=True))
        found = front(replace(problem, costs=costs), resources[:1], room)
        priced = [replace(problem, costs=costs).cost(c) - float(found.slack[0]) for c in found.choices]
        amounts = [problem.amount(resources[0], c) for c in found.choices]
        order = np.argsort(amounts, kind="stable")
        least = np.minimum.accumulate(np.array(priced)[order])
        bounds.append(_Bound(np.array(prices), np.array(amounts)[order], least))
        choices += found.choices
    return choices, bounds


def _price_range(problem: Problem, resource: str) -> list[float]:
    """Nothing, and prices around those at which the cheapest assignment's amount costs as much as its time."""
    choices, _ = cheapest_within(replace(problem, limits={}))
    amount, cost = problem.amount(resource, choices), problem.cost(choices)
    if amount <= 0 or cost <= 0:
        return [0.0]
    return [0.0, *(cost / amount * np.geomspace(1e-3, 1e2, _PRICES - 1)).tolist()]


def _worst_gap(
    points: Sequence[Assignment],
    bounds: Sequence[_Bound],
    resources: Sequence[str],
    reduction: Reduction,
    problem: Problem,
) -> float:
    """How much more the points cost than was proved, at the worst budgets; a few budgets stand for those between them."""
    fixed = {r: _fixed(problem, reduction, r) for r in resources}
    axes = [_corners(np.unique([p.amounts[r] for p in points])) for r in resources]
    costs = np.array([p.cost for p in points])
    mine = np.array([[p.amounts[r] for r in resources] for p in points])
    worst = 0.0
    for places in itertools.product(*(range(len(axis)) for axis in axes[1:])):
        budgets = [axis[i] for axis, i in zip(axes[1:], places, strict=True)]
        above = [np.append(axis, np.inf)[i + 1] for axis, i in zip(axes[1:], places, strict=True)]
        inside = np.all(mine[:, 1:] <= budgets, axis=1)
        if not inside.any():
            continue
        order = np.argsort(mine[inside, 0], kind="stable")
        best = np.minimum.accumulate(costs[inside][order])
        place = np.searchsorted(mine[inside, 0][order], axes[0], side="right") - 1
        reached = np.where(place >= 0, best[np.maximum(place, 0)], np.nan)
        after = np.append(axes[0][1:], np.inf)
        proved = np.full(len(after), -np.inf)
        for bound in bounds:
            paid = sum(p * (a - fixed[r]) for p, a, r in zip(bound.prices, above, resources[1:], strict=True) if p)
            proved = np.maximum(proved, bound.at(after - fixed[resources[0]]) - paid)
        missing = np.where(np.isfinite(reached), reached - np.maximum(proved + reduction.constant, 0.0), 0.0)
        gaps = np.divide(missing, reached, out=np.zeros_like(missing), where=reached > 0)
        worst = max(worst, float(gaps.max()))
    return min(1.0, worst)


def _corners(amounts: Costs) -> Costs:
    """The amounts, or so many of them."""
    if len(amounts) <= _CORNERS:
        return amounts
    return np.asarray(amounts[np.linspace(0, len(amounts) - 1, _CORNERS).round().astype(int)])


def _fixed(problem: Problem, reduction: Reduction, resource: str) -> float:
    """What the nodes that have nothing to choose need."""
    amounts = zip(problem.amounts[resource], reduction.kept, strict=True)
    return sum(float(a[k[0]]) for a, k in amounts if len(k) == 1)
