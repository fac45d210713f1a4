"""Joint placement and routine selection.

The best routines of every queue alone give the first times. A placement restricts selection to its queues;
the times of the selected routines, including layout changes, are the input of the next placement. This
repeats until the simulated plan becomes no faster. If it is not clearly faster than the fastest single
processor, that processor gets everything.

Whole layers are placed first. Then long layers may be split (`splitting`). Shares are first assumed to take
time in proportion to their channels, and are measured once a placement uses them. Layers stay whole unless
the network becomes clearly faster.

At last sections of many layers may be computed in bands of rows (`bands`), where that is expected to be faster than what was
found. Layers of bands are measured, and the rest of the network is placed and split again.

Designs give layers to processors. Layers outside of branches (in segments that are not branched, or after the
last meeting point) would run on one processor while the others wait; they are split, or computed in bands, in the same way.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.graph.metadata import branch_of, branched_segments
from nnstretch.graph.slices import LEAST_SHARE, bounds, share_name
from nnstretch.scheduler.lowering.candidates import single_choices, unit_choices
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.placement.alone import RelabelledInterference, only, with_costs
from nnstretch.scheduler.placement.apply import Applied, apply, narrowed
from nnstretch.scheduler.placement.band_choice import LayerSeconds, promising, units_of_sections
from nnstretch.scheduler.placement.bands import BandedSection, banded_graph
from nnstretch.scheduler.placement.contraction import Contraction, contract
from nnstretch.scheduler.placement.problem import Placement, PlacementProblem
from nnstretch.scheduler.placement.regions import place
from nnstretch.scheduler.placement.splitting import Division, Divisions, even_division
from nnstretch.scheduler.plan.compiled import PlacementReport
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.problem import Assignment
from nnstretch.scheduler.simulation.timing import InterferenceModel, simulate

_ROUNDS = 4
_MARGIN = 0.03
"""Prediction error: a placement must be predicted to beat the fastest processor by this share of its time."""
_BANDED = 0.05
"""The same share for sections in bands: a predicted gain of 3 % was none when it was measured."""
_LITTLE = 0.003
"""The same share where only few layers are moved."""

Refine = Callable[[ChoiceSpace], ChoiceSpace]
"""Corrects the costs of a space of one processor."""


def is_placed(space: ChoiceSpace) -> bool:
    """Whether there is nothing to place: one processor only, or a design has placed the layers."""
    return len(space.pool.queue_of) < 2 or any(unit.placement is not None for unit in space.graph.units)


def placed(space: ChoiceSpace, interference: InterferenceModel, refine: Refine = lambda single: single) -> ChoiceSpace:
    """The space with every unit on one processor, in schedule order, and its `placement` report.

    If no placement pays, only the fastest processor is left.

    Args:
        space: of several processors; no unit is placed yet (`is_placed`).
        interference: between the queues of the space.
        refine: corrects the costs of the spaces of single processors.
    """
    return _Joint(space, interference, refine).placed()


def completed(space: ChoiceSpace, interference: InterferenceModel) -> ChoiceSpace:
    """The space of a network placed by a design, with layers outside of branches split if that pays.

    Args:
        space: of several processors; some units are placed.
        interference: between the queues of the space.
    """
    return _Joint(space, interference).completed()


def refined_alone(
    space: ChoiceSpace, interference: InterferenceModel, refine: Refine
) -> tuple[ChoiceSpace, Mapping[int, float]]:
    """The space with costs that are refined on each processor alone, as `placed` does it first.

    Returns:
        The space, and the time of the layers of each queue in the network over their time alone.
    """
    joint = _Joint(space, interference, refine)
    for queue in sorted(set(space.pool.queue_of)):
        joint._alone(queue)
    return joint._space, joint._inside


def simulated_seconds(space: ChoiceSpace, interference: InterferenceModel) -> float:
    """Seconds of a run of the cheapest plan of a space in simulated time."""
    return _Joint(space, interference)._candidate(space, interference).seconds


@dataclass(frozen=True)
class _Candidate:
    """A space restricted to a placement, its assignment, simulated seconds, and splits."""

    space: ChoiceSpace
    assignment: Assignment
    seconds: float
    splits: Mapping[str, Division] = field(default_factory=dict)

    @property
    def chosen(self) -> list[Choice]:
        return self.space.chosen(self.assignment)


@dataclass
class _Joint:
    _space: ChoiceSpace
    _interference: InterferenceModel
    _refine: Refine = lambda single: single
    _inside: dict[int, float] = field(default_factory=dict)
    _parts: frozenset[str] = frozenset()
    """Names of units that compute bands, which are not split further."""

    def placed(self) -> ChoiceSpace:
        queues = sorted(set(self._space.pool.queue_of))
        alone = {queue: self._alone(queue) for queue in queues}
        names = {queue: self._space.pool.processors[queue].name for queue in queues}
        best, bound = self._together(alone)
        fastest = min(alone, key=lambda queue: alone[queue].seconds)
        pays = best.seconds < alone[fastest].seconds * (1 - _MARGIN)
        report = PlacementReport(
            best.seconds,
            bound,
            {names[queue]: alone[queue].seconds for queue in queues},
            pays,
            {
                name: {names[queue]: channels for queue, channels in zip(split.queues, split.channels, strict=True)}
                for name, split in best.splits.items()
            },
            {
                f"{one.first} to {one.last}": {
                    self._space.pool.processors[self._space.pool.queue_of[processor]].name: rows
                    for processor, rows in zip(one.processors, one.rows, strict=True)
                }
                for one in best.space.bands
            },
        )
        return replace((best if pays else alone[fastest]).space, placement=report)

    def completed(self) -> ChoiceSpace:
        """The space with layers outside of branches split or computed in bands if that pays."""
        whole = self._candidate(self._space, self._interference)
        contraction = contract(self._space, [whole.chosen])
        seconds = self._first_seconds(contraction, {0: whole.chosen})
        divisions = self._divisions(contraction, self._seconds_beside_nobody(contraction, seconds))
        best = whole
        if divisions:
            split, _ = self._best(contraction, seconds, Divisions(divisions, contraction.sizes))
            best = min(best, split, key=lambda candidate: candidate.seconds)
        best = self._in_bands(best, self._alone_outside_of_branches(whole.chosen))
        return best.space if best.seconds < whole.seconds * (1 - _LITTLE) else self._space

    def _seconds_beside_nobody(self, contraction: Contraction, seconds: np.ndarray) -> np.ndarray:
        """`seconds`, completed by the times of long units outside of branches on all other queues."""
        units, pool, free = self._space.graph.units, self._space.pool, self._outside_of_branches()
        filled = seconds.copy()
        for group, number in _long_units(contraction, seconds):
            unit = units[number]
            if number not in free or unit.name in self._parts:
                continue
            for queue in {*pool.queue_of} - {*np.flatnonzero(np.isfinite(seconds[group]))}:
                found = single_choices(unit.layer, [queue], pool, self._space.costs)
                filled[group, queue] = min((choice.seconds or 0.0 for choice in found), default=np.inf)
        return filled

    def _outside_of_branches(self) -> set[int]:
        """Numbers of the units that a design gives to a processor in a segment without branches, or to none."""
        units = self._space.graph.units
        branched = branched_segments(unit.name for unit in units)
        places = [branch_of(unit.name) for unit in units]
        return {
            number
            for number, (unit, place) in enumerate(zip(units, places, strict=True))
            if unit.placement is None or (place is not None and place[0] not in branched)
        }

    def _alone_outside_of_branches(self, chosen: Sequence[Choice]) -> np.ndarray:
        """Seconds (units, queues) on every queue of the units outside of branches that may be in bands; else infinite."""
        units, pool = self._space.graph.units, self._space.pool
        seconds = np.full((len(units), len(pool.queues)), np.inf)
        for number in units_of_sections(self._space.graph, self._outside_of_branches()):
            for queue in {*pool.queue_of} - {chosen[number].queue}:
                found = single_choices(units[number].layer, [queue], pool, self._space.costs)
                seconds[number, queue] = min((choice.seconds or 0.0 for choice in found), default=np.inf)
            seconds[number, chosen[number].queue] = chosen[number].seconds or 0.0
        return seconds

    # -- one processor -------------------------------------------------------------------------------------------

    def _alone(self, queue: int) -> _Candidate:
        """Everything on one processor that it can compute. What is refined there is also known to the whole space."""
        single = only(self._space, queue)
        if single is None:
            return self._mostly_on(queue)
        refined = self._refine(single)
        self._space = with_costs(self._space, queue, refined)
        candidate = self._candidate(
            refined, RelabelledInterference(self._interference, {refined.pool.queue_of[0]: queue})
        )
        self._inside[queue] = _inside(single, candidate)
        return candidate

    def _mostly_on(self, queue: int) -> _Candidate:
        """All units that may be on a queue there, and the others where selection puts them."""
        queues = [{queue} if any(c.queue == queue for c in options) else None for options in self._space.choices]
        return self._candidate(narrowed(self._space, queues, range(len(queues))), self._interference)

    # -- all processors ------------------------------------------------------------------------------------------

    def _together(self, alone: dict[int, _Candidate]) -> tuple[_Candidate, float]:
        """The best placement found, and the lower bound of placements of whole layers."""
        plans = {queue: _on(candidate, queue) for queue, candidate in alone.items()}
        contraction = contract(self._space, list(plans.values()))
        seconds = self._first_seconds(contraction, plans)
        whole, bound = self._best(contraction, seconds, Divisions({}, contraction.sizes))
        bound = min(bound, whole.seconds)
        if not self._space.costs.measured:
            return whole, bound
        divisions = Divisions(self._divisions(contraction, seconds), contraction.sizes)
        split, _ = self._best(contraction, seconds, divisions)
        best = split if split.seconds < whole.seconds * (1 - _MARGIN) else whole
        return self._in_bands(best, _alone_seconds(plans, seconds.shape[1])), bound

    def _best(self, contraction: Contraction, seconds: np.ndarray, divisions: Divisions) -> tuple[_Candidate, float]:
        """The best placement found, and its bound; updates `seconds` and `divisions` by the times of units."""
        best: _Candidate | None = None
        bound = 0.0
        for _ in range(_ROUNDS):
            placement = place(
                PlacementProblem(seconds, contraction.reads, contraction.sizes, self._interference, divisions.ways())
            )
            applied = apply(self._space, contraction, placement, divisions, self._inside)
            candidate = self._candidate(applied.space, self._interference)
            is_better = best is None or candidate.seconds < best.seconds
            if is_better:
                best, bound = replace(candidate, splits=applied.splits), placement.bound
            if not (self._learn(applied, placement, candidate, seconds, divisions) or is_better):
                break
        assert best is not None
        return best, bound

    def _in_bands(self, best: _Candidate, alone: np.ndarray) -> _Candidate:
        """The best candidate with sections in bands; `best` if none is faster.

        Args:
            best: the best one without.
            alone: (units, queues), see `LayerSeconds`.
        """
        graph, pool = self._space.graph, self._space.pool
        found = promising(graph, LayerSeconds(alone, self._present(best), self._interference))
        chosen = tuple(
            BandedSection(
                graph.units[one.section.first].name,
                graph.units[one.section.last].name,
                tuple(map(pool.queue_of.index, one.rows)),
                tuple(one.rows.values()),
            )
            for one in found
        )
        made = banded_graph(graph, chosen) if chosen else None
        if made is None:
            return best
        parts = {unit.name for unit in made.units} - {unit.name for unit in graph.units}
        joint = replace(self, _space=self._banded_space(made, chosen), _parts=frozenset(parts))
        banded = joint._around_bands()
        return banded if banded.seconds < best.seconds * (1 - _BANDED) else best

    def _present(self, candidate: _Candidate) -> np.ndarray:
        """Seconds of every unit of the whole graph in a candidate, with the meeting before a split layer."""
        times = {
            unit.name: choice.seconds or 0.0
            for unit, choice in zip(candidate.space.graph.units, candidate.chosen, strict=True)
        }
        for name, division in candidate.splits.items():
            shares = [share_name(name, *bound) for bound in bounds(division.channels)]
            everyone = frozenset(division.queues)
            times[name] = max(
                times[share] + self._interference.transfer_seconds(queue, everyone - {queue}, 0)
                for share, queue in zip(shares, division.queues, strict=True)
            )
        return np.array([times[unit.name] for unit in self._space.graph.units])

    def _banded_space(self, made: UnitGraph, chosen: tuple[BandedSection, ...]) -> ChoiceSpace:
        """The space of a graph with sections in bands. Units that stay whole take the times they had in the network."""
        space = self._space
        known = {
            (unit.name, _identity(choice)): choice.seconds
            for unit, options in zip(space.graph.units, space.choices, strict=True)
            for choice in options
        }
        choices = [
            [
                replace(
                    choice,
                    seconds=known.get(
                        (unit.name, _identity(choice)), self._inside.get(choice.queue, 1.0) * (choice.seconds or 0.0)
                    ),
                )
                for choice in options
            ]
            for unit, options in zip(made.units, unit_choices(made, space.pool, space.costs), strict=True)
        ]
        problem = selection_problem(made, choices, space.pool, space.costs)
        return replace(space, graph=made, choices=choices, problem=problem, bands=chosen)

    def _around_bands(self) -> _Candidate:
        """The best placement of what is in no band, with its long layers split."""
        plans = {queue: self._mostly_on(queue).chosen for queue in sorted(set(self._space.pool.queue_of))}
        contraction = contract(self._space, list(plans.values()))
        seconds = self._first_seconds(contraction, plans)
        divisions = self._divisions(contraction, self._seconds_beside_nobody(contraction, seconds))
        best, _ = self._best(contraction, seconds, Divisions(divisions, contraction.sizes))
        return best

    def _divisions(
        self, contraction: Contraction, seconds: np.ndarray
    ) -> dict[int, list[tuple[Division, Sequence[float]]]]:
        """Divisions of long units, with times of shares in proportion to their channels."""
        found: dict[int, list[tuple[Division, Sequence[float]]]] = defaultdict(list)
        for unit, number in _long_units(contraction, seconds):
            whole = {queue: float(s) for queue, s in enumerate(seconds[unit]) if np.isfinite(s)}
            for queues in itertools.chain(*(itertools.combinations(whole, n) for n in range(2, len(whole) + 1))):
                division = even_division(self._space.graph.units[number], {queue: whole[queue] for queue in queues})
                if division is not None:
                    total = sum(division.channels)
                    shares = zip(division.queues, division.channels, strict=True)
                    found[unit].append((division, [whole[queue] * channels / total for queue, channels in shares]))
        return found

    def _learn(
        self, applied: Applied, placement: Placement, candidate: _Candidate, seconds: np.ndarray, divisions: Divisions
    ) -> bool:
        """Records the times of units and shares in a candidate; True if the time of a share was unknown."""
        taken = applied.seconds(candidate.chosen)
        learned = False
        for unit, way in enumerate(placement.ways):
            times = [taken[unit, part.queue] for part in way]
            if len(way) == 1:
                seconds[unit, way[0].queue] = times[0]
            else:
                learned |= divisions.learn(unit, way, times)
        return learned

    def _first_seconds(self, contraction: Contraction, plans: dict[int, list[Choice]]) -> np.ndarray:
        """Seconds of units on queues as each queue's plan has them; the caller is on queue 0."""
        seconds = np.full((len(contraction.reads), len(self._space.pool.queues)), np.inf)
        for chosen in plans.values():
            taken = contraction.seconds(self._space, chosen)
            for number, group in enumerate(contraction.group_of):
                if group is not None:
                    on = chosen[number].queue  # another queue where this one cannot compute the unit
                    seconds[group, on] = min(seconds[group, on], taken[group])
        for caller in (contraction.begin, contraction.end):
            seconds[caller] = np.inf
            seconds[caller, 0] = 0.0
        return seconds

    def _candidate(self, space: ChoiceSpace, interference: InterferenceModel) -> _Candidate:
        assignment = default_selector().select(space.problem)
        plan = plan_of(space, assignment).plan
        # Steps without a cost, unmeasured layout changes, take no time.
        priced = replace(plan, steps=tuple(replace(step, cost_ms=step.cost_ms or 0.0) for step in plan.steps))
        return _Candidate(space, assignment, simulate(priced, interference).total * 1e-9)


