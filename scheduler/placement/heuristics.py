"""Heuristics for large regions: HEFT, the start of searches, and local search.

In local search units change their way, and chains of units their queue, while that improves a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nnstretch.scheduler.placement.problem import PlacementProblem, Schedule, Turn, transfer


def heft(problem: PlacementProblem) -> Schedule:
    """A schedule by heterogeneous earliest finish time (Topcuoglu, Hariri and Wu, 2002).

    Units come by descending rank, each in the way that ends first, in gaps of queues too. Contention between queues is ignored.
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


Cost = Callable[[Schedule], float]
"""Seconds of a schedule and of everything after it."""

_MOST_TRIED = 1500


def improved(problem: PlacementProblem, plan: Schedule, cost: Cost) -> tuple[Schedule, float]:
    """The best schedule found from `plan` on, and its cost.

    A move computes one unit in another way, or a chain of units (each read only by the next) on another
    queue. The order follows from the ways. The search ends when no move helps or too many were tried.
    """
    best, least = plan, cost(plan)
    reordered = (plan[0], by_rank(problem, plan[0]))
    if (seconds := cost(reordered)) < least:
        best, least = reordered, seconds
    moves = list(_moves(problem))
    tried, helped = 0, True
    while helped and tried < _MOST_TRIED:
        helped = False
        for move in moves:
            moved = tuple(move.get(unit, way) for unit, way in enumerate(best[0]))
            if moved == best[0] or tried >= _MOST_TRIED:
                continue
            tried += 1
            candidate = (moved, by_rank(problem, moved))
            seconds = cost(candidate)
            if seconds < least * (1 - 1e-9):
                best, least, helped = candidate, seconds, True
    return best, least


def by_rank(problem: PlacementProblem, ways: Sequence[int]) -> tuple[Turn, ...]:
    """The order of parts for given ways: units with the longest path to the end first."""
    ranks, delays = (
        [0.0] * len(ways),
        [0.0] * len(ways),
    )  # of the longest transfer before a part, if nothing was fetched
    for unit in reversed(range(len(ways))):
        after = max((delays[reader] + ranks[reader] for reader in problem.readers[unit]), default=0.0)
        parts = problem.ways[unit][ways[unit]]
        ranks[unit] = max(part.seconds for part in parts) + after
        delays[unit] = max(transfer(problem, (unit, part.queue), ways) for part in parts)
    depth = [0] * len(ways)  # ties: units without duration have the rank of their reader and come first
    for unit, sources in enumerate(problem.reads):
        depth[unit] = 1 + max((depth[s] for s in sources), default=0)
    units = sorted(range(len(ways)), key=lambda u: (-ranks[u], depth[u], u))
    return tuple((unit, part.queue) for unit in units for part in problem.ways[unit][ways[unit]])


def _moves(problem: PlacementProblem) -> Iterator[dict[int, int]]:
    """All moves: units and their new ways."""
    for unit, ways in enumerate(problem.ways):
        yield from ({unit: number} for number in range(len(ways)))
    whole = [{way[0].queue: n for n, way in enumerate(ways) if len(way) == 1} for ways in problem.ways]
    for chain in _chains(problem):
        for queue in range(problem.queues):
            yield {unit: whole[unit][queue] for unit in chain if queue in whole[unit]}


def _chains(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Longest chains of units in which each reads only the one before and is its only reader."""
    follows = {
        unit: problem.readers[unit][0]
        for unit in range(len(problem.reads))
        if len(problem.readers[unit]) == 1 and len(problem.reads[problem.readers[unit][0]]) == 1
    }
    begins = set(follows) - set(follows.values())
    chains = []
    for unit in sorted(begins):
        chain = [unit]
        while chain[-1] in follows:
            chain.append(follows[chain[-1]])
        chains.append(tuple(chain))
    return chains
