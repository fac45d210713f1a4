"""Presolving: removes impossible and dominated choices before the search.

A choice is impossible if a neighbour has no choice compatible with it (arc consistency). A choice is dominated if another
one of the same node is at least as good whatever the neighbours choose: the change saves at least the sum, over the node's
edges, of the most that it can cost, and needs no more of any limited resource (the dead-end elimination of Goldstein,
Biophysical Journal 66, 1994). Nodes with one remaining choice are folded into their neighbours.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import SelectionError
from nnstretch.scheduler.selection.problem import Costs, Problem, loosened

_DOMINATORS = 16
"""Number of a node's cheapest choices that others are compared with."""

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Reduction:
    """A smaller problem with the same best assignments.

    Attributes:
        problem: nodes with several choices; limits are lowered by the amounts of the fixed choices.
        constant: cost of the fixed choices, seconds.
        nodes: the original number of each node of `problem`.
        kept: for every original node the original numbers of its remaining choices.
    """

    problem: Problem
    constant: float
    nodes: tuple[int, ...]
    kept: tuple[Indices, ...]

    def lift(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The original choices of an assignment of the smaller problem."""
        found = [int(k[0]) for k in self.kept]
        for node, choice in zip(self.nodes, choices, strict=True):
            found[node] = int(self.kept[node][choice])
        return tuple(found)


def reduced(problem: Problem, *, amounts: Sequence[str] = ()) -> Reduction:
    """The problem without impossible and dominated choices, and without nodes that have one choice.

    Args:
        problem: the problem.
        amounts: resources besides the limited ones; a dominating choice needs no more of any.

    Raises:
        SelectionError: some node has no possible choice.
    """
    relevant = tuple(dict.fromkeys((*problem.limits, *amounts)))
    narrowing = _Narrowing(problem, relevant)
    narrowing.remove_impossible()
    narrowing.remove_dominated()
    return _folded(problem, narrowing.kept(), relevant)


def possible(problem: Problem) -> Reduction:
    """The problem without impossible choices, but with all nodes, for searches layer by layer.

    Raises:
        SelectionError: some node has no possible choice.
    """
    narrowing = _Narrowing(problem, ())
    narrowing.remove_impossible()
    kept = narrowing.kept()
    costs = tuple(c[k] for c, k in zip(problem.costs, kept, strict=True))
    edges = {(u, v): m[np.ix_(kept[u], kept[v])] for (u, v), m in problem.edges.items()}
    amounts = {r: tuple(a[k] for a, k in zip(all_, kept, strict=True)) for r, all_ in problem.amounts.items()}
    small = replace(problem, costs=costs, edges=edges, amounts=amounts)
    return Reduction(small, 0.0, tuple(range(len(costs))), kept)


class _Narrowing:
    def __init__(self, problem: Problem, relevant: Sequence[str]) -> None:
        self._problem = problem
        self._alive = [np.isfinite(c) for c in problem.costs]
        self._around: dict[int, list[tuple[int, Costs]]] = defaultdict(list)
        for (u, v), matrix in problem.edges.items():
            self._around[u].append((v, matrix))
            self._around[v].append((u, matrix.T))
        self._amounts = [problem.amounts[r] for r in relevant]

    def kept(self) -> tuple[Indices, ...]:
        return tuple(np.flatnonzero(a) for a in self._alive)

    def remove_impossible(self) -> None:
        """Removes choices until each is compatible with some choice of every neighbour."""
        for node, alive in enumerate(self._alive):
            if not alive.any():
                raise SelectionError(f"all choices of {self._problem.name(node)} are forbidden; allow one of them")
        waiting = deque(range(len(self._alive)))
        queued = [True] * len(self._alive)
        while waiting:
            node = waiting.popleft()
            queued[node] = False
            for other, matrix in self._around[node]:
                supported = np.isfinite(matrix[self._alive[node]]).any(axis=0)
                left = self._alive[other] & supported
                if left.sum() == self._alive[other].sum():
                    continue
                if not left.any():
                    first, second = sorted((node, other))
                    raise SelectionError(
                        f"no choice of {self._problem.name(first)} is compatible with one of {self._problem.name(second)}; "
                        f"allow a pair on edge ({first}, {second})"
                    )
                self._alive[other] = left
                if not queued[other]:
                    waiting.append(other)
                    queued[other] = True

    def remove_dominated(self) -> None:
        """Removes choices until none of them is dominated."""
        waiting = deque(n for n, alive in enumerate(self._alive) if alive.sum() > 1)
        queued = set(waiting)
        while waiting:
            node = waiting.popleft()
            queued.discard(node)
            if not self._remove_dominated_of(node):
                continue
            for other, _ in self._around[node]:
                if other not in queued and self._alive[other].sum() > 1:
                    waiting.append(other)
                    queued.add(other)

    def _remove_dominated_of(self, node: int) -> bool:
        choices = np.flatnonzero(self._alive[node])
        costs = self._problem.costs[node][choices]
        dominators = np.sort(np.argsort(costs, kind="stable")[:_DOMINATORS])
        # (dominator, choice): the most that taking the dominator instead costs
        worse = costs[dominators][:, None] - costs[None, :]
        with np.errstate(invalid="ignore"):  # inf - inf is NaN, and never <= 0
            for other, matrix in self._around[node]:
                part = matrix[np.ix_(choices, self._alive[other].nonzero()[0])]
                change = part[dominators][:, None, :] - part[None, :, :]
                change[:, np.isinf(part)] = -np.inf  # a forbidden pair cannot become worse
                worse += change.max(axis=2)
        for amounts in self._amounts:
            mine = amounts[node][choices]
            worse[mine[dominators][:, None] > mine[None, :]] = np.inf
        dominates = worse <= 0
        dominates[np.arange(len(dominators)), dominators] = False
        return self._remove(node, choices, dominators, dominates)

    def _remove(self, node: int, choices: Indices, dominators: Indices, dominates: NDArray[np.bool_]) -> bool:
        """Removes each choice that a remaining choice dominates."""
        row_of = {int(choice): row for row, choice in enumerate(dominators)}
        left = np.ones(len(dominators), dtype=bool)
        removed = False
        for choice in range(len(choices) - 1, -1, -1):
            if not (dominates[:, choice] & left).any():
                continue
            self._alive[node][choices[choice]] = False
            removed = True
            if choice in row_of:
                left[row_of[choice]] = False
        return removed


def _folded(problem: Problem, kept: tuple[Indices, ...], relevant: Sequence[str]) -> Reduction:
    costs = [c[k] for c, k in zip(problem.costs, kept, strict=True)]
    free = [n for n, k in enumerate(kept) if len(k) > 1]
    number = {n: i for i, n in enumerate(free)}
    constant = sum(float(costs[n][0]) for n, k in enumerate(kept) if len(k) == 1)
    edges: dict[tuple[int, int], Costs] = {}
    for (u, v), matrix in problem.edges.items():
        part = matrix[np.ix_(kept[u], kept[v])]
        if u in number and v in number:
            edges[number[u], number[v]] = part
        elif u in number:
            costs[u] = costs[u] + part[:, 0]
        elif v in number:
            costs[v] = costs[v] + part[0]
        else:
            constant += float(part[0, 0])
    amounts = {r: tuple(problem.amounts[r][n][kept[n]] for n in free) for r in relevant}
    limits = {}  # less the amounts of nodes with one choice
    for resource, limit in problem.limits.items():
        fixed = zip(problem.amounts[resource], kept, strict=True)
        limits[resource] = loosened(limit) - sum(float(a[k[0]]) for a, k in fixed if len(k) == 1)
    names = tuple(problem.name(n) for n in free)
    small = Problem(tuple(costs[n] for n in free), edges, amounts, limits, problem.seed, names)
    return Reduction(small, constant, tuple(free), kept)
