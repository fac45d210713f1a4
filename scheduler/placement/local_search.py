"""Local search: units change their way, and chains of units their queue, while that improves a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nnstretch.scheduler.placement.problem import PlacementProblem, Schedule, Turn, transfer

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
    ranks = [0.0] * len(ways)
    for unit in reversed(range(len(ways))):
        after = max((_delay(problem, reader, ways) + ranks[reader] for reader in problem.readers[unit]), default=0.0)
        ranks[unit] = max(part.seconds for part in problem.ways[unit][ways[unit]]) + after
    depth = [0] * len(ways)  # ties: units without duration have the rank of their reader and come first
    for unit, sources in enumerate(problem.reads):
        depth[unit] = 1 + max((depth[s] for s in sources), default=0)
    units = sorted(range(len(ways)), key=lambda u: (-ranks[u], depth[u], u))
    return tuple((unit, part.queue) for unit in units for part in problem.ways[unit][ways[unit]])


def _delay(problem: PlacementProblem, unit: int, ways: Sequence[int]) -> float:
    """Seconds of the longest transfer before a part of a unit, if nothing was fetched before."""
    return max(transfer(problem, (unit, part.queue), ways) for part in problem.ways[unit][ways[unit]])


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
