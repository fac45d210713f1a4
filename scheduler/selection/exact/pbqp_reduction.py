"""Reductions of partitioned boolean quadratic problems (NeoCPU, section 3.3.2; Hames and Scholz, JMLC 2006).

A node without edges takes its cheapest choice (R0). A node with one edge is folded into its neighbour's costs (RI), a
node with two into a new edge between its neighbours (RII). These three are exact. If all remaining nodes have more edges,
one takes the choice that is cheapest with each neighbour at its own best choice (RN), which is a heuristic.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.selection.bounds import reparametrised
from nnstretch.scheduler.selection.exact.tables import Recovery
from nnstretch.scheduler.selection.problem import Costs, Problem


def solve_pbqp(problem: Problem) -> tuple[tuple[int, ...], bool]:
    """Choices for all nodes without regard to limits, and whether they are optimal: no node was decided by RN."""
    state = _Reducing(problem)
    decided_by_heuristic = False
    while state.left:
        node = state.next_reducible()
        if node is None:
            decided_by_heuristic = True
            state.reduce_by_heuristic()
        else:
            state.fold(node)
    return state.recovery.choices(len(problem.costs)), not decided_by_heuristic


def solve_with_bound(problem: Problem) -> tuple[tuple[int, ...], float | None]:
    """Choices for all nodes without regard to limits, and a lower bound in seconds, None if they are optimal.

    If RN decides nodes, the reduction is repeated on reparametrised costs, with which RN errs less.
    """
    choices, optimal = solve_pbqp(problem)
    if optimal:
        return choices, None
    relaxed = reparametrised(problem.costs, problem.edges)
    if np.isfinite(relaxed.bound):
        again, _ = solve_pbqp(Problem(relaxed.costs, relaxed.edges))
        if problem.cost(again) < problem.cost(choices):
            choices = again
    return choices, relaxed.bound


@dataclass
class _Reducing:
    recovery: Recovery
    left: set[int]

    def __init__(self, problem: Problem) -> None:
        self.recovery = Recovery()
        self.left = set(range(len(problem.costs)))
        self._costs = [np.array(c) for c in problem.costs]
        self._edges: list[dict[int, Costs]] = [{} for _ in problem.costs]
        for (u, v), matrix in problem.edges.items():
            self._edges[u][v] = matrix
            self._edges[v][u] = matrix.T
        self._queue = [(len(e), n) for n, e in enumerate(self._edges) if len(e) <= 2]
        heapq.heapify(self._queue)

    def next_reducible(self) -> int | None:
        """A node with at most two edges, the fewest first; None if there is none."""
        while self._queue:
            degree, node = heapq.heappop(self._queue)
            if node in self.left and len(self._edges[node]) == degree:
                return node
        return None

    def fold(self, node: int) -> None:
        """Applies R0, RI or RII."""
        others = sorted(self._edges[node])
        total = self._costs[node]
        if len(others) == 1:
            total = total[:, None] + self._edges[node][others[0]]
        elif len(others) == 2:
            first, second = (self._edges[node][o] for o in others)
            total = total[:, None, None] + first[:, :, None] + second[:, None, :]
        self.recovery.record(node, tuple(others), np.asarray(total.argmin(axis=0)))
        least = total.min(axis=0)
        self._remove(node)
        if len(others) == 1:
            self._costs[others[0]] = self._costs[others[0]] + least
        elif len(others) == 2:
            self._add_edge(others[0], others[1], least)

    def reduce_by_heuristic(self) -> None:
        """RN: decides the node with the most edges."""
        node = max(self.left, key=lambda n: (len(self._edges[n]), -n))
        estimate = self._costs[node].copy()
        for other, matrix in self._edges[node].items():
            estimate += (matrix + self._costs[other]).min(axis=1)
        choice = int(estimate.argmin())
        for other, matrix in self._edges[node].items():
            self._costs[other] = self._costs[other] + matrix[choice]
        self.recovery.record(node, (), np.asarray(choice))
        self._remove(node)

    def _add_edge(self, u: int, v: int, matrix: Costs) -> None:
        known = self._edges[u].get(v)
        total = matrix if known is None else known + matrix
        self._edges[u][v], self._edges[v][u] = total, total.T
        self._enqueue(u)
        self._enqueue(v)

    def _remove(self, node: int) -> None:
        self.left.remove(node)
        for other in self._edges[node]:
            del self._edges[other][node]
            self._enqueue(other)
        self._edges[node] = {}

    def _enqueue(self, node: int) -> None:
        if len(self._edges[node]) <= 2:
            heapq.heappush(self._queue, (len(self._edges[node]), node))
