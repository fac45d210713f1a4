"""Cost tables over a few nodes, and frontiers (decided nodes with edges to undecided ones), for dynamic programming."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.problem import Costs, Problem


@dataclass(frozen=True, eq=False)
class Table:
    """Costs over `nodes` (ascending); `values` has one axis per node."""

    nodes: tuple[int, ...]
    values: Costs


@dataclass
class Recovery:
    """Recovers the choices of eliminated nodes, the last one first."""

    _steps: list[tuple[int, tuple[int, ...], NDArray[np.intp]]] = field(default_factory=list)

    def record(self, node: int, others: tuple[int, ...], best: NDArray[np.intp]) -> None:
        """Records a node's elimination: `best` has its best choice for all choices of `others`, one axis per node."""
        self._steps.append((node, others, best))

    def choices(self, count: int) -> tuple[int, ...]:
        """The choices of nodes 0 to `count` - 1, all eliminated."""
        found: dict[int, int] = {}
        for node, others, best in reversed(self._steps):
            found[node] = int(best[tuple(found[n] for n in others)])
        return tuple(found[i] for i in range(count))


def entries(nodes: Iterable[int], sizes: Sequence[int] | Mapping[int, int]) -> int:
    """Number of entries of a table over nodes."""
    count = 1
    for node in nodes:
        count *= sizes[node]
    return count


def unary(problem: Problem, node: int) -> Table:
    """The costs of a node as a table."""
    return Table((node,), problem.costs[node])


def joined(tables: Sequence[Table], sizes: Sequence[int]) -> Table:
    """The sum of tables, over the union of their nodes."""
    nodes = tuple(sorted({n for t in tables for n in t.nodes}))
    total = np.zeros(tuple(sizes[n] for n in nodes))
    for table in tables:
        total += table.values.reshape(tuple(sizes[n] if n in table.nodes else 1 for n in nodes))
    return Table(nodes, total)


def without(table: Table, node: int, recovery: Recovery) -> Table:
    """The table with a node eliminated: minimised over its choices."""
    axis = table.nodes.index(node)
    others = table.nodes[:axis] + table.nodes[axis + 1 :]
    best = table.values.argmin(axis=axis)
    recovery.record(node, others, best)
    return Table(others, np.take_along_axis(table.values, np.expand_dims(best, axis), axis).squeeze(axis))


@dataclass(frozen=True)
class Stage:
    """The decision of one node.

    Attributes:
        node: the node.
        before: the frontier before the decision, ascending.
        reads: nodes of it with an edge to `node`.
        after: the frontier after the decision, ascending.
    """

    node: int
    before: tuple[int, ...]
    reads: tuple[int, ...]
    after: tuple[int, ...]


def stages(problem: Problem) -> list[Stage]:
    """One stage per node, in order."""
    count = len(problem.costs)
    last = list(range(count))  # the last neighbour of each node
    reads: list[list[int]] = [[] for _ in range(count)]
    for u, v in sorted(problem.edges):
        last[u] = max(last[u], v)
        reads[v].append(u)
    made: list[Stage] = []
    before: tuple[int, ...] = ()
    for node in range(count):
        after = tuple(n for n in (*before, node) if last[n] > node)
        made.append(Stage(node, before, tuple(reads[node]), after))
        before = after
    return made
