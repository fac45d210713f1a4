"""A* through the layers' implementations (QS-DNN, section VI-D), with a heuristic that never says too much."""

from __future__ import annotations

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.best_first import promising_first
from nnstretch.scheduler.selection.problem import Problem


class AStar(ExactSearcher):
    """Exact: the partial assignment that promises most goes on first.

    The paper looks two layers ahead, and finds almost the optimum. Here the heuristic is dynamic programming over the
    relaxed problem, in which the branches of a layer may disagree about it: what that proves is moved to where it is
    paid (`nnstretch.scheduler.selection.bounds`), so that Dijkstra on what is left is A* with that heuristic. It is
    admissible and consistent because no cost that is left is negative.
    """

    name = "a-star"

    def __init__(self, most: int = 100_000) -> None:
        """`most`: states after which PBQP answers instead."""
        self._most = most

    def _search(self, problem: Problem) -> SearchResult:
        return promising_first(problem, self._most)
