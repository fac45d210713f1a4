"""Base classes of selectors: presolving, limits, and proved gaps.

A subclass searches a problem without limits and without impossible choices. The base class reduces the caller's problem to that
form. It replaces an answer that breaks a limit or is forbidden: by the proven optimum within the limits for exact searches, by
the nearest legal assignment for heuristics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.scheduler.selection.bounds import lower_bound
from nnstretch.scheduler.selection.constraints.limits import cheapest_within, check_limits, nearest_legal
from nnstretch.scheduler.selection.exact.pbqp_reduction import solve_with_bound
from nnstretch.scheduler.selection.presolve import Reduction, possible, reduced
from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector, assignment


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        choices: one index per node; None if the problem was too large for the search.
        bound: proved lower bound, seconds; None if `choices` are optimal.
        states: see `Assignment`.
        curve: see `Assignment`.
    """

    choices: Sequence[int] | None
    bound: float | None = None
    states: int = 0
    curve: tuple[tuple[int, float], ...] = ()


class ExactSearcher(Selector):
    """A selector that proves the optimum unless the problem is too large for it.

    Otherwise it returns PBQP's answer, as NeoCPU does (section 3.3.2), with the best proved bound.
    """

    def select(self, problem: Problem) -> Assignment:
        reduction = reduced(problem)
        small = reduction.problem
        found = self._search(replace(small, limits={}))
        if found.choices is None:
            choices, bound = solve_with_bound(small)
            known = -np.inf if found.bound is None else found.bound
            found = replace(found, choices=choices, bound=None if bound is None else max(known, bound))
        assert found.choices is not None
        return _answered(problem, reduction, found, exact=True)

    @abstractmethod
    def _search(self, problem: Problem) -> SearchResult:
        """The optimum of a problem without limits, in which every node has at least two choices."""


class HeuristicSearcher(Selector):
    """A selector without proofs, which searches all layers in order."""

    def select(self, problem: Problem) -> Assignment:
        reduction = possible(problem)
        found = self._search(reduction.problem)
        if found.bound is None:
            found = replace(found, bound=lower_bound(reduction.problem))
        return _answered(problem, reduction, found, exact=False)

    @abstractmethod
    def _search(self, problem: Problem) -> SearchResult:
        """Choices for every node, legal or not. Every choice of the problem has an allowed pair on every edge.

        A result without a bound proves none.
        """


def _answered(problem: Problem, reduction: Reduction, found: SearchResult, *, exact: bool) -> Assignment:
    """The answer to the caller's problem, replaced if it is not legal."""
    small = reduction.problem
    assert found.choices is not None
    choices, bound = found.choices, found.bound
    if not (np.isfinite(small.cost(choices)) and small.keeps_limits(choices)):
        check_limits(problem)
        if exact:
            choices, bound = cheapest_within(small)
        else:
            choices = nearest_legal(small, choices)
    whole = None if bound is None else bound + reduction.constant
    return assignment(problem, reduction.lift(choices), whole, found.states, found.curve)
