"""Exact selection by eliminating one node after another, the one with the smallest table first.

Eliminating a node sums all tables that contain it and keeps its best choice for every combination of its neighbours'
choices. On a chain this is the dynamic programming of NeoCPU (section 3.3.2, algorithm 2); residual edges and joins
widen the tables. Exact for every graph; memory and time grow with the graph's treewidth.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.exact.best_first import a_star
from nnstretch.scheduler.selection.exact.tables import Recovery, Table, entries, joined, unary, without
from nnstretch.scheduler.selection.problem import Problem

_STATES = 20_000
"""Largest number of states of A*, which replaces elimination where tables would be too large."""


@dataclass
class Elimination(ExactSearcher):
    """Exact dynamic programming over any graph of small treewidth: the default.

    Uses A* where tables would be too large, and PBQP's answer past the limits of memory and time. Deterministic
    unless it reaches the time limit.
    """

    name = "elimination"
    limit: int = 1 << 24
    """Maximum number of entries of a table."""
    seconds: float = 5.0
    """Time limit."""

    def _search(self, problem: Problem) -> SearchResult:
        # The smallest table first, or else the fewest new edges between neighbours first (min-fill).
        order = _ordered(problem, self.limit, _table_entries) or _ordered(problem, self.limit, _new_edges)
        if order is None:
            return a_star(problem, _STATES)
        end = time.monotonic() + self.seconds
        tables: dict[int, list[Table]] = {n: [unary(problem, n)] for n in range(len(problem.costs))}
        for edge, matrix in problem.edges.items():
            for node in edge:
                tables[node].append(Table(edge, matrix))
        recovery, states = Recovery(), 0
        for node in order:
            if time.monotonic() > end:
                return SearchResult(None, states=states)
            mine = tables.pop(node)
            total = joined(mine, problem.sizes)
            states += total.values.size
            rest = without(total, node, recovery)
            for other in rest.nodes:
                tables[other] = [t for t in tables[other] if node not in t.nodes]
                tables[other].append(rest)
        return SearchResult(recovery.choices(len(problem.costs)), states=states)


_Neighbours = dict[int, set[int]]
_Weigh = Callable[[int, _Neighbours, tuple[int, ...]], int]


def _table_entries(node: int, neighbours: _Neighbours, sizes: tuple[int, ...]) -> int:
    return entries(neighbours[node], sizes) * sizes[node]


def _new_edges(node: int, neighbours: _Neighbours, sizes: tuple[int, ...]) -> int:
    mine = neighbours[node]
    return sum(len(mine) - 1 - len(neighbours[n] & mine) for n in mine) // 2


def _ordered(problem: Problem, limit: int, weigh: _Weigh) -> list[int] | None:
    """The order of least weights first; None if a table would have more than `limit` entries."""
    sizes = problem.sizes
    neighbours: _Neighbours = {n: set() for n in range(len(sizes))}
    for u, v in problem.edges:
        neighbours[u].add(v)
        neighbours[v].add(u)
    weights = {n: weigh(n, neighbours, sizes) for n in neighbours}
    queue = [(w, n) for n, w in weights.items()]
    heapq.heapify(queue)
    order: list[int] = []
    while neighbours:
        weight, node = heapq.heappop(queue)
        if node not in neighbours or weights[node] != weight:
            continue
        if _table_entries(node, neighbours, sizes) > limit:
            return None
        mine = neighbours.pop(node)
        order.append(node)
        for other in mine:
            neighbours[other] |= mine
            neighbours[other] -= {other, node}
        for other in mine:
            weights[other] = weigh(other, neighbours, sizes)
            heapq.heappush(queue, (weights[other], other))
    return order