def _alone_seconds(plans: Mapping[int, Sequence[Choice]], queues: int) -> np.ndarray:
    """Seconds of every unit on every queue (units, queues) as the queues' own plans have them; infinite if none has it."""
    seconds = np.full((len(next(iter(plans.values()))), queues), np.inf)
    for chosen in plans.values():
        for number, choice in enumerate(chosen):
            seconds[number, choice.queue] = min(seconds[number, choice.queue], choice.seconds or 0.0)
    return seconds


def _identity(choice: Choice) -> tuple[object, ...]:
    """What is equal for the same choice of a unit in two graphs."""
    group = None if choice.group is None else choice.group.layer.name
    return choice.queue, id(choice.routine), tuple(sorted(choice.parameters.items())), choice.is_head, group


def _long_units(contraction: Contraction, seconds: np.ndarray) -> list[tuple[int, int]]:
    """Units of placement that take long enough to be split, with their units of the graph."""
    least = seconds.min(axis=1)
    return [(unit, number) for unit, number in contraction.alone().items() if least[unit] >= LEAST_SHARE * least.sum()]


def _inside(single: ChoiceSpace, candidate: _Candidate) -> float:
    """Time of a processor's layers in the network over their time alone."""
    pairs = zip(single.choices, candidate.space.choices, candidate.assignment.choices, strict=True)
    before, after = zip(*((b[i].seconds or 0.0, a[i].seconds or 0.0) for b, a, i in pairs), strict=True)
    return sum(after) / sum(before) if sum(before) else 1.0


def _on(candidate: _Candidate, queue: int) -> list[Choice]:
    """The choices of a candidate, in the queue numbers of the whole space."""
    if len(candidate.space.pool.queue_of) > 1:
        return candidate.chosen
    units = candidate.space.graph.units
    return [replace(c, queue=0 if u.is_fallback else queue) for u, c in zip(units, candidate.chosen, strict=True)]
