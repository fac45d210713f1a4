"""Selection as a partitioned boolean quadratic problem: exact reductions, and a heuristic where none applies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.scheduler.selection.constraints.limits import check_limits, nearest_legal, priced_choices
from nnstretch.scheduler.selection.exact.pbqp_reduction import solve_with_bound
from nnstretch.scheduler.selection.presolve import reduced
from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector, assignment


class Pbqp(Selector):
    """NeoCPU's approximate search (section 3.3.2): R0, RI and RII, then RN node by node.

    Limits become prices: a choice's amount of a resource adds to its cost, at the lowest price that keeps the limits.
    """

    name = "pbqp"

    def select(self, problem: Problem) -> Assignment:
        reduction = reduced(problem)
        small = reduction.problem
        choices: Sequence[int]
        choices, bound = solve_with_bound(small)
        if not (np.isfinite(small.cost(choices)) and small.keeps_limits(choices)):
            check_limits(problem)
            bound = small.cost(choices) if bound is None else bound
            choices = priced_choices(small, lambda p: solve_with_bound(p)[0]) or nearest_legal(small, choices)
        return assignment(problem, reduction.lift(choices), None if bound is None else bound + reduction.constant)
