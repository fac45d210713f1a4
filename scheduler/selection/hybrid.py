"""Hybrid selection: int8 layers in their integers or in floats, whichever is faster (SoftNeuro, sections IV and VI-A).

An int8 layer has choices of both types (`nnstretch.devices.base.float_form`), and edge costs hold the conversions between
them. So one problem has the plan in int8, the plan in floats and all plans between them, and its optimum is none slower. Floats
are float32, or float16 where a device stores it within the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.base.float_form import FloatFormRoutine
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Routine
from nnstretch.errors import SelectionError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.lowering.units import Unit
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection.problem import Assignment, Problem, Selector, assignment

FLOAT32, INT8 = "float32", "int8"
TYPES = (FLOAT32, INT8)
"""Types that int8 layers are computed in; float32 stands for all floats."""

Allowed = Sequence[NDArray[np.bool_]]
"""For each node which of its choices may be taken."""


@dataclass(frozen=True)
class HybridAnswer:
    """The best answer to a problem, and those to its restrictions.

    Attributes:
        best: of all; no other one has less of what the selector minimises (`Selector.aim`).
        restricted: by the restriction's name; those without a legal assignment are missing.
    """

    best: Assignment
    restricted: Mapping[str, Assignment] = field(default_factory=dict)


def only(problem: Problem, allowed: Allowed) -> Problem:
    """The problem with the choices that are not allowed forbidden."""
    costs = (np.where(may, cost, np.inf) for cost, may in zip(problem.costs, allowed, strict=True))
    return replace(problem, costs=tuple(costs))


def best_of(problem: Problem, selector: Selector, restrictions: Mapping[str, Allowed]) -> HybridAnswer:
    """The selector's answers to a problem and to its restrictions, which are answers to the whole problem, too.

    So the best is as good as any restricted one by what the selector minimises, also if it is a heuristic.

    Raises:
        SelectionError: the problem has no legal assignment.
    """
    best, found = selector.select(problem), dict[str, Assignment]()
    for name, allowed in restrictions.items():
        try:
            found[name] = selector.select(only(problem, allowed))
        except SelectionError:  # within the limits, layers of one type are not enough
            continue
    better = min(found.values(), key=selector.aim, default=best)
    if selector.aim(better) < selector.aim(best):
        best = assignment(problem, better.choices, (1 - best.gap) * best.cost, best.states, best.curve)
    return HybridAnswer(best, found)


def is_mixed(space: ChoiceSpace) -> bool:
    """Whether an int8 layer of a space has choices of several types."""
    return any(
        len({choice_dtype(unit.layer, choice) for choice in choices}) > 1
        for unit, choices in zip(space.graph.units, space.choices, strict=True)
    )


def selected(space: ChoiceSpace, selector: Selector) -> HybridAnswer:
    """The answer to a space; with those in one type if its layers have choices of several."""
    if not is_mixed(space):
        return HybridAnswer(selector.select(space.problem))
    return best_of(space.problem, selector, {dtype: allowed_in(space, dtype) for dtype in TYPES})


def in_type(space: ChoiceSpace, dtype: str) -> ChoiceSpace:
    """The space whose int8 layers have choices in one of `TYPES` only, as far as they have some of it.

    So have layers that are made of its layers later, such as shares of a split layer.
    """
    choices = [
        [choice for choice, may in zip(options, mask, strict=True) if may]
        for options, mask in zip(space.choices, allowed_in(space, dtype), strict=True)
    ]
    graph = replace(space.graph, in_float32=dtype == FLOAT32)
    costs = in_one_type(space.costs, dtype, space.pool.processors)
    problem = selection_problem(graph, choices, space.pool, costs)
    return replace(space, graph=graph, costs=costs, choices=choices, problem=problem)


def allowed_in(space: ChoiceSpace, dtype: str) -> Allowed:
    """The choices that compute in a type; all of a layer that has none of it, or is not int8."""
    masks = []
    for unit, choices in zip(space.graph.units, space.choices, strict=True):
        mine = np.array([choice_dtype(unit.layer, choice) == dtype for choice in choices])
        masks.append(mine if unit.layer.is_int8 and mine.any() else np.ones(len(choices), bool))
    return masks


def choice_dtype(layer: Layer, choice: Choice) -> str:
    """The type that a choice computes a layer in; one of `TYPES` for int8 layers."""
    if not layer.is_int8:
        return layer.outputs[0].dtype
    return FLOAT32 if isinstance(choice.routine, FloatFormRoutine) else INT8


def dtypes_of_units(space: ChoiceSpace, answer: Assignment) -> list[tuple[Unit, str]]:
    """Every unit with the type that an answer computes it in; of int8 layers that are computed in floats, the stored type."""
    found = []
    for unit, choice in zip(space.graph.units, space.chosen(answer), strict=True):
        form = choice.routine if isinstance(choice.routine, FloatFormRoutine) else None
        found.append((unit, form.descriptor.dtype if form else choice_dtype(unit.layer, choice)))
    return found


def in_one_type(costs: CostModel, dtype: str, processors: Sequence[Processor]) -> CostModel:
    """Costs for selections that compute int8 layers in one of `TYPES`, wherever one of the processors has a routine for that.

    A fusion group with int8 layers has routines of that type or none, since its layers have some.
    """
    wanted = [
        one
        for processor in processors
        for one in processor.routines
        if isinstance(one, FloatFormRoutine) == (dtype == FLOAT32)
    ]
    known: dict[Layer, bool] = {}

    def refuses(processor: Processor, routine: Routine, layer: Layer) -> bool:
        if not layer.is_int8 or isinstance(routine, FloatFormRoutine) == (dtype == FLOAT32):
            return False
        if layer not in known:
            known[layer] = bool(layer.parts) or any(one.supports(layer) for one in wanted)
        return known[layer]

    return costs.without(refuses)
