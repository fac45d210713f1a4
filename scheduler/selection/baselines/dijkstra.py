"""Dijkstra's shortest path over the layers' implementations (QS-DNN, section VI-D)."""

from __future__ import annotations

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.best_first import best_first
from nnstretch.scheduler.selection.problem import Problem


class Dijkstra(ExactSearcher):
    """Exact: extends the cheapest partial assignment first.

    On branching networks a state holds the choices of all layers with undecided consumers.
    """

    name = "dijkstra"

    def __init__(self, most: int = 100_000) -> None:
        """`most`: number of states after which the search falls back to PBQP."""
        self._most = most

    def _search(self, problem: Problem) -> SearchResult:
        return best_first(problem, problem.costs, problem.edges, 0.0, self._most)
