"""Whole networks, cell by cell: where everybody waits for the same results, what comes before and after is placed by itself.

A cut lies behind a unit if whoever comes later and reads anything from before reads one and the same set of results, the
meeting. All lanes are idle there until the meeting is complete, so a cell's time depends on what came before by the meeting's
lanes alone, and dynamic programming from the last cell to the first joins the cells' best placements. Inception modules are
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
from nnstretch.scheduler.placement.local_search import Plan, improved
from nnstretch.scheduler.placement.problem import Placement, PlacementProblem, handover, makespan

_MOST_ENTRIES = 81
"""Ways to place a meeting up to which it is a cut."""
_MOST_UNITS = 16
"""Units of a cell up to which it is searched exactly."""
_MOST_STATES = 1_500
"""States of a cell after which the exact search is given up."""

Lanes = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """Units `first` to `last` of a problem. `entry` is the meeting before them, `exit` the one that they make."""

    first: int
    last: int
    entry: tuple[int, ...]
    exit: tuple[int, ...]


@dataclass(frozen=True)
class _Answer:
    """The best plan of a cell and all that follows: lanes and order of the cell's units, seconds, a proved bound on these."""

    lanes: Lanes
    order: tuple[int, ...]
    seconds: float
    bound: float


def place(problem: PlacementProblem, most_states: int = _MOST_STATES) -> Placement:
    """The fastest placement: proved if all cells are small enough, else with a bound."""
    cells = find_cells(problem)
    answers: list[dict[Lanes, _Answer]] = []
    after: dict[Lanes, _Answer] = {(): _Answer((), (), 0.0, 0.0)}
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

    Nobody within the cell may read them, since what a lane has fetched already would tell the states behind the cut apart.
    """
    wanted = {tuple(s for s in sources if s <= last) for sources in problem.reads[last + 1 :]} - {()}
    if len(wanted) != 1:
        return None
    (meeting,) = wanted
    inside = all(first <= u and problem.readers[u][0] > last for u in meeting) and _all_lead_to(
        problem, first, last, meeting
    )
    ways = math.prod(len(problem.allowed(u)) for u in meeting)
    return meeting if inside and ways <= _MOST_ENTRIES else None


def _all_lead_to(problem: PlacementProblem, first: int, last: int, meeting: Sequence[int]) -> bool:
    """Whether the meeting comes after everything else in its cell, and whatever follows after the meeting."""
    needed = set(meeting)
    for unit in range(last, first - 1, -1):
        if unit in needed:
            needed.update(problem.reads[unit])
    return all(unit in needed for unit in range(first, last + 1)) and all(problem.reads[last + 1 :])


def _solve(
    problem: PlacementProblem, cell: Cell, after: Mapping[Lanes, _Answer], most_states: int
) -> dict[Lanes, _Answer]:
    """The best plans of a cell for all lanes that its entry may be on; entries that cost all lanes the same have the same."""
    answers: dict[Lanes, _Answer] = {}
    known: dict[tuple[float, ...], _Answer] = {}
    for entry in itertools.product(*(problem.allowed(u) for u in cell.entry)):
        sub = _subproblem(problem, cell, entry)
        key = _entry_cost(sub, len(entry), entry)
        if key not in known:
            earlier = [(entry + a.lanes, _with_entry(a.order, len(entry))) for a in known.values()]
            known[key] = _best(sub, entry, cell, earlier, after, most_states)
        answers[entry] = known[key]
    return answers


def _with_entry(order: Sequence[int], entries: int) -> tuple[int, ...]:
    return (*range(entries), *(entries + u for u in order))


def _subproblem(problem: PlacementProblem, cell: Cell, entry: Lanes) -> PlacementProblem:
    """A cell as a problem of its own, which begins with its entry: placed already, and taking no time."""
    units = (*cell.entry, *range(cell.first, cell.last + 1))
    number = {unit: i for i, unit in enumerate(units)}
    placed = np.full((len(entry), problem.lanes), np.inf)
    placed[range(len(entry)), entry] = 0.0
    reads = [()] * len(entry) + [
        tuple(sorted(number[s] for s in problem.reads[u])) for u in range(cell.first, cell.last + 1)
    ]
    return PlacementProblem(
        np.concatenate([placed, problem.seconds[cell.first : cell.last + 1]]),
        tuple(reads),
        tuple(problem.sizes[u] for u in units),
        problem.interplay,
    )


def _entry_cost(sub: PlacementProblem, entries: int, entry: Lanes) -> tuple[float, ...]:
    """What it costs each lane to fetch the entry, which whoever reads any of it does."""
    first = next((u for u in range(entries, len(sub.reads)) if sub.reads[u] and sub.reads[u][0] < entries), None)
    if first is None:
        return ()
    lanes = [*entry, *([0] * (len(sub.reads) - entries))]
    return tuple(handover(sub, first, lane, lanes) for lane in range(sub.lanes))


def _best(
    sub: PlacementProblem,
    entry: Lanes,
    cell: Cell,
    earlier: Sequence[Plan],
    after: Mapping[Lanes, _Answer],
    most_states: int,
) -> _Answer:
    """The best plan of a cell. `earlier` are those for other entries, `after` what follows for every place of the exit."""
    exits = [u - cell.first + len(entry) for u in cell.exit]

    def cost(plan: Plan) -> float:
        lanes, order = plan
        return makespan(sub, lanes, order) + after[tuple(lanes[u] for u in exits)].seconds

    plan = min([heft(sub), *earlier], key=cost)
    seconds, proved = cost(plan), False
    if len(sub.reads) - len(entry) <= _MOST_UNITS:
        following = {lanes: answer.seconds for lanes, answer in after.items()}
        found = search(sub, entry, exits, following, plan, seconds, most_states)
        plan, seconds, proved = found.plan, found.cost, found.proved
    bound = sub.bound + min(answer.bound for answer in after.values())
    if proved:
        bound = max(bound, seconds - max(answer.seconds - answer.bound for answer in after.values()))
    else:
        plan, seconds = improved(sub, plan, cost)
    lanes, order = plan
    order = tuple(u - len(entry) for u in order if u >= len(entry))
    return _Answer(lanes[len(entry) :], order, seconds, min(bound, seconds))


def _joined(problem: PlacementProblem, cells: Sequence[Cell], answers: Sequence[Mapping[Lanes, _Answer]]) -> Placement:
    lanes: list[int] = []
    order: list[int] = []
    for cell, found in zip(cells, answers, strict=True):
        answer = found[tuple(lanes[u] for u in cell.entry)]
        lanes += answer.lanes
        order += [cell.first + u for u in answer.order]
    seconds = makespan(problem, lanes, order)
    bound = min((a.bound for a in answers[0].values()), default=0.0) if answers else 0.0
    return Placement(tuple(lanes), tuple(order), seconds, min(bound, seconds))
