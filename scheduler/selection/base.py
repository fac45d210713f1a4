"""What selectors share: presolving, limits, the way back to the caller's choices, and honest gaps.

A searcher says how it searches one kind of problem: without limits and without impossible choices. Here the problem is
brought into that form, and an answer that breaks a limit or is forbidden is replaced: by the proven optimum within the
limits where the searcher is exact, else by the legal assignment nearest to what it wanted.
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
class Found:
    """What a search came to: choices, a proved lower bound in seconds (None: they are optimal), and how it went.

    `choices` is None where the problem was too large for the search.
    """

    choices: Sequence[int] | None
    bound: float | None = None
    states: int = 0
    curve: tuple[tuple[int, float], ...] = ()


class ExactSearcher(Selector):
    """A selector whose answer is a proven optimum, unless the problem is too large for it.

    Then PBQP's answer is given instead, as NeoCPU does (section 3.3.2), with the best bound that was proved.
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
    def _search(self, problem: Problem) -> Found:
        """The optimum of a problem without limits, of which every node has two choices or more."""


class HeuristicSearcher(Selector):
    """A selector that gives up proofs for simplicity; it sees all layers in order."""

    def select(self, problem: Problem) -> Assignment:
        reduction = possible(problem)
        found = self._search(reduction.problem)
        if found.bound is None:
            found = replace(found, bound=lower_bound(reduction.problem))
        return _answered(problem, reduction, found, exact=False)

    @abstractmethod
    def _search(self, problem: Problem) -> Found:
        """Choices for every node, legal or not, of a problem of which every choice has a partner on every edge.

        No bound means that none was proved.
        """


def _answered(problem: Problem, reduction: Reduction, found: Found, *, exact: bool) -> Assignment:
    """The answer to the caller's problem, made legal."""
    small = reduction.problem
    assert found.choices is not None
    choices, bound = found.choices, found.bound
    if not (np.isfinite(small.cost(choices)) and small.keeps_limits(choices)):
        check_limits(problem)
        if exact:
            choices, bound = cheapest_within(small)
        else:
            choices = nearest_legal(small, choices)
    lifted = None if bound is None else bound + reduction.constant
    return assignment(problem, reduction.lift(choices), lifted, found.states, found.curve)
