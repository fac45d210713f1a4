"""Label setting: dynamic programming over undominated partial assignments (labels).

Nodes are decided in order. Labels with the same choices on the frontier can be completed in the same ways. So one that is no
better than another in cost and every resource is dominated and dropped. The labels of the last node are the Pareto front.
Labels whose bound (`bounds.reparametrised`, with priced resources) reaches the cost of a known answer are dropped, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.bounds import reparametrised
from nnstretch.scheduler.selection.exact.tables import Stage, entries, stages
from nnstretch.scheduler.selection.problem import Costs, Problem, loosened

Indices = NDArray[np.intp]
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Front:
    """Undominated assignments, the cheapest last.

    Attributes:
        choices: the choices of each.
        cut: least bound of the labels that exceeded the capacity; infinite if there were none.
        slack: for cost and each resource, the most by which a thinned-out assignment can beat one of these that is no
            worse in the rest.
        stuck: the node without labels; None if all nodes have some, or if a limit is negative.
        labels: number of labels that were compared.
    """

    choices: tuple[tuple[int, ...], ...]
    cut: float
    slack: Costs
    stuck: int | None
    labels: int


@dataclass(frozen=True, eq=False)
class _Labels:
    """Arrays with one row per label: frontier choices, cost, lower bound, amounts, previous label and last choice."""

    frontier: Indices
    cost: Costs
    bound: Costs
    amounts: Costs  # one column per resource
    parent: Indices
    choice: Indices

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, rows: Indices) -> _Labels:
        return _Labels(*(column[rows] for column in vars(self).values()))


def cheaper_than(problem: Problem, best: float, prices: Sequence[float], capacity: int) -> Front:
    """The cheapest assignments within the limits that cost less than `best` seconds; the last one is the cheapest.

    Args:
        problem: the problem; may have limits.
        best: cost of a known answer; infinite if there is none.
        prices: seconds per amount of each limited resource, for better bounds.
        capacity: largest number of labels of one node; those with the largest bounds are dropped.
    """
    search = _Search(problem, tuple(problem.limits), prices, best)
    return search.run(lambda labels: search.cut(labels, capacity))


def front(problem: Problem, resources: Sequence[str], capacity: int) -> Front:
    """The Pareto front of cost and `resources` within the limits.

    A node with more than `capacity` labels keeps representative ones.
    """
    relevant = tuple(dict.fromkeys((*resources, *problem.limits)))
    search = _Search(problem, relevant, [0.0] * len(problem.limits), np.inf)
    return search.run(lambda labels: search.thin(labels, capacity))


@dataclass
class _Search:
    problem: Problem
    resources: tuple[str, ...]
    prices: Sequence[float]
    best: float
    dropped: float = np.inf
    slack: Costs = field(init=False)
    labels: int = 0

    def __post_init__(self) -> None:
        problem, count = self.problem, len(self.problem.costs)
        self.slack = np.zeros(1 + len(self.resources))
        self._amounts = [
            np.stack([problem.amounts[r][n] for r in self.resources], axis=1)
            if self.resources
            else np.zeros((problem.sizes[n], 0))
            for n in range(count)
        ]
        least = [a.min(axis=0) for a in self._amounts]
        self._to_come = [sum(least[n + 1 :], np.zeros(len(self.resources))) for n in range(count)]
        self._limits = np.array([loosened(problem.limits.get(r, np.inf)) for r in self.resources])
        self._relaxed = reparametrised(priced_costs(problem, self.prices), problem.edges)
        self._paid = sum(p * loosened(x) for p, x in zip(self.prices, problem.limits.values(), strict=True))

    def run(self, prune: Callable[[_Labels], _Labels]) -> Front:
        labels = _Labels(
            np.zeros((1, 0), dtype=np.intp),
            np.zeros(1),
            np.full(1, self._relaxed.bound),
            np.zeros((1, len(self.resources))),
            np.zeros(1, dtype=np.intp),
            np.zeros(1, dtype=np.intp),
        )
        history: list[_Labels] = []
        if not np.all(self._limits >= 0):
            return Front((), self.dropped, self.slack, None, 0)
        for stage in stages(self.problem):
            labels = self._extended(labels, stage)
            self.labels += len(labels)
            states = _states(labels.frontier, stage.after, self.problem.sizes)
            labels = labels.take(undominated(states, labels.cost, labels.amounts))
            labels = prune(labels)
            if not len(labels):
                return Front((), self.dropped, self.slack, stage.node, self.labels)
            history.append(labels)
        return Front(_traced(labels, history), self.dropped, self.slack, None, self.labels)

    def _extended(self, labels: _Labels, stage: Stage) -> _Labels:
        """All labels with all choices of a node that keep the limits and may beat the known answer."""
        problem, node = self.problem, stage.node
        more = np.broadcast_to(problem.costs[node], (len(labels), problem.sizes[node]))
        proved = np.broadcast_to(self._relaxed.costs[node], more.shape)
        for other in stage.reads:
            mine = labels.frontier[:, stage.before.index(other)]
            more = more + problem.edges[other, node][mine]
            proved = proved + self._relaxed.edges[other, node][mine]
        bound = labels.bound[:, None] + proved
        amounts = labels.amounts[:, None, :] + self._amounts[node]
        allowed = np.isfinite(more) & (bound - self._paid < self.best)
        allowed &= np.all(amounts + self._to_come[node] <= self._limits, axis=2)
        rows, choice = np.nonzero(allowed)
        columns = [choice if n == node else labels.frontier[rows, stage.before.index(n)] for n in stage.after]
        frontier = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), dtype=np.intp)
        cost = labels.cost[rows] + more[rows, choice]
        return _Labels(frontier, cost, bound[rows, choice], amounts[rows, choice], rows, choice)

    def cut(self, labels: _Labels, capacity: int) -> _Labels:
        """The labels with the smallest bounds."""
        if len(labels) <= capacity:
            return labels
        order = np.argsort(labels.bound, kind="stable")
        self.dropped = min(self.dropped, float(labels.bound[order[capacity]]) - self._paid)
        return labels.take(np.sort(order[:capacity]))

    def thin(self, labels: _Labels, capacity: int) -> _Labels:
        """Representative labels.

        These are the cheapest label of each state and, in each cell of a grid over cost and all resources but the first,
        the label with the least of the first.
        """
        if len(labels) <= capacity:
            return labels
        _, states = np.unique(labels.frontier, axis=0, return_inverse=True)
        states = states.reshape(-1)
        cells = max(1, int((capacity / (states.max() + 1)) ** (1 / len(self.resources))))
        coordinates = np.column_stack([labels.cost, labels.amounts[:, 1:]])
        step = np.ptp(coordinates, axis=0) / cells
        self.slack += np.insert(step, 1, 0.0)
        cell = np.floor((coordinates - coordinates.min(axis=0)) / np.where(step > 0, step, 1.0)).astype(np.int64)
        order = np.lexsort((labels.amounts[:, 0], *cell.T, states))
        representative = order[_firsts(np.column_stack([states, cell])[order])]
        order = np.lexsort((labels.cost, states))
        return labels.take(np.union1d(representative, order[_firsts(states[order][:, None])]))


def _firsts(rows: Indices) -> NDArray[np.bool_]:
    """Mask of rows that differ from the previous one."""
    return np.append(True, np.any(rows[1:] != rows[:-1], axis=1))


def priced_costs(problem: Problem, prices: Sequence[float]) -> tuple[Costs, ...]:
    """Costs of choices, including their amount of each limited resource at its price."""
    costs = problem.costs
    for resource, price in zip(problem.limits, prices, strict=True):
        if price:
            costs = tuple(c + price * a for c, a in zip(costs, problem.amounts[resource], strict=True))
    return costs


def priced(problem: Problem, prices: Sequence[float]) -> Problem:
    """The problem with prices instead of limits."""
    return replace(problem, costs=priced_costs(problem, prices), limits={})


def _states(frontier: Indices, nodes: tuple[int, ...], sizes: tuple[int, ...]) -> Indices:
    """A number for each row of a frontier; equal rows have equal numbers."""
    if entries(nodes, sizes) < 1 << 62:
        state = np.zeros(len(frontier), dtype=np.intp)
        for column, node in enumerate(nodes):
            state = state * sizes[node] + frontier[:, column]
        return state
    return np.unique(frontier, axis=0, return_inverse=True)[1].reshape(-1)


def undominated(states: Indices, cost: Costs, amounts: Costs) -> Indices:
    """Undominated rows of each state, by cost and all amounts; one of several equal rows."""
    if not len(cost):
        return np.zeros(0, dtype=np.intp)
    order = np.lexsort((cost, *amounts.T[::-1], states))
    first = _firsts(states[order][:, None])
    if amounts.shape[1] < 2:
        kept = _falling(cost[order], first) if amounts.shape[1] else first
        return np.asarray(order[kept], dtype=np.intp)
    table = np.column_stack([cost, amounts])[order]
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(order))
    rows = np.concatenate([b + _undominated_rows(table[b:e]) for b, e in zip(starts, ends, strict=True)])
    return np.asarray(order[rows], dtype=np.intp)


def _falling(cost: Costs, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mask of the rows that are cheaper than all earlier ones of their group.

    Args:
        cost: sorted by amount within groups.
        first: mask of the first row of each group.
    """
    rank = np.unique(cost, return_inverse=True)[1].reshape(-1).astype(np.int64)
    falling = rank - np.cumsum(first) * (len(cost) + 1)  # every group lies below all earlier groups
    least = np.minimum.accumulate(falling)
    return np.append(True, falling[1:] < least[:-1])


