"""Improves placements: units, and chains of them, move to other lanes while that helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnstretch.scheduler.placement.problem import PlacementProblem, handover

Plan = tuple[tuple[int, ...], tuple[int, ...]]
"""Lanes and order."""

Cost = Callable[[Plan], float]
"""Seconds of a plan, and of what comes after it."""

_MOST_TRIED = 1500


def improved(problem: PlacementProblem, plan: Plan, cost: Cost) -> tuple[Plan, float]:
    """The best plan found from `plan` on, and its cost.

    Every unit and every chain of units (of which only the next reads the one before) is tried on every other lane, the order
    following from the lanes, until no move helps or too many were tried.
    """
    best, least = plan, cost(plan)
    reordered = (plan[0], by_rank(problem, plan[0]))
    if (seconds := cost(reordered)) < least:
        best, least = reordered, seconds
    groups = [(u,) for u in range(len(problem.reads))] + _chains(problem)
    tried, helped = 0, True
    while helped and tried < _MOST_TRIED:
        helped = False
        for group in groups:
            for lane in range(problem.lanes):
                moved = _moved(problem, best[0], group, lane)
                if moved is None or tried >= _MOST_TRIED:
                    continue
                tried += 1
                candidate = (moved, by_rank(problem, moved))
                seconds = cost(candidate)
                if seconds < least * (1 - 1e-9):
                    best, least, helped = candidate, seconds, True
    return best, least


def by_rank(problem: PlacementProblem, lanes: Sequence[int]) -> tuple[int, ...]:
    """The order of units on given lanes: the longest way to the end first."""
    ranks = [0.0] * len(lanes)
    for unit in reversed(range(len(lanes))):
        after = 0.0
        for reader in problem.readers[unit]:
            delay = handover(problem, reader, lanes[reader], lanes) if lanes[reader] != lanes[unit] else 0.0
            after = max(after, delay + ranks[reader])
        ranks[unit] = float(problem.seconds[unit, lanes[unit]]) + after
    depth = [0] * len(lanes)  # units of no duration have the rank of their reader, and still come before it
    for unit, sources in enumerate(problem.reads):
        depth[unit] = 1 + max((depth[s] for s in sources), default=0)
    return tuple(sorted(range(len(lanes)), key=lambda u: (-ranks[u], depth[u], u)))


def _moved(problem: PlacementProblem, lanes: Sequence[int], group: Sequence[int], lane: int) -> tuple[int, ...] | None:
    """Lanes with a group moved as far as its units may; None if nothing changes."""
    moved = list(lanes)
    for unit in group:
        if lane in problem.allowed(unit):
            moved[unit] = lane
    return None if moved == list(lanes) else tuple(moved)


def _chains(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Longest runs of units of which each reads the one before alone, and is its only reader."""
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
