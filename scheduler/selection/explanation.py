"""Explanation of a selection, and comparison of selectors on one problem (QS-DNN, table III and figure 4)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.devices.external.engine import fallback_descriptor
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Outcome
from nnstretch.scheduler.lowering.candidates import considered_choices
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.presolve import possible
from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector


@dataclass(frozen=True)
class ExplainedCandidate:
    """A routine for a unit in some layouts, with its best parameters and their seconds.

    Attributes:
        processor: that it runs on.
        error: of its answer, relative to the output's range; None if unknown.
        fused: whether it computes the unit together with others.
    """

    processor: str
    routine: str
    parameters: dict[str, int]
    layouts: str
    seconds: float
    chosen: bool
    error: float | None
    fused: bool


@dataclass(frozen=True)
class FailedRoutine:
    """A routine that failed on a unit.

    Attributes:
        processor: that it ran on.
        routine: its name.
        failed, settings: number of its settings that failed, and of all that were considered.
        reason: why the first of them failed.
    """

    processor: str
    routine: str
    failed: int
    settings: int
    reason: str


@dataclass(frozen=True)
class ExplainedUnit:
    """A unit of a selection.

    Attributes:
        name: its name.
        op: operator of its layer.
        candidates: its candidates, the fastest first.
        adapts: seconds of layout changes at its inputs, and at its output if that is the network's.
        greedy_loss: seconds that the best network loses if this unit takes its own fastest candidate.
        failures: routines with a setting that failed.
    """

    name: str
    op: str
    candidates: tuple[ExplainedCandidate, ...]
    adapts: float
    greedy_loss: float
    failures: tuple[FailedRoutine, ...]


def explain(space: ChoiceSpace, answer: Assignment) -> list[ExplainedUnit]:
    """For every unit its alternatives, and the network's loss with a greedy choice there.

    `answer` is one to the space's problem.
    """
    return [_explained(space, number, answer) for number in range(len(space.graph.units))]


def _explained(space: ChoiceSpace, number: int, answer: Assignment) -> ExplainedUnit:
    unit = space.graph.units[number]
    considered = considered_choices(unit, space.pool, space.costs)
    return ExplainedUnit(
        unit.name,
        "+".join(n.layer.op.removeprefix("onnx:") for n in unit.nodes),
        _candidates(space, number, answer, [choice for choice in considered if choice.seconds is not None]),
        _adapts(space, number, answer),
        _greedy_loss(space.problem, number, answer),
        _failures(space, unit.layer, considered),
    )


def _candidates(
    space: ChoiceSpace, number: int, answer: Assignment, working: Sequence[Choice]
) -> tuple[ExplainedCandidate, ...]:
    chosen, unit = space.choices[number][answer.choices[number]], space.graph.units[number]
    best = {_key(chosen): chosen}
    _keep_fastest(best, space.choices[number], chosen)
    # Those that selection chose from were timed inside the network, where that is known, and the others alone.
    _keep_fastest(best, [choice for choice in working if _key(choice) not in best], chosen)
    found = [
        ExplainedCandidate(
            space.pool.processors[c.queue].name,
            _routine(c, unit.layer),
            dict(c.parameters),
            _layouts(c),
            c.seconds or 0.0,
            c is chosen,
            _outcome(space, unit.layer, c).error,
            c.is_head or c.group is not None,
        )
        for c in best.values()
    ]
    return tuple(sorted(found, key=lambda c: (c.seconds, not c.chosen)))


def _keep_fastest(best: dict[tuple[object, ...], Choice], choices: Sequence[Choice], chosen: Choice) -> None:
    """Adds to the fastest choices by key; the chosen one is never replaced."""
    for choice in choices:
        known = best.setdefault(_key(choice), choice)
        if known is not chosen and (choice.seconds or 0.0) < (known.seconds or 0.0):
            best[_key(choice)] = choice


def _failures(space: ChoiceSpace, layer: Layer, considered: Sequence[Choice]) -> tuple[FailedRoutine, ...]:
    """The routines with a setting that failed, in the order in which they were considered."""
    settings: dict[tuple[int, str], list[str | None]] = defaultdict(list)
    for choice in considered:
        settings[choice.queue, _routine(choice, layer)].append(_outcome(space, layer, choice).failure)
    found = []
    for (queue, routine), reasons in settings.items():
        failed = [reason for reason in reasons if reason is not None]
        if failed:
            name = space.pool.processors[queue].name
            found.append(FailedRoutine(name, routine, len(failed), len(reasons), failed[0]))
    return tuple(found)


def _outcome(space: ChoiceSpace, layer: Layer, choice: Choice) -> Outcome:
    """What is known of the answer of a choice for a unit's layer, or for the fusion group that it belongs to."""
    if choice.routine is None or choice.is_head:
        return Outcome()
    computed = layer if choice.group is None else choice.group.layer
    return space.costs.outcome(space.pool.processors[choice.queue], choice.routine, computed, choice.parameters)


def _key(choice: Choice) -> tuple[object, ...]:
    return choice.queue, None if choice.routine is None else choice.routine.descriptor, choice.inputs, choice.outputs


def _routine(choice: Choice, layer: Layer) -> str:
    return fallback_descriptor(layer) if choice.routine is None else str(choice.routine.descriptor)


def _layouts(choice: Choice) -> str:
    if choice.is_head:
        return "with its reader"
    inputs = list(dict.fromkeys(str(i) for i in choice.inputs))
    outputs = list(dict.fromkeys(str(o) for o in choice.outputs))
    return f"{'with its source' if choice.group else ', '.join(inputs)} → {', '.join(outputs)}"


def _adapts(space: ChoiceSpace, number: int, answer: Assignment) -> float:
    problem, choices = space.problem, answer.choices
    mine = choices[number]
    with_caller = float(problem.costs[number][mine]) - (space.choices[number][mine].seconds or 0.0)
    incoming = sum(float(m[choices[u], mine]) for (u, v), m in problem.edges.items() if v == number)
    return max(0.0, with_caller) + incoming


def _greedy_loss(problem: Problem, number: int, answer: Assignment) -> float:
    costs = problem.costs[number]
    alive = possible(problem).kept[number]
    fastest = int(alive[costs[alive].argmin()])
    if costs[answer.choices[number]] <= costs[fastest]:
        return 0.0
    forced = np.where(np.arange(len(costs)) == fastest, costs, np.inf)
    alone = replace(problem, costs=(*problem.costs[:number], forced, *problem.costs[number + 1 :]), limits={})
    return max(0.0, default_selector().select(alone).cost - answer.cost)


@dataclass(frozen=True)
class Compared:
    """A selector's answer, and the seconds of its search."""

    name: str
    answer: Assignment
    seconds: float


def compare(problem: Problem, selectors: Iterable[Selector]) -> list[Compared]:
    """One row per selector, in their order.

    Raises:
        SelectionError: no assignment is legal.
    """
    rows = []
    for selector in selectors:
        begin = time.perf_counter()
        answer = selector.select(problem)
        rows.append(Compared(selector.name, answer, time.perf_counter() - begin))
    return rows
