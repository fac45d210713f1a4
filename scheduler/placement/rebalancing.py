"""Rebalancing: a plan for several processors is made again from the times of its steps in concurrent runs.

A plan is placed by times of single layers. Where layers take longer or shorter in the network, or a processor is slower than
the one that the plan was tuned for, queues wait for each other at joins. So the plan runs, the seconds of its steps correct the
costs of their layers (`run_factors`), and everything is placed again: layers, shares of channels, and bands of rows. A plan
that is predicted to be faster runs in turns with the best one so far. This repeats until no faster plan is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.costmodel.run_factors import RunCosts, RunFactors
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.placement.sharing import shared_out
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.rebalanced import Move, RebalanceReport, RebalanceRound, moves
from nnstretch.scheduler.plan.schema import Plan, QueuePool
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.concurrent import share_alone, waiting_seconds
from nnstretch.scheduler.simulation.timing import InterferenceModel, simulate
from nnstretch.support.progress import Progress, silent

_ROUNDS = 4
_LEAST_GAIN = 0.01
"""Share of the best plan's predicted time by which another one must be predicted to be faster before it runs."""


@dataclass(frozen=True)
class StepTimes:
    """Times of a plan's steps in several traced runs.

    Attributes:
        spans: (runs, steps, 2); begin and end of every step in seconds from the begin of the run.
        seconds: (runs, steps); duration of every step without what its trace takes.
    """

    spans: NDArray[np.float64]
    seconds: NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """Latencies of plans whose runs alternated.

    Attributes:
        seconds: of every plan, medians.
        ratios: of every plan over each plan, (plans, plans).
        intervals: of these ratios, (plans, plans, 2), 95 %.
    """

    seconds: tuple[float, ...]
    ratios: NDArray[np.float64]
    intervals: NDArray[np.float64]

    def is_fastest(self, plan: int) -> bool:
        """Whether a plan is faster than all before it, and their intervals say so."""
        ends = self.intervals[plan, :plan, 1]
        return bool(np.all(ends < 1) and np.all(self.ratios[plan, :plan] < 1))


class PlanRuns(Protocol):
    """Runs plans on their processors."""

    def step_times(self, compiled: Compiled) -> StepTimes:
        """Traced runs of a plan."""

    def compare(self, plans: Sequence[Compiled]) -> Comparison:
        """Runs plans in turns."""


def rebalanced(
    first: Compiled,
    place: Callable[[RunFactors], Compiled],
    runs: PlanRuns,
    interference: Callable[[Plan], InterferenceModel],
    *,
    is_tuned_here: bool = True,
    progress: Progress = silent,
) -> Compiled:
    """The plan that ran fastest, with a report: `first` or one that was placed by the times of runs.

    Args:
        first: a plan of one queue or several.
        place: makes the plan that is predicted to be fastest with factors.
        runs: runs plans.
        interference: between the queues of a plan.
        is_tuned_here: whether the costs of `first` are those that `place` corrects; otherwise its steps teach nothing.
        progress: called before every round.
    """
    return _Rebalancing(place, runs, interference, progress).best(first, is_tuned_here=is_tuned_here)


def placed_by_runs(
    space: ChoiceSpace, interference: InterferenceModel, inside: Mapping[str, float], factors: RunFactors
) -> Compiled:
    """The plan of a space whose costs have the factors of runs.

    Args:
        space: of several processors, not placed, or placed by a design only.
        interference: between its queues.
        inside: see `RunCosts`.
        factors: of its layers on its processors.
    """
    names = [processor.name for processor in space.pool.processors]
    costs = RunCosts(space.costs, factors, inside)
    choices = [
        [
            replace(c, seconds=factors.of(names[c.queue], c.group.layer.name if c.group else unit.name) * c.seconds)
            if c.seconds
            else c
            for c in options
        ]
        for unit, options in zip(space.graph.units, space.choices, strict=True)
    ]
    problem = selection_problem(space.graph, choices, space.pool, costs)
    corrected = replace(space, costs=costs, choices=choices, problem=problem)
    made = shared_out(corrected, interference)
    return plan_of(made, default_selector().select(made.problem))


class NamedInterference:
    """Interference between the queues of a plan that may use some of a pool's processors, or number them otherwise."""

    def __init__(self, interference: InterferenceModel, pool: QueuePool, plan: Plan) -> None:
        """`interference` is between the queues of `pool`."""
        numbers = {queue.processor: number for number, queue in enumerate(pool.queues)}
        self._interference = interference
        self._numbers = [numbers.get(queue.processor, 0) for queue in plan.queues]
        self._computing = [bool(queue.processor) for queue in plan.queues]

    @property
    def whole_tensors(self) -> bool:
        """As between the pool's queues."""
        return self._interference.whole_tensors

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """As between the pool's queues."""
        among = frozenset(self._numbers[other] for other in others)
        return self._interference.transfer_seconds(self._numbers[queue], among, size)

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """As between the pool's queues; a host that only serves a device counts as idle."""
        among = frozenset(self._numbers[other] for other in others if self._computing[other])
        return self._interference.contention_factor(self._numbers[queue], among) if self._computing[queue] else 1.0


