"""Dijkstra's shortest path through the layers' implementations (QS-DNN, section VI-D)."""

from __future__ import annotations

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.best_first import best_first
from nnstretch.scheduler.selection.problem import Problem


class Dijkstra(ExactSearcher):
    """Exact: the cheapest partial assignment goes on first.

    On branching networks states remember all layers that are still to be read.
    """

    name = "dijkstra"

    def __init__(self, most: int = 100_000) -> None:
        """`most`: states after which PBQP answers instead."""
        self._most = most

    def _search(self, problem: Problem) -> SearchResult:
        return best_first(problem, problem.costs, problem.edges, 0.0, self._most)
