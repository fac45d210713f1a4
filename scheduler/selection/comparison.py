"""Comparison of selectors on one problem, as in table III and figure 4 of QS-DNN."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector


@dataclass(frozen=True)
class Compared:
    """A selector's answer, and the seconds of its search."""

    name: str
    answer: Assignment
    seconds: float

    @property
    def best_curve(self) -> tuple[tuple[int, float], ...]:
        """(step, least cost so far) at each improvement and at the last step; empty if the search has no steps."""
        points: list[tuple[int, float]] = []
        for step, cost in self.answer.curve:
            if not points or cost < points[-1][1]:
                points.append((step, cost))
        if points and points[-1][0] < self.answer.curve[-1][0]:
            points.append((self.answer.curve[-1][0], points[-1][1]))
        return tuple(points)


def compare(problem: Problem, selectors: Iterable[Selector]) -> list[Compared]:
    """One row per selector, in their order.

    Raises:
        SelectionError: no assignment is legal.
    """
    rows = []
    for selector in selectors:
        begin = time.perf_counter()
        answer = selector.select(problem)
        rows.append(Compared(selector.name, answer, time.perf_counter() - begin))
    return rows
