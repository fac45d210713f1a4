"""HEFT, heterogeneous earliest finish time (Topcuoglu, Hariri and Wu, 2002): the baseline, and where searches begin."""

from __future__ import annotations

import numpy as np

from nnstretch.scheduler.placement.problem import PlacementProblem, handover


def heft(problem: PlacementProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lanes and order: the unit with the longest way to the end first, on the lane where it is done first, in gaps too.

    Times are those of lanes that do not slow each other down.
    """
    ranks = _ranks(problem)
    lanes = [0] * len(problem.reads)
    begins = [0.0] * len(problem.reads)
    ends = [0.0] * len(problem.reads)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(problem.lanes)]
    for unit in sorted(range(len(ranks)), key=lambda u: (-ranks[u], u)):
        ready = max((ends[s] for s in problem.reads[unit]), default=0.0)
        found = []
        for lane in problem.allowed(unit):
            taken = handover(problem, unit, lane, lanes) + float(problem.seconds[unit, lane])
            begin = _first_gap(busy[lane], ready, taken)
            found.append((begin + taken, lane, begin))
        ends[unit], lanes[unit], begins[unit] = min(found)
        busy[lanes[unit]].append((begins[unit], ends[unit]))
        busy[lanes[unit]].sort()
    order = sorted(range(len(ranks)), key=lambda u: (begins[u], ends[u], -ranks[u], u))
    return tuple(lanes), tuple(order)


def _ranks(problem: PlacementProblem) -> list[float]:
    """Mean seconds from a unit's begin to the end of all that depends on it, with handovers between any two lanes."""
    pairs = [(a, b) for a in range(problem.lanes) for b in range(problem.lanes)]
    ranks = [0.0] * len(problem.reads)
    for unit in reversed(range(len(ranks))):
        row = problem.seconds[unit]
        mean = float(np.mean(row[np.isfinite(row)]))
        size = problem.sizes[unit]
        passing = [problem.handover(b, frozenset({a}), size) if a != b else 0.0 for a, b in pairs]
        after = max((ranks[r] for r in problem.readers[unit]), default=None)
        ranks[unit] = mean + (0.0 if after is None else after + float(np.mean(passing)))
    return ranks


def _first_gap(busy: list[tuple[float, float]], ready: float, taken: float) -> float:
    """When a lane with these busy times, ascending, has time for something that is ready then and takes so long."""
    begin = ready
    for start, end in busy:
        if begin + taken <= start:
            break
        begin = max(begin, end)
    return begin
