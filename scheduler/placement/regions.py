"""Whole networks, cell by cell: where everybody waits for the same results, what comes before and after is placed by itself.

A cut lies behind a unit if whoever comes later and reads anything from before reads one and the same set of results, the
meeting. All queues are idle there until the meeting is complete, so a cell's time depends on what came before by the meeting's
queues alone, and dynamic programming from the last cell to the first joins the cells' best placements. Inception modules are
such cells, so are residual blocks, fire modules and whatever else lies between two cut points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.placement.exact import search
from nnstretch.scheduler.placement.heft import heft
from nnstretch.scheduler.placement.local_search import improved
from nnstretch.scheduler.placement.problem import Part, Placement, PlacementProblem, Plan, Turn, makespan, transfer

_MOST_ENTRIES = 81
"""Ways to place a meeting up to which it is a cut."""
_MOST_UNITS = 16
"""Units of a cell up to which it is searched exactly."""
_MOST_STATES = 1_500
"""States of a cell after which the exact search is given up."""
_MOST_SPLIT_STATES = 100
"""The same where units may be split: the bounds, which know no transfers, are far from what can be reached then."""

Ways = tuple[int, ...]
"""How the units of a meeting are computed, by the numbers of their ways."""


@dataclass(frozen=True)
class Cell:
    """Units `first` to `last` of a problem. `entry` is the meeting before them, `exit` the one that they make."""

    first: int
    last: int
    entry: tuple[int, ...]
    exit: tuple[int, ...]


@dataclass(frozen=True)
class _Answer:
    """The best plan of a cell and all that follows: ways and order of the cell's units, seconds, a proved bound on these."""

    ways: Ways
    order: tuple[Turn, ...]
    seconds: float
    bound: float


def place(problem: PlacementProblem, most_states: int | None = None) -> Placement:
    """The fastest placement: proved if all cells are small enough, else with a bound.

    Args:
        problem: what is to be placed.
        most_states: of a cell, after which its exact search is given up; by default fewer where units may be split.
    """
    if most_states is None:
        most_states = _MOST_SPLIT_STATES if any(problem.splits) else _MOST_STATES
    cells = find_cells(problem)
    answers: list[dict[Ways, _Answer]] = []
    after: dict[Ways, _Answer] = {(): _Answer((), (), 0.0, 0.0)}
    for cell in reversed(cells):
        after = _solve(problem, cell, after, most_states)
        answers.insert(0, after)
    return _joined(problem, cells, answers)


def find_cells(problem: PlacementProblem) -> list[Cell]:
    """The cells in order; together they hold all units."""
    cells: list[Cell] = []
    first = 0
    entry: tuple[int, ...] = ()
    count = len(problem.reads)
    for last in range(count):
        meeting = _meeting(problem, first, last)
        if meeting is not None or last == count - 1:
            cells.append(Cell(first, last, entry, meeting or ()))
            first, entry = last + 1, meeting or ()
    return cells


def _meeting(problem: PlacementProblem, first: int, last: int) -> tuple[int, ...] | None:
    """The units of a cell that all later ones wait for if they wait for any that lies before; None where there is no cut.

    Nobody within the cell may read them, since what a queue has fetched already would tell the states behind the cut apart.
    """
    wanted = {tuple(s for s in sources if s <= last) for sources in problem.reads[last + 1 :]} - {()}
    if len(wanted) != 1:
        return None
    (meeting,) = wanted
    inside = all(first <= u and problem.readers[u][0] > last for u in meeting) and _all_lead_to(
        problem, first, last, meeting
    )
    ways = math.prod(len(problem.ways[u]) for u in meeting)
    return meeting if inside and ways <= _MOST_ENTRIES else None


def _all_lead_to(problem: PlacementProblem, first: int, last: int, meeting: Sequence[int]) -> bool:
    """Whether the meeting comes after everything else in its cell, and whatever follows after the meeting."""
    needed = set(meeting)
    for unit in range(last, first - 1, -1):
        if unit in needed:
            needed.update(problem.reads[unit])
    return all(unit in needed for unit in range(first, last + 1)) and all(problem.reads[last + 1 :])


