"""Frontiers: decided nodes with edges to undecided ones."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.scheduler.selection.problem import Problem


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
