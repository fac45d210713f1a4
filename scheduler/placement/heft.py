"""HEFT, heterogeneous earliest finish time (Topcuoglu, Hariri and Wu, 2002): the start of searches."""

from __future__ import annotations

import numpy as np

from nnstretch.scheduler.placement.problem import PlacementProblem, Schedule, Turn, transfer


def heft(problem: PlacementProblem) -> Schedule:
    """A schedule: units by descending rank, each in the way that ends first, in gaps of queues too.

    Contention between queues is ignored.
    """
    ranks = _ranks(problem)
    ways = [0] * len(problem.reads)
    begins: dict[Turn, float] = {}
    ends: dict[Turn, float] = {}
    done = [0.0] * len(problem.reads)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(problem.queues)]
    for unit in sorted(range(len(ranks)), key=lambda u: (-ranks[u], u)):
        ready = max((done[s] for s in problem.reads[unit]), default=0.0)
        found = []
        for number, way in enumerate(problem.ways[unit]):
            spans = []
            for part in way:
                taken = transfer(problem, (unit, part.queue), ways) + part.seconds
                begin = _first_gap(busy[part.queue], ready, taken)
                spans.append((begin, begin + taken))
            found.append((max(end for _, end in spans), number, spans))
        done[unit], ways[unit], spans = min(found)
        for part, span in zip(problem.ways[unit][ways[unit]], spans, strict=True):
            begins[unit, part.queue], ends[unit, part.queue] = span
            busy[part.queue].append(span)
            busy[part.queue].sort()
    order = sorted(begins, key=lambda turn: (begins[turn], ends[turn], -ranks[turn[0]], turn))
    return tuple(ways), tuple(order)


def _ranks(problem: PlacementProblem) -> list[float]:
    """Ranks: seconds from the begin of a unit to the end of all that depends on it, as means over ways and transfers."""
    pairs = [(a, b) for a in range(problem.queues) for b in range(problem.queues)]
    ranks = [0.0] * len(problem.reads)
    for unit in reversed(range(len(ranks))):
        mean = float(np.mean([max(part.seconds for part in way) for way in problem.ways[unit]]))
        size = problem.sizes[unit]
        passing = [problem.transfer(b, frozenset({a}), size) if a != b else 0.0 for a, b in pairs]
        after = max((ranks[r] for r in problem.readers[unit]), default=None)
        ranks[unit] = mean + (0.0 if after is None else after + float(np.mean(passing)))
    return ranks


def _first_gap(busy: list[tuple[float, float]], ready: float, taken: float) -> float:
    """The first begin from `ready` on at which a queue with these busy times, ascending, is free for `taken` seconds."""
    begin = ready
    for start, end in busy:
        if begin + taken <= start:
            break
        begin = max(begin, end)
    return begin
