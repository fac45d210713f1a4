"""Frontiers: of the nodes that were decided, those that nodes to come still look at."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.scheduler.selection.problem import Problem


@dataclass(frozen=True)
class Stage:
    """What deciding a node looks at, and what is remembered afterwards.

    Attributes:
        node: the node that is decided here.
        before: nodes remembered before, ascending.
        reads: those of them that `node` has an edge from.
        after: nodes remembered afterwards, ascending.
    """

    node: int
    before: tuple[int, ...]
    reads: tuple[int, ...]
    after: tuple[int, ...]


def stages(problem: Problem) -> list[Stage]:
    """One stage per node, in order."""
    count = len(problem.costs)
    last = list(range(count))  # the last node that looks at each
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
