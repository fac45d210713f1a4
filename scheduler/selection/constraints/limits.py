"""Limits: the cheapest assignment within the limits of all resources (QS-DNN, section IV-C).

Each limited resource gets a price, which rises until the priced problem's answer keeps the limit (Lagrangian relaxation).
This gives an answer within the limits, and a lower bound. Label setting then finds cheaper answers or proves that there are
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import SelectionError
from nnstretch.scheduler.selection.bounds import lower_bound
from nnstretch.scheduler.selection.constraints.labels import Front, cheaper_than, priced
from nnstretch.scheduler.selection.exact.pbqp_reduction import solve_pbqp
from nnstretch.scheduler.selection.problem import Costs, Problem

Solve = Callable[[Problem], Sequence[int]]

_CAPACITY = 50_000
"""Largest number of labels of one node; smaller with several limits, since comparing takes longer."""
_CAPACITY_OF_MANY = 1_000
_DOUBLINGS = 60
_REFINEMENTS = 16
_ROUNDS = 3
"""Rounds in which the prices of several resources are set in turn."""
_STEPS = 60
"""Subgradient steps that then adjust all prices together."""
_SMALLEST_MB = 1e4
"""Bytes from which on messages say megabytes."""
_PATIENCE = 6
"""Steps without a better bound after which the step length is halved."""


def cheapest_within(problem: Problem, capacity: int | None = None) -> tuple[Sequence[int], float | None]:
    """The cheapest assignment within the limits, and a lower bound in seconds, None if the assignment is optimal.

    Raises:
        SelectionError: there is none; the message names the limits or edges that prevent one.
    """
    pricing = _Pricing(problem, lambda p: solve_pbqp(p)[0])
    prices = pricing.find_prices()
    capacity = capacity or (_CAPACITY_OF_MANY if len(problem.limits) > 1 else _CAPACITY)
    found = cheaper_than(problem, pricing.best_cost, prices, capacity)
    choices = found.choices[-1] if found.choices else pricing.best
    if choices is None:
        raise SelectionError(_why_none(problem, found))
    cost = problem.cost(choices)
    return choices, None if found.cut >= cost else max(found.cut, lower_bound(problem))


def nearest_legal(problem: Problem, wanted: Sequence[int]) -> Sequence[int]:
    """An assignment within the limits that differs from `wanted` in as few nodes as possible.

    Raises:
        SelectionError: there is none.
    """
    costs = tuple((np.arange(n) != w).astype(float) for n, w in zip(problem.sizes, wanted, strict=True))
    edges: dict[tuple[int, int], Costs] = {e: np.where(np.isfinite(m), 0.0, np.inf) for e, m in problem.edges.items()}
    costs = tuple(np.where(np.isfinite(c), d, np.inf) for c, d in zip(problem.costs, costs, strict=True))
    return cheapest_within(replace(problem, costs=costs, edges=edges))[0]


def priced_choices(problem: Problem, solve: Solve) -> Sequence[int] | None:
    """The cheapest answer of `solve` to a priced problem that keeps the limits; None if none does."""
    pricing = _Pricing(problem, solve)
    pricing.find_prices()
    return pricing.best


@dataclass(frozen=True)
class _Point:
    """An answer at some price: its amount of the resource, and its cost including the other resources' prices."""

    amount: float
    cost: float


