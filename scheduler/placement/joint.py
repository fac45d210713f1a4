"""Placement and routine selection together: where layers run decides which routines they get, and these what it takes there.

Every lane's best routines by itself give the first times. A placement restricts selection to its lanes; what the routines
take that are selected there, changes of layout included, are the times of the next placement. That goes on until the plan, run
in simulated time, becomes no faster. If it is not clearly faster than the fastest processor by itself, that has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.scheduler.candidates import selection_problem
from nnstretch.scheduler.draft import Choice
from nnstretch.scheduler.placement.cells import place
from nnstretch.scheduler.placement.contraction import Contraction, contract
from nnstretch.scheduler.placement.problem import Placement
from nnstretch.scheduler.placement.report import PlacementReport
from nnstretch.scheduler.plan import Plan
from nnstretch.scheduler.planner import ChoiceSpace, lane_pool, plan_of
from nnstretch.scheduler.problem import Assignment, Problem, Selector
from nnstretch.scheduler.selectors import default_selector
from nnstretch.scheduler.simulation.timing import Interplay, simulate

_ROUNDS = 4
_MARGIN = 0.03
"""Share of its time by which a placement must be predicted to beat the fastest processor: what predictions miss by."""

Refine = Callable[[ChoiceSpace], ChoiceSpace]
"""Corrects the costs of a space of one processor."""


def is_placed(space: ChoiceSpace) -> bool:
    """Whether nothing is left to place: there is one processor, or a design has given layers to processors."""
    return len(space.pool.lane_of) < 2 or any(unit.placement is not None for unit in space.graph.units)


def placed(
    space: ChoiceSpace, interplay: Interplay, refine: Refine | None = None, selector: Selector | None = None
) -> ChoiceSpace:
    """The space with every unit given to a processor, in the order in which lanes take them, and its `placement` report.

    Where a placement does not pay, only the fastest processor is left.

    Args:
        space: of several processors; no unit is placed yet (`is_placed`).
        interplay: what the space's lanes cost each other.
        refine: applied to the spaces of single processors before their times are taken, if it is given.
        selector: selects routines; `default_selector` if None.
    """
    return _Joint(space, interplay, refine or (lambda single: single), selector or default_selector()).placed()


@dataclass(frozen=True)
class _Candidate:
    """A space that is restricted to a placement, what is chosen from it, and seconds in simulated time."""

    space: ChoiceSpace
    assignment: Assignment
    seconds: float

    @property
    def chosen(self) -> list[Choice]:
        return self.space.chosen(self.assignment)


class _Joint:
    def __init__(self, space: ChoiceSpace, interplay: Interplay, refine: Refine, selector: Selector) -> None:
        self._space, self._interplay, self._refine, self._selector = space, interplay, refine, selector

    def placed(self) -> ChoiceSpace:
        lanes = sorted(set(self._space.pool.lane_of))
        alone = {lane: self._alone(lane) for lane in lanes}
        names = {lane: self._space.pool.processors[lane].name for lane in lanes}
        best, bound = self._together(alone)
        fastest = min(alone, key=lambda lane: alone[lane].seconds)
        pays = best.seconds < alone[fastest].seconds * (1 - _MARGIN)
        report = PlacementReport(
            best.seconds, min(bound, best.seconds), {names[lane]: alone[lane].seconds for lane in lanes}, pays
        )
        return replace((best if pays else alone[fastest]).space, placement=report)

    # -- one processor -------------------------------------------------------------------------------------------

    def _alone(self, lane: int) -> _Candidate:
        """Everything on one processor that it can compute. What is refined there is also known to the whole space."""
        single = only(self._space, lane)
        if single is None:
            lanes = [{lane} if any(c.lane == lane for c in options) else None for options in self._space.choices]
            return self._candidate(narrowed(self._space, lanes, range(len(lanes))), self._interplay)
        refined = self._refine(single)
        self._space = with_costs(self._space, lane, refined)
        return self._candidate(refined, _Relabelled(self._interplay, {refined.pool.lane_of[0]: lane}))

    # -- all processors ------------------------------------------------------------------------------------------

    def _together(self, alone: dict[int, _Candidate]) -> tuple[_Candidate, float]:
        """The best placement found, and the bound of its times."""
        space = self._space
        plans = {lane: _on(candidate, lane) for lane, candidate in alone.items()}
        contraction = contract(space, list(plans.values()))
        seconds = self._first_seconds(contraction, plans)
        best: _Candidate | None = None
        bound = 0.0
        for _ in range(_ROUNDS):
            placement = place(contraction.problem(seconds, self._interplay))
            candidate = self._candidate(self._restricted(contraction, placement), self._interplay)
            if best is not None and candidate.seconds >= best.seconds:
                break
            best, bound = candidate, placement.bound
            order = contraction.order(space, placement.order)
            taken = contraction.seconds(space, _in_order(candidate.chosen, order))
            groups = np.arange(len(taken))
            seconds[groups, placement.lanes] = taken
        assert best is not None
        return best, bound

    def _first_seconds(self, contraction: Contraction, plans: dict[int, list[Choice]]) -> np.ndarray:
        """Seconds of units on lanes as each lane's plan has them; the caller is on lane 0."""
        seconds = np.full((len(contraction.reads), len(self._space.pool.lanes)), np.inf)
        for chosen in plans.values():
            taken = contraction.seconds(self._space, chosen)
            for number, group in enumerate(contraction.group_of):
                if group is not None:
                    on = chosen[number].lane  # another lane where this one cannot compute the unit
                    seconds[group, on] = min(seconds[group, on], taken[group])
        for caller in (contraction.begin, contraction.end):
            seconds[caller] = np.inf
            seconds[caller, 0] = 0.0
        return seconds

    def _restricted(self, contraction: Contraction, placement: Placement) -> ChoiceSpace:
        lanes = [None if lane is None else {lane} for lane in contraction.lanes(placement.lanes)]
        return narrowed(self._space, lanes, contraction.order(self._space, placement.order))

    def _candidate(self, space: ChoiceSpace, interplay: Interplay) -> _Candidate:
        assignment = self._selector.select(space.problem)
        plan = plan_of(space, assignment).plan
        return _Candidate(space, assignment, simulate(_priced(plan), interplay).total * 1e-9)


