"""NeoCPU's global search: dynamic programming in the order of the layers (section 3.3.2, algorithm 2).

Keeps the best path to every scheme of a layer. A layer's scheme stays in the table until its last consumer is decided, as the
section describes for elementwise additions, so the table spans all layers with undecided consumers.
"""

from __future__ import annotations

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.frontier import stages
from nnstretch.scheduler.selection.exact.tables import Recovery, Table, joined, unary, without
from nnstretch.scheduler.selection.problem import Problem


class GlobalSearch(ExactSearcher):
    """Exact while few layers have undecided consumers; otherwise PBQP answers, as in the paper for SSD."""

    name = "global-search"

    def __init__(self, limit: int = 1 << 22) -> None:
        """`limit`: maximum number of entries of a table."""
        self._limit = limit

    def _search(self, problem: Problem) -> SearchResult:
        sizes = problem.sizes
        recovery, states = Recovery(), 0
        table = joined([], sizes)
        for stage in stages(problem):
            if table.values.size * sizes[stage.node] > self._limit:
                return SearchResult(None, states=states)
            edges = [Table((u, stage.node), problem.edges[u, stage.node]) for u in stage.reads]
            table = joined([table, unary(problem, stage.node), *edges], sizes)
            states += table.values.size
            for node in (*stage.before, stage.node):
                if node not in stage.after:
                    table = without(table, node, recovery)
        return SearchResult(recovery.choices(len(sizes)), states=states)
