"""Exact selection by dynamic programming: nodes are eliminated one by one, cheapest table first.

On a chain this is the classic dynamic programming of NeoCPU (section 3.3.2, algorithm 2); residual edges and joins only make
the tables a little wider. A node is eliminated by summing all tables that mention it and keeping, for every combination of
its neighbours' choices, its best choice. Exact for every graph; memory grows with the graph's treewidth, so past `limit`
table entries the widest table is cut: the neighbour that makes it too wide is fixed to its locally best choice, which
gives up the proof of optimality, and the bound is then the sum of every table's minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nnstretch.scheduler.problem import Assignment, Costs, Problem, Selector


@dataclass
class _Table:
    """A cost table over `nodes` (ascending); `values` has one axis per node."""

    nodes: tuple[int, ...]
    values: Costs


@dataclass
class _State:
    """Tables that remain, and how to recover the choices of eliminated nodes."""

    tables: list[_Table]
    sizes: tuple[int, ...]
    recover: list[tuple[int, tuple[int, ...], np.ndarray]] = field(default_factory=list)
    fixed: dict[int, int] = field(default_factory=dict)


class Elimination(Selector):
    """Exact dynamic programming over any graph of small treewidth."""

    name = "elimination"

    def __init__(self, limit: int = 1 << 24) -> None:
        """`limit`: entries of the largest table that may be built."""
        self._limit = limit

    def select(self, problem: Problem) -> Assignment:
        sizes = tuple(len(c) for c in problem.costs)
        tables = [_Table((i,), np.asarray(c, dtype=np.float64)) for i, c in enumerate(problem.costs)]
        tables += [_Table(edge, np.asarray(m, dtype=np.float64)) for edge, m in problem.edges.items()]
        bound = sum(float(t.values.min()) for t in tables)
        state = _State(tables, sizes)
        neighbours = _neighbours(problem)
        left = set(range(len(sizes)))
        while left:
            node = min(left, key=lambda n: (_width(neighbours[n], sizes), n))
            if _width(neighbours[node], sizes) * sizes[node] > self._limit:
                node = max(left, key=lambda n: (len(neighbours[n]), -n))
                _fix(state, node)
            else:
                _eliminate(state, node)
                for other in neighbours[node]:
                    neighbours[other] |= neighbours[node] - {other}
            for other in neighbours.pop(node):
                neighbours[other].discard(node)
            left.remove(node)
        choices = _recover(state)
        cost = problem.cost(choices)
        optimal = not state.fixed
        gap = 0.0 if optimal or cost == 0 else max(0.0, (cost - bound) / cost)
        return Assignment(choices, cost, optimal, gap)


def _neighbours(problem: Problem) -> dict[int, set[int]]:
    neighbours: dict[int, set[int]] = {i: set() for i in range(len(problem.costs))}
    for u, v in problem.edges:
        neighbours[u].add(v)
        neighbours[v].add(u)
    return neighbours


def _width(nodes: set[int], sizes: tuple[int, ...]) -> int:
    width = 1
    for node in nodes:
        width *= sizes[node]
    return width


def _joined(tables: list[_Table], sizes: tuple[int, ...]) -> _Table:
    nodes = tuple(sorted({n for t in tables for n in t.nodes}))
    total = np.zeros(tuple(sizes[n] for n in nodes))
    for table in tables:
        shape = tuple(sizes[n] if n in table.nodes else 1 for n in nodes)
        total += table.values.reshape(shape)
    return _Table(nodes, total)


def _eliminate(state: _State, node: int) -> None:
    touching = [t for t in state.tables if node in t.nodes]
    joined = _joined(touching, state.sizes)
    axis = joined.nodes.index(node)
    others = tuple(n for n in joined.nodes if n != node)
    state.recover.append((node, others, joined.values.argmin(axis=axis)))
    state.tables = [t for t in state.tables if node not in t.nodes]
    state.tables.append(_Table(others, joined.values.min(axis=axis)))


def _fix(state: _State, node: int) -> None:
    """Gives `node` the choice that is best if all its neighbours could choose for themselves."""
    hoped = np.zeros(state.sizes[node])
    for table in state.tables:
        if node in table.nodes:
            axes = tuple(i for i, n in enumerate(table.nodes) if n != node)
            hoped += table.values.min(axis=axes)
    choice = int(hoped.argmin())
    state.fixed[node] = choice
    state.tables = [
        _Table(tuple(n for n in t.nodes if n != node), np.asarray(t.values.take(choice, axis=t.nodes.index(node))))
        if node in t.nodes
        else t
        for t in state.tables
    ]


def _recover(state: _State) -> tuple[int, ...]:
    choices = dict(state.fixed)
    for node, others, best in reversed(state.recover):
        choices[node] = int(best[tuple(choices[n] for n in others)])
    return tuple(choices[i] for i in range(len(state.sizes)))