def _solve(
    problem: PlacementProblem, cell: Cell, after: Mapping[Ways, _Answer], most_states: int
) -> dict[Ways, _Answer]:
    """The best plans of a cell for all ways of its entry; entries that cost all queues the same have the same."""
    answers: dict[Ways, _Answer] = {}
    known: dict[tuple[float, ...], _Answer] = {}
    for entry in itertools.product(*(range(len(problem.ways[u])) for u in cell.entry)):
        sub = _subproblem(problem, cell, entry)
        key = _entry_cost(sub, len(entry))
        if key not in known:
            earlier = [((0,) * len(entry) + a.ways, _with_entry(sub, a.order, len(entry))) for a in known.values()]
            known[key] = _best(sub, cell, earlier, after, most_states)
        answers[entry] = known[key]
    return answers


def _with_entry(sub: PlacementProblem, order: Sequence[Turn], entries: int) -> tuple[Turn, ...]:
    begun = ((u, part.queue) for u in range(entries) for part in sub.ways[u][0])
    return (*begun, *((entries + u, queue) for u, queue in order))


def _subproblem(problem: PlacementProblem, cell: Cell, entry: Ways) -> PlacementProblem:
    """A cell as a problem of its own, which begins with its entry: of one way each, and taking no time."""
    units = (*cell.entry, *range(cell.first, cell.last + 1))
    number = {unit: i for i, unit in enumerate(units)}
    made = [problem.ways[u][way] for u, way in zip(cell.entry, entry, strict=True)]
    placed = np.full((len(entry), problem.queues), np.inf)
    for row, way in zip(placed, made, strict=True):
        if len(way) == 1:
            row[way[0].queue] = 0.0
    splits = tuple((tuple(Part(p.queue, 0.0, p.size) for p in way),) if len(way) > 1 else () for way in made)
    reads = [()] * len(entry) + [
        tuple(sorted(number[s] for s in problem.reads[u])) for u in range(cell.first, cell.last + 1)
    ]
    return PlacementProblem(
        np.concatenate([placed, problem.seconds[cell.first : cell.last + 1]]),
        tuple(reads),
        tuple(problem.sizes[u] for u in units),
        problem.interference,
        splits + problem.splits[cell.first : cell.last + 1] if problem.splits else (),
    )


def _entry_cost(sub: PlacementProblem, entries: int) -> tuple[float, ...]:
    """What it costs each queue to fetch the entry, which whoever reads any of it does."""
    first = next((u for u in range(entries, len(sub.reads)) if sub.reads[u] and sub.reads[u][0] < entries), None)
    if first is None:
        return ()
    ways = [0] * len(sub.reads)
    return tuple(transfer(sub, (first, queue), ways) for queue in range(sub.queues))


def _best(
    sub: PlacementProblem,
    cell: Cell,
    earlier: Sequence[Plan],
    after: Mapping[Ways, _Answer],
    most_states: int,
) -> _Answer:
    """The best plan of a cell. `earlier` are those for other entries, `after` what follows for every way of the exit."""
    entries = len(cell.entry)
    exits = [u - cell.first + entries for u in cell.exit]

    def cost(plan: Plan) -> float:
        ways, order = plan
        return makespan(sub, ways, order) + after[tuple(ways[u] for u in exits)].seconds

    plan = min([heft(sub), *earlier], key=cost)
    seconds, proved = cost(plan), False
    if len(sub.reads) - entries <= _MOST_UNITS:
        following = {ways: answer.seconds for ways, answer in after.items()}
        found = search(sub, entries, exits, following, plan, seconds, most_states)
        plan, seconds, proved = found.plan, found.cost, found.proved
    bound = sub.bound + min(answer.bound for answer in after.values())
    if proved:
        bound = max(bound, seconds - max(answer.seconds - answer.bound for answer in after.values()))
    else:
        plan, seconds = improved(sub, plan, cost)
    ways, order = plan
    order = tuple((u - entries, queue) for u, queue in order if u >= entries)
    return _Answer(ways[entries:], order, seconds, min(bound, seconds))


def _joined(problem: PlacementProblem, cells: Sequence[Cell], answers: Sequence[Mapping[Ways, _Answer]]) -> Placement:
    ways: list[int] = []
    order: list[Turn] = []
    for cell, found in zip(cells, answers, strict=True):
        answer = found[tuple(ways[u] for u in cell.entry)]
        ways += answer.ways
        order += [(cell.first + u, queue) for u, queue in answer.order]
    seconds = makespan(problem, ways, order)
    bound = min((a.bound for a in answers[0].values()), default=0.0) if answers else 0.0
    chosen = tuple(of_unit[way] for of_unit, way in zip(problem.ways, ways, strict=True))
    return Placement(chosen, tuple(order), seconds, min(bound, seconds))
