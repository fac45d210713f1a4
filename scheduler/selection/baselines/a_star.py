"""A* over the layers' implementations (QS-DNN, section VI-D), with an admissible heuristic."""

from __future__ import annotations

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.best_first import a_star
from nnstretch.scheduler.selection.problem import Problem


class AStar(ExactSearcher):
    """Exact: extends the partial assignment with the lowest estimated total first.

    The paper's heuristic looks two layers ahead and is nearly optimal. This one is the bound of
    `nnstretch.scheduler.selection.bounds`. Dijkstra's algorithm on the reparametrised costs equals A* with that
    heuristic, which is admissible and consistent because no remaining cost is negative.
    """

    name = "a-star"

    def __init__(self, most: int = 100_000) -> None:
        """`most`: number of states after which the search falls back to PBQP."""
        self._most = most

    def _search(self, problem: Problem) -> SearchResult:
        return a_star(problem, self._most)