def _undominated_rows(table: Costs) -> Indices:
    """Rows that no earlier row dominates or equals; rows are sorted so that only an earlier one can dominate."""
    kept = np.zeros((0, table.shape[1]))
    found: list[Indices] = []
    for first in range(0, len(table), _BLOCK):
        block = table[first : first + _BLOCK]
        dominated = np.zeros(len(block), dtype=bool)
        for start in range(0, len(kept), 4 * _BLOCK):
            part = kept[start : start + 4 * _BLOCK]
            dominated |= np.all(part[None, :, :] <= block[:, None, :], axis=2).any(axis=1)
        left = np.flatnonzero(~dominated)
        inside = np.all(block[left][None, :, :] <= block[left][:, None, :], axis=2)
        left = left[~np.tril(inside, -1).any(axis=1)]
        kept = np.concatenate([kept, block[left]])
        found.append(first + left)
    return np.concatenate(found)


def _traced(labels: _Labels, history: list[_Labels]) -> tuple[tuple[int, ...], ...]:
    """The choices of each label of the last node, the cheapest last."""
    rows = np.argsort(-labels.cost, kind="stable")
    columns: list[Indices] = []
    for stage in reversed(history):
        columns.append(stage.choice[rows])
        rows = stage.parent[rows]
    if not columns:
        return ((),)
    return tuple(tuple(int(i) for i in row) for row in np.stack(columns[::-1], axis=1))