@dataclass(frozen=True)
class _Relabelled:
    """The interplay of a plan whose lanes have other numbers."""

    interplay: Interplay
    names: dict[int, int]

    def handover_seconds(self, lane: int, others: frozenset[int], size: int, /) -> float:
        """Between the lanes as the interplay numbers them."""
        return self.interplay.handover_seconds(self._name(lane), frozenset(map(self._name, others)), size)

    def slowdown(self, lane: int, others: frozenset[int], /) -> float:
        """Of one lane that works alone: none."""
        return 1.0

    def _name(self, lane: int) -> int:
        return self.names.get(lane, 0)


def _priced(plan: Plan) -> Plan:
    """A plan in which steps without a cost, changes of layout where nothing is measured, take no time."""
    return replace(plan, steps=tuple(replace(step, cost_ms=step.cost_ms or 0.0) for step in plan.steps))


def _on(candidate: _Candidate, lane: int) -> list[Choice]:
    """What was chosen, in the lane numbers of the whole space."""
    if len(candidate.space.pool.lane_of) > 1:
        return candidate.chosen
    units = candidate.space.graph.units
    return [replace(c, lane=0 if u.is_fallback else lane) for u, c in zip(units, candidate.chosen, strict=True)]


def _in_order(chosen: Sequence[Choice], order: Sequence[int]) -> list[Choice]:
    """What was chosen for units in `order`, as the graph numbers them."""
    by_unit = dict(zip(order, chosen, strict=True))
    return [by_unit[number] for number in range(len(order))]


def only(space: ChoiceSpace, lane: int) -> ChoiceSpace | None:
    """The space of one lane's processor alone, where fallbacks run on the host.

    None if it cannot compute everything, or if it matters on which lane the caller is.
    """
    if space.costs.all_cross:
        return None
    processor = space.pool.processors[lane]
    host = processor if processor.lane == "host" else space.host
    pool = lane_pool([processor], host)
    choices = [
        [
            replace(choice, lane=0 if unit.is_fallback else pool.lane_of[0])
            for choice in options
            if unit.is_fallback or choice.lane == lane
        ]
        for unit, options in zip(space.graph.units, space.choices, strict=True)
    ]
    if not all(choices):
        return None
    problem = selection_problem(space.graph, choices, pool, space.costs)
    return replace(space, pool=pool, host=host, choices=choices, problem=problem)


def with_costs(space: ChoiceSpace, lane: int, single: ChoiceSpace) -> ChoiceSpace:
    """The space with the costs that a lane's choices have in the space of its processor alone."""
    choices: list[list[Choice]] = []
    for old, new in zip(space.choices, single.choices, strict=True):
        fresh = iter(new)
        choices.append([replace(c, seconds=next(fresh).seconds) if c.lane == lane else c for c in old])
    return space.with_seconds(choices)


def narrowed(space: ChoiceSpace, lanes: Sequence[Collection[int] | None], order: Sequence[int]) -> ChoiceSpace:
    """The space with units on some lanes only (None: on all), in another topological order.

    Units that are left one processor count as placed on it.
    """
    kept = [
        [i for i, choice in enumerate(options) if allowed is None or choice.lane in allowed]
        for options, allowed in zip(space.choices, lanes, strict=True)
    ]
    position = {number: place for place, number in enumerate(order)}
    problem = space.problem
    edges = {(position[u], position[v]): m[np.ix_(kept[u], kept[v])] for (u, v), m in problem.edges.items()}
    units = []
    for number in order:
        unit, allowed = space.graph.units[number], lanes[number]
        if allowed is not None and len(allowed) == 1 and not unit.is_fallback:
            unit = replace(unit, placement=space.pool.lane_of.index(*allowed))
        units.append(unit)
    return replace(
        space,
        graph=replace(space.graph, units=tuple(units)),
        choices=[[space.choices[number][i] for i in kept[number]] for number in order],
        problem=Problem(
            tuple(problem.costs[number][kept[number]] for number in order),
            edges,
            seed=problem.seed,
            names=tuple(unit.name for unit in units),
        ),
    )
