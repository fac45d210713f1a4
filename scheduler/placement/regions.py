"""Placement of whole networks by single-entry single-exit regions and dynamic programming.

A cut lies after a unit if all later units that read earlier results read one and the same set of results, the
cut set. All queues are idle until the cut set is complete, so a region's time depends on what came before
only through the queues of the cut set. Dynamic programming from the last region to the first combines the
best placements of regions. Inception modules, residual blocks and fire modules are such regions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.placement.exact import ExactSearch
from nnstretch.scheduler.placement.heuristics import heft, improved
from nnstretch.scheduler.placement.problem import Part, Placement, PlacementProblem, Schedule, Turn, makespan, transfer

_MOST_ENTRIES = 81
"""Largest number of ways to compute a cut set; cuts with more are not used."""
_MOST_UNITS = 16
"""Largest number of units of a region that is searched exactly."""
_MOST_STATES = 1_500
"""States after which the exact search of a region for one entry is given up."""
_MOST_SPLIT_STATES = 100
"""The same where units may be split. Bounds ignore transfers and are loose then."""
_FEW_ENTRIES, _FEW_STATES = 16, 60
"""Entries of a region from which on the exact search of each is given up after so few states.

Three processors have 81 ways to make the four results of an inception module. Local search from the schedules of other
entries finds as good ones as a long search, which would take minutes.
"""

Ways = tuple[int, ...]
"""For the units of a cut set the numbers of the ways in which they are computed."""


@dataclass(frozen=True)
class Region:
    """Units `first` to `last` of a problem, between the cut sets `entry`, made before them, and `exit`, which they make."""

    first: int
    last: int
    entry: tuple[int, ...]
    exit: tuple[int, ...]


@dataclass(frozen=True)
class _Answer:
    """The best schedule of a region and what follows: ways and order of its units, total seconds, and a lower bound."""

    ways: Ways
    order: tuple[Turn, ...]
    seconds: float
    bound: float


def place(problem: PlacementProblem, most_states: int | None = None) -> Placement:
    """The fastest placement: proved optimal if all regions are small enough, else with a lower bound.

    Args:
        problem: the problem.
        most_states: states after which the exact search of a region for one entry is given up; by default fewer where
            units may be split, or where a region has many entries.
    """
    regions = find_regions(problem)
    answers: list[dict[Ways, _Answer]] = []
    after: dict[Ways, _Answer] = {(): _Answer((), (), 0.0, 0.0)}
    for region in reversed(regions):
        states = _states(problem, region) if most_states is None else most_states
        after = _solve(problem, region, after, states)
        answers.insert(0, after)
    return _joined(problem, regions, answers)


def _states(problem: PlacementProblem, region: Region) -> int:
    """States of the exact search of a region for one entry."""
    entries = math.prod(len(problem.ways[u]) for u in region.entry)
    if entries > _FEW_ENTRIES:
        return _FEW_STATES
    return _MOST_SPLIT_STATES if any(problem.splits) else _MOST_STATES


def find_regions(problem: PlacementProblem) -> list[Region]:
    """The regions in order; together they have all units."""
    regions: list[Region] = []
    first = 0
    entry: tuple[int, ...] = ()
    count = len(problem.reads)
    for last in range(count):
        cut_set = _cut_set(problem, first, last)
        if cut_set is not None or last == count - 1:
            regions.append(Region(first, last, entry, cut_set or ()))
            first, entry = last + 1, cut_set or ()
    return regions


def _cut_set(problem: PlacementProblem, first: int, last: int) -> tuple[int, ...] | None:
    """The cut set after unit `last`; None if there is no cut.

    No unit of the region may read it: queues that have fetched its results would make a difference to what follows.
    """
    wanted = {tuple(s for s in sources if s <= last) for sources in problem.reads[last + 1 :]} - {()}
    if len(wanted) != 1:
        return None
    (cut_set,) = wanted
    inside = all(first <= u and problem.readers[u][0] > last for u in cut_set) and _all_lead_to(
        problem, first, last, cut_set
    )
    ways = math.prod(len(problem.ways[u]) for u in cut_set)
    return cut_set if inside and ways <= _MOST_ENTRIES else None


def _all_lead_to(problem: PlacementProblem, first: int, last: int, cut_set: Sequence[int]) -> bool:
    """Whether everything in the region precedes the cut set, and everything after the region depends on it."""
    needed = set(cut_set)
    for unit in range(last, first - 1, -1):
        if unit in needed:
            needed.update(problem.reads[unit])
    return all(unit in needed for unit in range(first, last + 1)) and all(problem.reads[last + 1 :])


def _solve(
    problem: PlacementProblem, region: Region, after: Mapping[Ways, _Answer], most_states: int
) -> dict[Ways, _Answer]:
    """The best schedules of a region for all ways of its entry. Entries with equal costs for all queues share one."""
    answers: dict[Ways, _Answer] = {}
    known: dict[tuple[float, ...], _Answer] = {}
    for entry in itertools.product(*(range(len(problem.ways[u])) for u in region.entry)):
        sub = _subproblem(problem, region, entry)
        key = _entry_cost(sub, len(entry))
        if key not in known:
            count = len(entry)
            begun = [(u, part.queue) for u in range(count) for part in sub.ways[u][0]]
            earlier = [
                ((0,) * count + a.ways, (*begun, *((count + u, queue) for u, queue in a.order))) for a in known.values()
            ]
            known[key] = _best(sub, region, earlier, after, most_states)
        answers[entry] = known[key]
    return answers


def _subproblem(problem: PlacementProblem, region: Region, entry: Ways) -> PlacementProblem:
    """A region as a problem. Its first units are the entry, with one way each and no duration."""
    units = (*region.entry, *range(region.first, region.last + 1))
    number = {unit: i for i, unit in enumerate(units)}
    made = [problem.ways[u][way] for u, way in zip(region.entry, entry, strict=True)]
    placed = np.full((len(entry), problem.queues), np.inf)
    for row, way in zip(placed, made, strict=True):
        if len(way) == 1:
            row[way[0].queue] = 0.0
    splits = tuple((tuple(Part(p.queue, 0.0, p.size) for p in way),) if len(way) > 1 else () for way in made)
    reads = [()] * len(entry) + [
        tuple(sorted(number[s] for s in problem.reads[u])) for u in range(region.first, region.last + 1)
    ]
    return PlacementProblem(
        np.concatenate([placed, problem.seconds[region.first : region.last + 1]]),
        tuple(reads),
        tuple(problem.sizes[u] for u in units),
        problem.interference,
        splits + problem.splits[region.first : region.last + 1] if problem.splits else (),
    )


def _entry_cost(sub: PlacementProblem, entries: int) -> tuple[float, ...]:
    """Seconds for each queue to fetch the entry, which the first reader fetches whole."""
    first = next((u for u in range(entries, len(sub.reads)) if sub.reads[u] and sub.reads[u][0] < entries), None)
    if first is None:
        return ()
    ways = [0] * len(sub.reads)
    return tuple(transfer(sub, (first, queue), ways) for queue in range(sub.queues))


def _best(
    sub: PlacementProblem, region: Region, earlier: Sequence[Schedule], after: Mapping[Ways, _Answer], most_states: int
) -> _Answer:
    """The best schedule of a region. `earlier` are those for other entries, `after` the answers for every way of the exit."""
    entries = len(region.entry)
    exits = [u - region.first + entries for u in region.exit]

    def cost(plan: Schedule) -> float:
        ways, order = plan
        return makespan(sub, ways, order) + after[tuple(ways[u] for u in exits)].seconds

    plan = min([heft(sub), *earlier], key=cost)
    seconds, proved = cost(plan), False
    if len(sub.reads) - entries <= _MOST_UNITS:
        following = {ways: answer.seconds for ways, answer in after.items()}
        search = ExactSearch(sub, exits, following, plan, seconds, most_states)
        proved = search.run(entries)
        plan, seconds = search.plan, search.cost
    bound = sub.bound + min(answer.bound for answer in after.values())
    if proved:
        bound = max(bound, seconds - max(answer.seconds - answer.bound for answer in after.values()))
    else:
        plan, seconds = improved(sub, plan, cost)
    ways, order = plan
    order = tuple((u - entries, queue) for u, queue in order if u >= entries)
    return _Answer(ways[entries:], order, seconds, min(bound, seconds))


def _joined(
    problem: PlacementProblem, regions: Sequence[Region], answers: Sequence[Mapping[Ways, _Answer]]
) -> Placement:
    ways: list[int] = []
    order: list[Turn] = []
    for region, found in zip(regions, answers, strict=True):
        answer = found[tuple(ways[u] for u in region.entry)]
        ways += answer.ways
        order += [(region.first + u, queue) for u, queue in answer.order]
    seconds = makespan(problem, ways, order)
    bound = min((a.bound for a in answers[0].values()), default=0.0) if answers else 0.0
    chosen = tuple(of_unit[way] for of_unit, way in zip(problem.ways, ways, strict=True))
    return Placement(chosen, tuple(order), seconds, min(bound, seconds))
