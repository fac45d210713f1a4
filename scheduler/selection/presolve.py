"""What can be said of a problem before it is searched: impossible choices, and choices that are never the better ones.

Choices that no choice of some neighbour goes with are removed (arc consistency). Then a choice goes for which another
one of the same node is at least as good whatever the neighbours choose: the sum, over its edges, of the most that the
change can cost does not exceed what it saves, and it needs no more of any limited resource (the dead-end elimination of
Goldstein, Biophysical Journal 66, 1994). Choices with equal edges, of which only the cheapest stays, are the plainest
case. Nodes with one choice left are folded into their neighbours.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import SelectionError
from nnstretch.scheduler.selection.problem import Costs, Problem, loosened

_RIVALS = 16
"""A choice is compared with so many of its node's cheapest."""

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Reduction:
    """A smaller problem with the same best assignments, and the way back.

    Attributes:
        problem: what is left to choose; limits are lowered by what the fixed choices need.
        constant: what the fixed choices cost, seconds.
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
    """The problem without impossible and dominated choices, and without nodes that have nothing to choose.

    Args:
        problem: is left as it is.
        amounts: resources of which a dominating choice may not need more, beside the limited ones.

    Raises:
        SelectionError: some node has no possible choice.
    """
    heeded = tuple(dict.fromkeys((*problem.limits, *amounts)))
    narrowing = _Narrowing(problem, heeded)
    narrowing.remove_impossible()
    narrowing.remove_dominated()
    return _folded(problem, narrowing.kept(), heeded)


def possible(problem: Problem) -> Reduction:
    """The problem without impossible choices, all of its nodes kept: for searches that look at it layer by layer.

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
    def __init__(self, problem: Problem, heeded: Sequence[str]) -> None:
        self._problem = problem
        self._alive = [np.isfinite(c) for c in problem.costs]
        self._around: dict[int, list[tuple[int, Costs]]] = defaultdict(list)
        for (u, v), matrix in problem.edges.items():
            self._around[u].append((v, matrix))
            self._around[v].append((u, matrix.T))
        self._amounts = [problem.amounts[r] for r in heeded]

    def kept(self) -> tuple[Indices, ...]:
        return tuple(np.flatnonzero(a) for a in self._alive)

    def remove_impossible(self) -> None:
        """Removes choices until each goes with some choice of every neighbour."""
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
                        f"no choice of {self._problem.name(first)} goes with one of {self._problem.name(second)}; "
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
        baselines = np.sort(np.argsort(costs, kind="stable")[:_RIVALS])
        worse = (
            costs[baselines][:, None] - costs[None, :]
        )  # (baseline, choice): what taking the baseline instead costs at most
        with np.errstate(invalid="ignore"):  # infinite less infinite is no number, and that is never <= 0
            for other, matrix in self._around[node]:
                part = matrix[np.ix_(choices, self._alive[other].nonzero()[0])]
                change = part[baselines][:, None, :] - part[None, :, :]
                change[:, np.isinf(part)] = -np.inf  # what is forbidden anyway cannot get worse
                worse += change.max(axis=2)
        for amounts in self._amounts:
            mine = amounts[node][choices]
            worse[mine[baselines][:, None] > mine[None, :]] = np.inf
        dominates = worse <= 0
        dominates[np.arange(len(baselines)), baselines] = False
        return self._remove(node, choices, baselines, dominates)

    def _remove(self, node: int, choices: Indices, baselines: Indices, dominates: NDArray[np.bool_]) -> bool:
        """Removes one choice after another as long as a baseline that dominates it is left."""
        row_of = {int(choice): row for row, choice in enumerate(baselines)}
        left = np.ones(len(baselines), dtype=bool)
        removed = False
        for choice in range(len(choices) - 1, -1, -1):
            if not (dominates[:, choice] & left).any():
                continue
            self._alive[node][choices[choice]] = False
            removed = True
            if choice in row_of:
                left[row_of[choice]] = False
        return removed


def _folded(problem: Problem, kept: tuple[Indices, ...], heeded: Sequence[str]) -> Reduction:
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
    amounts = {r: tuple(problem.amounts[r][n][kept[n]] for n in free) for r in heeded}
    limits = _lowered(problem, kept)
    names = tuple(problem.name(n) for n in free)
    small = Problem(tuple(costs[n] for n in free), edges, amounts, limits, problem.seed, names)
    return Reduction(small, constant, tuple(free), kept)


def _lowered(problem: Problem, kept: tuple[Indices, ...]) -> Mapping[str, float]:
    """Limits less what the nodes with one choice need."""
    limits = {}
    for resource, limit in problem.limits.items():
        amounts = problem.amounts[resource]
        limits[resource] = loosened(limit) - sum(
            float(a[k[0]]) for a, k in zip(amounts, kept, strict=True) if len(k) == 1
        )
    return limits
