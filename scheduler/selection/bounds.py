"""Proved lower bounds by reparametrisation: costs move between nodes and edges to maximise the sum of all minima.

Moving a cost from an edge to one of its ends changes no assignment's total, so the sum of all minima is always a lower bound.
The order is that of sequential tree-reweighted message passing (Kolmogorov, IEEE Trans. PAMI 28(10), 2006): each node in turn
collects from all its edges and distributes to its forward edges. On trees the bound is the optimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.selection.problem import Costs, Problem

_SWEEPS = 12
_GAIN = 1e-6
"""Sweeps end at a relative gain of the bound below this."""


@dataclass(frozen=True, eq=False)
class Reparametrisation:
    """Costs with the same totals as the problem's, less `bound`; the minimum of every table is 0.

    After the last sweep, costs are as early in the order of nodes as possible.
    """

    bound: float
    costs: tuple[Costs, ...]
    edges: Mapping[tuple[int, int], Costs]


def lower_bound(problem: Problem) -> float:
    """Lower bound of every assignment's cost in seconds, without regard to limits."""
    return reparametrised(problem.costs, problem.edges).bound


def reparametrised(costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> Reparametrisation:
    """Costs reparametrised for the largest bound."""
    state = _Reparametriser(costs, edges)
    order = range(len(costs))
    best = -np.inf
    for _ in range(_SWEEPS):
        state.sweep(order, forward=True)
        state.sweep(reversed(order), forward=False)
        bound = state.bound()
        if not bound > best + _GAIN * abs(best):
            break
        best = bound
    return state.normalised()


class _Reparametriser:
    def __init__(self, costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]) -> None:
        self._costs = [np.array(c, dtype=np.float64) for c in costs]
        self._edges = {e: np.array(m, dtype=np.float64) for e, m in edges.items()}
        self._before: list[list[Costs]] = [[] for _ in costs]  # matrices with this node's choices as rows
        self._after: list[list[Costs]] = [[] for _ in costs]
        for (u, v), matrix in self._edges.items():
            self._after[u].append(matrix)
            self._before[v].append(matrix.T)

    def sweep(self, order: Iterable[int], *, forward: bool) -> None:
        for node in order:
            onward = self._after[node] if forward else self._before[node]
            cost = self._costs[node]
            for matrix in (*self._before[node], *self._after[node]):
                least = matrix.min(axis=1)
                cost += least
                matrix -= np.where(np.isfinite(least), least, 0.0)[:, None]
            if onward:
                share = np.where(np.isfinite(cost), cost, 0.0)
                share /= max(len(self._before[node]), len(self._after[node]))
                for matrix in onward:
                    matrix += share[:, None]
                cost -= len(onward) * share

    def bound(self) -> float:
        return sum(float(c.min()) for c in self._costs) + sum(float(m.min()) for m in self._edges.values())

    def normalised(self) -> Reparametrisation:
        bound = self.bound()
        if np.isfinite(bound):
            for table in (*self._costs, *self._edges.values()):
                table -= table.min()
        return Reparametrisation(bound, tuple(self._costs), self._edges)
