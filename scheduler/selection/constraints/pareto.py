"""Pareto fronts of cost and other resources (QS-DNN, figures 10 to 13; SoftNeuro's future work)."""

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

_CAPACITY = 20_000
"""Largest number of labels of one node; smaller with more than two objectives, since comparing takes longer."""
_CAPACITY_OF_MANY = 3_000
_PRICES = 12
"""Number of prices of every resource but the first."""
_CORNERS = 400
"""Number of budgets of each resource at which a front of many objectives is compared with its bound."""


@dataclass(frozen=True)
class ParetoFront:
    """Undominated assignments by cost and all resources, the cheapest first.

    Attributes:
        points: the assignments, with their amounts.
        gap: upper bound of (cost - optimum) / cost, where `cost` is that of the best point within any budgets of the
            resources that some point keeps; 0 if the front is complete.
    """

    points: tuple[Assignment, ...]
    gap: float


def pareto(problem: Problem, resources: Sequence[str], capacity: int | None = None) -> ParetoFront:
    """The front of cost against `resources`, within the problem's limits.

    Args:
        problem: has amounts of the resources.
        resources: one or more.
        capacity: largest number of labels of one node; beyond it, the front keeps representative ones and has a gap.

    Raises:
        UsageError: amounts of a resource are unknown.
        SelectionError: no assignment is within the limits.
    """
    unknown = [r for r in resources if r not in problem.amounts]
    if unknown or not resources:
        known = ", ".join(problem.amounts) or "none"
        raise UsageError(
            f"a Pareto front needs resources with known amounts ({known}); got {', '.join(unknown) or 'none'}"
        )
    check_limits(problem)
    reduction = reduced(problem, amounts=resources)
    small = reduction.problem
    relevant = tuple(dict.fromkeys((*resources, *problem.limits)))
    found = front(small, resources, capacity or (_CAPACITY if len(relevant) == 1 else _CAPACITY_OF_MANY))
    if not found.choices:
        cheapest_within(small)
        raise SelectionError("labels were lost in a front that is not empty")
    if len(resources) > 1 and found.slack.any():
        choices, bounds = _priced_fronts(small, resources, capacity or _CAPACITY)
        points = _original(problem, reduction, [*choices, *found.choices])
        best = _undominated(points, resources)
        return ParetoFront(tuple(best), _worst_gap(best, bounds, resources, reduction, problem))
    best = _undominated(_original(problem, reduction, found.choices), resources)
    slack, least = float(found.slack[0]), min(p.cost for p in best)
    return ParetoFront(tuple(best), 0.0 if slack <= 0 else min(1.0, slack / least) if least > 0 else 1.0)


def _original(problem: Problem, reduction: Reduction, choices: Sequence[Sequence[int]]) -> list[Assignment]:
    return [assignment(problem, reduction.lift(c), None) for c in choices]


def _undominated(points: Sequence[Assignment], resources: Sequence[str]) -> list[Assignment]:
    """The undominated points, the cheapest first; one of several equal points."""
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
    """Lower bound of cost plus priced amounts, as a function of the first resource's budget.

    Attributes:
        prices: seconds per amount of every resource but the first.
        amounts: of the first resource, ascending.
        costs: lower bound at each amount, descending.
    """

    prices: Costs
    amounts: Costs
    costs: Costs

    def at(self, budgets: Costs) -> Costs:
        """The bound strictly below each budget of the first resource; infinite below the least amount."""
        place = np.searchsorted(self.amounts, budgets, side="left") - 1
        return np.where(place >= 0, self.costs[np.maximum(place, 0)], np.inf)


def _priced_fronts(
    problem: Problem, resources: Sequence[str], capacity: int
) -> tuple[list[tuple[int, ...]], list[_Bound]]:
    """Fronts of cost and the first resource, at several prices of the others; the choices and the bounds they prove."""
    others = resources[1:]
    ranges = [_price_range(problem, r) for r in others]
    choices: list[tuple[int, ...]] = []
    bounds: list[_Bound] = []
    for prices in itertools.product(*ranges):
        costs = problem.costs
        for resource, price in zip(others, prices, strict=True):
            costs = tuple(c + price * a for c, a in zip(costs, problem.amounts[resource], strict=True))
        found = front(replace(problem, costs=costs), resources[:1], capacity)
        priced = [replace(problem, costs=costs).cost(c) - float(found.slack[0]) for c in found.choices]
        amounts = [problem.amount(resources[0], c) for c in found.choices]
        order = np.argsort(amounts, kind="stable")
        least = np.minimum.accumulate(np.array(priced)[order])
        bounds.append(_Bound(np.array(prices), np.array(amounts)[order], least))
        choices += found.choices
    return choices, bounds


def _price_range(problem: Problem, resource: str) -> list[float]:
    """0, and prices around the one at which the cheapest assignment's amount costs as much as its time."""
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
    """The largest relative excess of the points' cost over the bounds, over a sample of budgets."""
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
    """The amounts, or `_CORNERS` of them."""
    if len(amounts) <= _CORNERS:
        return amounts
    return np.asarray(amounts[np.linspace(0, len(amounts) - 1, _CORNERS).round().astype(int)])


def _fixed(problem: Problem, reduction: Reduction, resource: str) -> float:
    """Amount of the nodes with one choice."""
    amounts = zip(problem.amounts[resource], reduction.kept, strict=True)
    return sum(float(a[k[0]]) for a, k in amounts if len(k) == 1)
