"""The happens-before relation of sub-graphs, on which all checks of concurrency rest.

A sub-graph comes after earlier ones of its queue, since queues run in order, after the sub-graphs that it
waits for, and after everything before these. Two unordered sub-graphs may run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.scheduler.plan.schema import PlanSubgraph


class HappensBefore:
    """Order of sub-graphs and of their steps."""

    def __init__(self, subgraphs: Sequence[PlanSubgraph]) -> None:
        """Computes the order of `subgraphs`, which must be listed topologically (waits name earlier ones)."""
        last_on_queue: dict[int, int] = {}
        self._before: list[int] = []
        self._subgraph_of: list[int] = []
        for i, subgraph in enumerate(subgraphs):
            direct = set(subgraph.waits)
            if subgraph.queue in last_on_queue:
                direct.add(last_on_queue[subgraph.queue])
            before = 0
            for earlier in direct:
                before |= self._before[earlier] | 1 << earlier
            self._before.append(before)
            self._subgraph_of += [i] * subgraph.count
            last_on_queue[subgraph.queue] = i

    def subgraphs(self, first: int, second: int) -> bool:
        """Whether sub-graph `first` is done before `second` starts."""
        return bool(self._before[second] >> first & 1)

    def steps(self, first: int, second: int) -> bool:
        """Whether step `first` is done before step `second` starts."""
        a, b = self._subgraph_of[first], self._subgraph_of[second]
        return first < second if a == b else self.subgraphs(a, b)

    def subgraph_of(self, step: int) -> int:
        """The sub-graph that `step` belongs to."""
        return self._subgraph_of[step]