@dataclass(frozen=True, eq=False)
class _Ran:
    """A plan that ran: seconds of its steps without contention, of a run by these, and of waiting."""

    compiled: Compiled
    alone: NDArray[np.float64]
    predicted: float
    waiting: float


@dataclass(frozen=True)
class _Gain:
    """The latencies of the first plan and of another one, in seconds, and their ratio; without an interval for the first."""

    before: float
    after: float
    ratio: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, found: Comparison, plan: int) -> _Gain:
        """The gain by a plan of a comparison, whose first one is the first plan."""
        interval = _ends(found.intervals[plan, 0]) if plan else None
        return cls(found.seconds[0], found.seconds[plan], float(found.ratios[plan, 0]) if plan else 1.0, interval)


@dataclass
class _Rebalancing:
    """Attributes are the arguments of `rebalanced`, and what ran so far."""

    place: Callable[[RunFactors], Compiled]
    runs: PlanRuns
    interference: Callable[[Plan], InterferenceModel]
    progress: Progress
    factors: RunFactors = field(default_factory=RunFactors)
    rounds: list[RebalanceRound] = field(default_factory=list)

    def best(self, compiled: Compiled, *, is_tuned_here: bool) -> Compiled:
        """The plan that ran fastest, with the report."""
        first = best = self._ran(compiled)
        if is_tuned_here:
            self.factors.learn(compiled.plan, list(first.alone))
        tried = {_without_costs(compiled.plan)}
        gain: _Gain | None = None
        for number in range(_ROUNDS):
            self.progress(number, _ROUNDS, "sharing out again")
            made = self._made(first)
            predicted = self._predicted(made.plan)
            pays = not self.factors.layers or predicted < (1 - _LEAST_GAIN) * best.predicted
            if not pays or _without_costs(made.plan) in tried:
                break
            tried.add(_without_costs(made.plan))
            ran = self._ran(made)
            found = self.runs.compare([one.compiled for one in dict.fromkeys((first, best, ran))])
            newest = len(found.seconds) - 1
            is_fastest = found.is_fastest(newest)
            self.rounds.append(_round(predicted, found, moves(best.compiled.plan, made.plan), is_fastest))
            self.factors.learn(made.plan, list(ran.alone))
            if is_fastest:
                best, gain = ran, _Gain.of(found, newest)
            elif best is first:
                gain = _Gain.of(found, 0)
        gain = gain or _Gain.of(self.runs.compare([compiled]), 0)
        report = RebalanceReport(
            tuple(self.rounds),
            *(gain.before, gain.after, gain.ratio, gain.interval),
            first.waiting,
            best.waiting,
            moves(compiled.plan, best.compiled.plan),
        )
        return replace(best.compiled, rebalancing=report)

    def _made(self, first: _Ran) -> Compiled:
        """The plan that is predicted to be fastest. If it is the first one, and nothing was learned of that, it is now."""
        made = self.place(self.factors)
        if self.factors.layers or _without_costs(made.plan) != _without_costs(first.compiled.plan):
            return made
        self.factors.learn(made.plan, list(first.alone))
        return self.place(self.factors)

    def _ran(self, compiled: Compiled) -> _Ran:
        """Runs a plan."""
        times, plan = self.runs.step_times(compiled), compiled.plan
        interference = self.interference(plan)
        shares = np.array([share_alone(plan, spans, interference) for spans in times.spans])
        alone = np.median(times.seconds * shares, axis=0)
        waiting = float(np.median([waiting_seconds(plan, spans) for spans in times.spans]))
        steps = tuple(replace(step, cost_ms=1e3 * float(s)) for step, s in zip(plan.steps, alone, strict=True))
        return _Ran(compiled, alone, self._predicted(replace(plan, steps=steps)), waiting)

    def _predicted(self, plan: Plan) -> float:
        """Seconds of a run by the costs of its steps; steps without one, unmeasured layout changes, take no time."""
        steps = tuple(replace(step, cost_ms=step.cost_ms or 0.0) for step in plan.steps)
        return simulate(replace(plan, steps=steps), self.interference(plan)).total * 1e-9


def _round(predicted: float, found: Comparison, moved: tuple[Move, ...], kept: bool) -> RebalanceRound:
    """The round of the last plan of a comparison, which is beside the best one before it."""
    newest = len(found.seconds) - 1
    best = newest - 1
    ratio, ends = float(found.ratios[newest, best]), _ends(found.intervals[newest, best])
    return RebalanceRound(predicted, found.seconds[newest], found.seconds[best], ratio, ends, moved, kept)


def _ends(interval: NDArray[np.float64]) -> tuple[float, float]:
    return float(interval[0]), float(interval[1])


def _without_costs(plan: Plan) -> str:
    """The JSON text of a plan without its costs: equal for plans that differ in nothing else, of a package or made here."""
    return replace(plan, steps=tuple(replace(step, cost_ms=None) for step in plan.steps)).to_json()