class _Pricing:
    def __init__(self, problem: Problem, solve: Solve) -> None:
        self._problem = problem
        self._solve = solve
        self._prices = [0.0] * len(problem.limits)
        self.best: Sequence[int] | None = None
        self.best_cost = np.inf

    def find_prices(self) -> list[float]:
        """The lowest prices at which the answers keep the limits."""
        resources = list(self._problem.limits)
        for _ in range(_ROUNDS if len(resources) > 1 else 1):
            for number in range(len(resources)):
                self._prices[number] = 0.0
                self._find_price(number, resources[number])
        if len(resources) > 1 and self.best is not None:
            self._refine()
        return self._prices

    def _refine(self) -> None:
        """Raises the bound by subgradient steps along the excess of each resource (Polyak, 1969)."""
        limits = np.array([self._problem.limits[r] for r in self._problem.limits])
        scale = np.where(limits > 0, limits, 1.0)
        prices = best_prices = np.array(self._prices)
        best_bound, length, waited = -np.inf, 1.0, 0
        for _ in range(_STEPS):
            self._prices = prices.tolist()
            problem = priced(self._problem, self._prices)
            choices = self._solve(problem)
            self._keep_best(choices)
            bound = problem.cost(choices) - float(prices @ limits)
            waited = 0 if bound > best_bound else waited + 1
            if bound > best_bound:
                best_bound, best_prices = bound, prices
            elif waited > _PATIENCE:
                prices, length, waited = best_prices, length / 2, 0
                continue
            excess = np.array([self._problem.amount(r, choices) for r in self._problem.limits]) - limits
            pull = excess / scale
            norm = float(pull @ pull)
            if norm == 0 or not np.isfinite(bound) or self.best_cost - bound <= 1e-9 * self.best_cost:
                break
            step = length * (self.best_cost - bound) / norm
            prices = np.maximum(0.0, prices + step * pull / scale)
        self._prices = best_prices.tolist()

    def _keep_best(self, choices: Sequence[int]) -> float:
        """Keeps choices if they are the best within the limits; returns their cost."""
        cost = self._problem.cost(choices)
        if cost < self.best_cost and self._problem.keeps_limits(choices):
            self.best, self.best_cost = choices, cost
        return cost

    def _find_price(self, number: int, resource: str) -> None:
        limit = self._problem.limits[resource]
        low = self._answer(number, resource, 0.0)
        if low.amount <= limit or not np.isfinite(low.cost):
            return
        price = max(low.cost, 1e-12) / (low.amount - limit)
        for _ in range(_DOUBLINGS):
            high = self._answer(number, resource, price)
            if high.amount <= limit:
                break
            low = high
            price *= 2
        else:
            return
        for _ in range(_REFINEMENTS):
            between = max(0.0, high.cost - low.cost) / (low.amount - high.amount)
            if not np.isfinite(between):
                self._prices[number] = price
                return
            found = self._answer(number, resource, between)
            if found in {low, high} or not low.amount > found.amount > high.amount:
                self._prices[number] = between
                return
            if found.amount <= limit:
                high = found
            else:
                low = found

    def _answer(self, number: int, resource: str, price: float) -> _Point:
        self._prices[number] = price
        problem = priced(self._problem, self._prices)
        choices = self._solve(problem)
        self._keep_best(choices)
        amount = self._problem.amount(resource, choices)
        return _Point(amount, problem.cost(choices) - price * amount)


def check_limits(problem: Problem) -> None:
    """Checks each limit against a lower bound of its resource.

    Raises:
        SelectionError: every assignment exceeds a limit.
    """
    for resource, limit in problem.limits.items():
        least = lower_bound(_only(problem, resource))
        if least > limit + 1e-9 * max(abs(limit), least):
            raise SelectionError(
                f"{resource} is limited to {_amount_text(resource, limit)}, but every plan needs at least "
                f"{_amount_text(resource, least)}; raise the limit"
            )


def _amount_text(resource: str, amount: float) -> str:
    """An amount with its unit, where that is known."""
    if resource != "memory":
        return f"{amount:.6g}"
    return f"{amount / 1e6:.2f} MB" if amount >= _SMALLEST_MB else f"{amount:.6g} byte{'s' * (amount != 1)}"


def _only(problem: Problem, resource: str) -> Problem:
    """The problem of minimising the amount of a resource."""
    costs = tuple(
        np.where(np.isfinite(c), a, np.inf) for c, a in zip(problem.costs, problem.amounts[resource], strict=True)
    )
    edges: dict[tuple[int, int], Costs] = {e: np.where(np.isfinite(m), 0.0, np.inf) for e, m in problem.edges.items()}
    return Problem(costs, edges)


def _why_none(problem: Problem, found: Front) -> str:
    """The message for a problem without an assignment."""
    if problem.limits:
        how = "keeps" if np.isinf(found.cut) else "was found that keeps"
        return (
            f"no assignment {how} the limits of {' and '.join(problem.limits)} without a forbidden pair; raise a limit"
        )
    assert found.stuck is not None
    edges = ", ".join(f"({u}, {v})" for u, v in sorted(problem.edges) if v == found.stuck)
    return (
        f"the edges {edges} forbid all choices of {problem.name(found.stuck)} with any earlier choices; "
        "allow more pairs"
    )
