"""Resources of routines besides time, for limits and Pareto fronts (QS-DNN, section IV-C)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.errors import UsageError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.lowering.candidates import all_choices
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.lowering.units import Unit
from nnstretch.scheduler.planner import ChoiceSpace
from nnstretch.scheduler.selection.problem import Costs
from nnstretch.support.progress import Progress

MEMORY = "memory"
"""Bytes of prepared constants and workspaces. The sum counts shared workspaces more than once."""
ERROR = "error"
"""Error of the routines' answers relative to their outputs' ranges. The sum assumes that nothing damps errors."""
RESOURCES = (MEMORY, ERROR)


def with_resources(space: ChoiceSpace, resources: Sequence[str], progress: Progress | None = None) -> ChoiceSpace:
    """The space with amounts of `resources`, and with slower choices that need less of one than all faster ones.

    Args:
        space: has the fastest choices.
        resources: some of `RESOURCES`.
        progress: called with (done, total, unit) while weights are prepared, which takes most of the time.

    Raises:
        UsageError: a resource does not exist, or its amounts are unknown.
    """
    unknown = [r for r in resources if r not in RESOURCES]
    if unknown:
        raise UsageError(f"there is no resource {unknown[0]!r}; known are {', '.join(RESOURCES)}")
    needs = _Needs(space, tuple(resources))
    choices: list[Sequence[Choice]] = []
    amounts: dict[str, list[Costs]] = defaultdict(list)
    for number, (unit, fastest) in enumerate(zip(space.graph.units, space.choices, strict=True)):
        if progress:
            progress(number, len(space.choices), unit.name)
        mine = [*fastest, *_trade_offs(unit, fastest, space, needs)]
        choices.append(mine)
        for resource in resources:
            amounts[resource].append(np.array([needs.of(unit, choice, resource) for choice in mine]))
    if ERROR in resources and not needs.errors_known:
        raise UsageError("the profile store has no errors of routines; leave error out")
    problem = selection_problem(space.graph, choices, space.pool, space.costs)
    problem = replace(problem, amounts={r: tuple(a) for r, a in amounts.items()})
    return replace(space, choices=choices, problem=problem)


@dataclass
class _Needs:
    """Amounts of choices; weights of equal workloads are prepared once."""

    space: ChoiceSpace
    resources: tuple[str, ...]
    errors_known: bool = False
    _bytes: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, unit: Unit, choice: Choice, resource: str) -> float:
        layer = choice.group.layer if choice.group else unit.layer
        if choice.routine is None or choice.is_head:
            return 0.0
        return float(self._memory(layer, choice)) if resource == MEMORY else self._error(layer, choice)

    def _memory(self, layer: Layer, choice: Choice) -> int:
        assert choice.routine is not None
        key = (layer.workload, choice.queue, choice.routine.descriptor, tuple(sorted(choice.parameters.items())))
        if key not in self._bytes:
            lowering = choice.routine.lower(layer, choice.parameters)
            self._bytes[key] = sum(c.nbytes for c in lowering.constants) + sum(lowering.workspaces)
        return self._bytes[key]

    def _error(self, layer: Layer, choice: Choice) -> float:
        assert choice.routine is not None
        processor = self.space.pool.processors[choice.queue]
        error = self.space.costs.error(processor, choice.routine, layer, choice.parameters)
        if error is None or not math.isfinite(error):
            return 0.0
        self.errors_known = True
        return error


def _trade_offs(unit: Unit, fastest: Sequence[Choice], space: ChoiceSpace, needs: _Needs) -> list[Choice]:
    """Choices that need less of some resource than all faster ones of the same queue and layouts."""
    known: dict[object, list[Mapping[str, float]]] = defaultdict(list)

    def is_better(choice: Choice) -> bool:
        mine = {r: needs.of(unit, choice, r) for r in needs.resources}
        faster = known[choice.queue, choice.inputs, choice.outputs]
        if any(all(other[r] <= mine[r] for r in mine) for other in faster):
            return False
        faster.append(mine)
        return True

    for choice in fastest:
        is_better(choice)
    others = sorted(all_choices(unit, space.pool, space.costs), key=lambda c: c.seconds or 0.0)
    return [choice for choice in others if is_better(choice)]
