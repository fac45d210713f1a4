"""The fastest hybrid whose measured accuracy is within a limit (QS-DNN, section IV-C, and figures 10 to 12).

What int8 costs in accuracy is known only of whole networks. So every layer's rounding is measured alone first, as the error of
the network's outputs with all other layers in float32. The sum over layers orders plans: those that no other beats in latency
and in that sum are the candidates. Accuracies of candidates are measured, by bisection from the fastest on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnstretch.errors import SelectionError
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.constraints.pareto import pareto
from nnstretch.scheduler.selection.hybrid import FLOAT32, INT8, HybridAnswer, allowed_in, choice_dtype, only
from nnstretch.scheduler.selection.problem import Assignment, Problem, assignment
from nnstretch.support.progress import Progress

ROUNDING = "rounding"
"""Resource of the errors of rounded layers."""

Measure = Callable[[Assignment], float]
"""Runs the plan of an assignment, and measures its outputs."""


@dataclass(frozen=True)
class AccurateAnswer:
    """An answer within a limit of accuracy.

    Attributes:
        answer: the assignment.
        accuracy: its measured accuracy, in percent.
        reference: that of the network in float32.
        measured: number of plans whose accuracy was measured.
    """

    answer: Assignment
    accuracy: float
    reference: float
    measured: int


def rounding_errors(space: ChoiceSpace, error: Measure, progress: Progress | None = None) -> list[float]:
    """For each unit the error of the network with this one in int8 and the others in float32; 0 if it has one type only.

    Args:
        space: the choices.
        error: of a plan's outputs against those in float32.
        progress: called for every unit.
    """
    floats = allowed_in(space, FLOAT32)
    problem = replace(space.problem, limits={})
    errors = []
    for number, unit in enumerate(space.graph.units):
        if progress:
            progress(number, len(space.choices), unit.name)
        rounded = _rounded(space, number)
        alone = [*floats[:number], rounded, *floats[number + 1 :]]
        mixed = rounded.any() and not rounded.all()
        errors.append(error(default_selector().select(only(problem, alone))) if mixed else 0.0)
    return errors


def with_rounding(space: ChoiceSpace, errors: Sequence[float]) -> Problem:
    """The problem of a space with each unit's rounding error as an amount of its choices in int8."""
    amounts = tuple(np.where(_rounded(space, number), error, 0.0) for number, error in enumerate(errors))
    return replace(space.problem, amounts={**space.problem.amounts, ROUNDING: amounts})


def fastest_accurate(problem: Problem, found: HybridAnswer, accuracy: Measure, points: float) -> AccurateAnswer:
    """The fastest candidate whose accuracy is at most some points below that in float32.

    Args:
        problem: with amounts of `ROUNDING`.
        found: its answers without the limit; float32 among them.
        accuracy: of a plan, in percent.
        points: percentage points that may be lost.

    Raises:
        SelectionError: layers in float32 alone exceed another limit, or lose as much.
    """
    if FLOAT32 not in found.restricted:
        raise SelectionError("no plan in float32 is within the other limits, so nothing is known to compare with")
    reference, fastest = accuracy(found.restricted[FLOAT32]), accuracy(found.best)
    if fastest >= reference - points:
        return AccurateAnswer(found.best, fastest, reference, 2)
    candidates = [point for point in pareto(problem, [ROUNDING]).points if point.cost > found.best.cost]
    best, least, measured = (found.restricted[FLOAT32], reference), 0, 2
    most = len(candidates)  # candidates from here on are accurate enough, or slower than one that is
    while least < most:
        middle = (least + most) // 2
        reached = accuracy(candidates[middle])
        measured += 1
        if reached >= reference - points:
            best, most = (candidates[middle], reached), middle
        else:
            least = middle + 1
    bound = (1 - found.best.gap) * found.best.cost
    answer = assignment(problem, best[0].choices, bound)
    amounts = {name: amount for name, amount in answer.amounts.items() if name != ROUNDING}
    return AccurateAnswer(replace(answer, amounts=amounts), best[1], reference, measured)


def _rounded(space: ChoiceSpace, number: int) -> np.ndarray:
    """Which choices of a unit are in int8."""
    layer = space.graph.units[number].layer
    return np.array([choice_dtype(layer, choice) == INT8 for choice in space.choices[number]])
