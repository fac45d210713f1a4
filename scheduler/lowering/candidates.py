"""Candidates: the choices of routine, parameters and queue that every unit has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Routine
from nnstretch.devices.base.spec import example_processors
from nnstretch.devices.external.engine import ExternalRoutine
from nnstretch.devices.external.onnxruntime import OnnxRuntimeRoutine
from nnstretch.errors import DesignError, ModelError
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel
from nnstretch.scheduler.lowering.calls import inner_seconds
from nnstretch.scheduler.lowering.choices import Choice, Fused, FusionGroup, find_fusion_groups
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.lowering.views import becomes_view
from nnstretch.scheduler.plan.schema import QueuePool
from nnstretch.support.progress import Progress

_LEAST_FUSED_SHARE = 0.6
"""Assumed lower bound of a fusion group's time in an external engine, as a share of the sum of its layers' times."""


def is_native(pool: QueuePool) -> Callable[[Layer], bool]:
    """A test whether any named processor has a routine for a layer other than those of external engines beside it."""
    own = [queue for queue in pool.queue_of if pool.backend(queue).runs_models]
    routines = [
        routine
        for queue in pool.queue_of
        for routine in pool.processors[queue].routines
        if queue in own or not isinstance(routine, ExternalRoutine)
    ]
    return lambda layer: any(routine.supports(layer) for routine in routines)


def check_placements(graph: UnitGraph, pool: QueuePool) -> None:
    """Refuses a branched network for more processors than there are.

    Raises:
        DesignError: a layer is made for a processor that was not named.
    """
    last = max(graph.units, key=lambda unit: -1 if unit.placement is None else unit.placement, default=None)
    if last is None or last.placement is None or last.placement < len(pool.queue_of):
        return
    count, example = last.placement + 1, example_processors(last.placement + 1)
    raise DesignError(
        f"the design is for {count} processors (layer {last.name} is for the last one), but there are only "
        f"{', '.join(_names(pool))}; name {count} with --processors, in the order of the design's search"
        f"{f', such as {example}' if example else ''} (`nnstretch devices` lists them)"
    )


def unit_choices(
    graph: UnitGraph, pool: QueuePool, costs: CostModel, progress: Progress | None = None, near: float = 0.0
) -> list[list[Choice]]:
    """The choices of every unit.

    These are the cheapest per (queue, layouts), since neighbours see nothing else of a choice, and those
    whose cost exceeds the cheapest by at most the share `near`. With measured costs, fusion groups and
    external engines have choices too.

    Raises:
        ModelError: a layer has no working routine on the processor that it was given to.
    """
    choices: list[list[Choice]] = []
    for number, unit in enumerate(graph.units):
        if progress:
            progress(number, len(graph.units), unit.name)
        allowed = _allowed_queues(unit, pool)
        if unit.is_fallback:
            found = _fallback_choices(unit, allowed, pool, costs)
        else:
            found = single_choices(unit.layer, allowed, pool, costs, near) or single_choices(
                unit.layer, pool.queue_of, pool, costs, near
            )
        if not found:
            why = (
                "; none that was measured is right within the tolerance: raise it (--tolerance)"
                if costs.measured
                else ""
            )
            raise ModelError(
                f"no routine computes layer {unit.name} ({unit.layer.op}) on {', '.join(_names(pool))}{why}"
            )
        choices.append(found)
    if costs.measured:
        _add_fusion_groups(graph, pool, costs, choices)
    if progress:
        progress(len(graph.units), len(graph.units), "")
    return choices


def single_choices(
    layer: Layer,
    queues: Sequence[int],
    pool: QueuePool,
    costs: CostModel,
    near: float = 0.0,
    externals: bool | None = None,
) -> list[Choice]:
    """Choices for a layer by itself on some queues, as in `unit_choices`; may be empty.

    External engines compete if `externals`, by default if costs are measured.
    """
    found: dict[tuple[object, ...], list[Choice]] = defaultdict(list)
    for choice in _working(layer, queues, pool, costs, externals=costs.measured if externals is None else externals):
        found[choice.queue, choice.inputs, choice.outputs].append(choice)
    kept: list[Choice] = []
    for choices in found.values():
        cheapest, *others = sorted(choices, key=lambda choice: choice.seconds or 0.0)
        limit = (cheapest.seconds or 0.0) * (1 + near)
        kept += [cheapest, *(choice for choice in others if near and (choice.seconds or 0.0) <= limit)]
    return kept


def queue_workloads(graph: UnitGraph, pool: QueuePool, queue: int) -> list[tuple[Layer, int]]:
    """A layer or fusion group for every workload that a queue may compute, with the number of its occurrences."""
    others = {number for number, other in enumerate(pool.queue_of) if other != queue}
    mine = {number for number, unit in enumerate(graph.units) if unit.placement not in others}
    wanted = [graph.units[number].layer for number in sorted(mine) if not graph.units[number].is_fallback]
    wanted += [group.layer for group in find_fusion_groups(graph) if mine.issuperset(group.units)]
    weights: dict[str, int] = defaultdict(int)
    representatives: dict[str, Layer] = {}
    for layer in wanted:
        weights[layer.workload] += 1
        representatives.setdefault(layer.workload, layer)
    return [(layer, weights[workload]) for workload, layer in representatives.items()]


def searchable_routines(processor: Processor, layer: Layer) -> list[Routine]:
    """A processor's native routines for a layer; empty if their short lists are their whole search spaces."""
    native = [r for r in processor.routines if not isinstance(r, ExternalRoutine) and r.supports(layer)]
    if all(len(routine.search_space(layer)) == len(routine.parameter_space(layer)) for routine in native):
        return []
    return native


def all_choices(unit: Unit, pool: QueuePool, costs: CostModel) -> list[Choice]:
    """All working choices of a unit on its allowed queues, with measured costs; empty for a fallback unit."""
    return [choice for choice in considered_choices(unit, pool, costs) if choice.seconds is not None]


def considered_choices(unit: Unit, pool: QueuePool, costs: CostModel) -> list[Choice]:
    """As `all_choices`, and choices without a cost, which failed or were left out."""
    queues = () if unit.is_fallback else _allowed_queues(unit, pool)
    return list(_considered(unit.layer, queues, pool, costs, externals=True))


def _add_fusion_groups(graph: UnitGraph, pool: QueuePool, costs: CostModel, choices: Sequence[list[Choice]]) -> None:
    """Adds choices for every fusion group that a routine supports; external engines get promising groups only.

    Queues that run models are left out: their calls are formed once all queues are chosen
    (`nnstretch.scheduler.lowering.calls`).
    """
    singles = [list(options) for options in choices]
    for group in find_fusion_groups(graph):
        externals = group.between_cuts and _may_suit_external_engines([singles[u] for u in group.units])
        mine = [queue for queue in pool.queue_of if not pool.backend(queue).runs_models]
        queues = [queue for queue in mine if all(queue in _allowed_queues(graph.units[u], pool) for u in group.units)]
        for number, choice in enumerate(single_choices(group.layer, queues, pool, costs, externals=externals)):
            for unit, part in zip(group.units, fused_choices(group, choice, number), strict=True):
                choices[unit].append(part)


def fused_choices(group: FusionGroup, choice: Choice, number: int) -> Iterator[Choice]:
    """The choices of a fusion group's units, in their order, where `choice` computes the group's layer.

    Args:
        group: the units.
        choice: of the layer that they are together.
        number: what sets this choice apart from others for the same group.
    """
    between = Fused(units=group.units, choice=number)
    for unit in group.units:
        inputs = tuple(choice.inputs[i] if i >= 0 else between for i in group.sources(unit))
        if unit == group.units[-1]:
            yield replace(choice, inputs=inputs, group=group)
        else:
            yield Choice(choice.queue, choice.routine, {}, inputs, (between,), 0.0)


def _may_suit_external_engines(singles: Sequence[Sequence[Choice]]) -> bool:
    """Whether an external engine may compute a fusion group faster than native routines compute its layers."""
    externals = native = 0.0
    for options in singles:
        plain = [c.seconds or 0.0 for c in options if {*c.inputs, *c.outputs} == {PLAIN}]
        externals += min(plain, default=float("inf"))
        native += min(
            (c.seconds or 0.0 for c in options if not isinstance(c.routine, ExternalRoutine)), default=externals
        )
    return _LEAST_FUSED_SHARE * externals <= native


def _names(pool: QueuePool) -> list[str]:
    return [pool.processors[queue].name for queue in pool.queue_of]


def _allowed_queues(unit: Unit, pool: QueuePool) -> tuple[int, ...]:
    if unit.placement is None:
        return pool.queue_of
    return (pool.queue_of[unit.placement],)


def _fallback_choices(unit: Unit, allowed: Sequence[int], pool: QueuePool, costs: CostModel) -> list[Choice]:
    queue = next((queue for queue in allowed if pool.backend(queue).serves_caller), 0)
    routine, seconds = OnnxRuntimeRoutine(), None
    if costs.measured and routine.supports(unit.layer):  # else it cannot be measured on random inputs
        seconds = costs.seconds(pool.processors[queue], routine, unit.layer, routine.default_parameters(unit.layer))
    return [Choice(queue, None, {}, (PLAIN,) * len(unit.inputs), (PLAIN,) * len(unit.outputs), seconds or 0.0)]


def _working(
    layer: Layer, queues: Sequence[int], pool: QueuePool, costs: CostModel, *, externals: bool
) -> Iterator[Choice]:
    """Working choices for `layer` on some queues, with costs; external engines only if `externals`."""
    found = _considered(layer, queues, pool, costs, externals=externals)
    return (choice for choice in found if choice.seconds is not None)


def _considered(
    layer: Layer, queues: Sequence[int], pool: QueuePool, costs: CostModel, *, externals: bool
) -> Iterator[Choice]:
    """As `_working`, and choices without a cost."""
    for queue in queues:
        yield from _priced(layer, queue, _queue_choices(layer, queue, pool, costs, externals), pool, costs)


def _queue_choices(layer: Layer, queue: int, pool: QueuePool, costs: CostModel, externals: bool) -> list[Choice]:
    """Choices for `layer` on a queue, without costs: one per routine and layouts if costs are not measured."""
    found: dict[object, Choice] = {}
    processor = pool.processors[queue]
    for routine in processor.routines:
        is_asked = externals or pool.backend(queue).runs_models or not isinstance(routine, ExternalRoutine)
        if not is_asked or not routine.supports(layer):
            continue
        for parameters in costs.settings(processor, routine, layer):
            inputs, outputs = routine.layouts(layer, parameters)
            key = (id(routine), inputs, outputs, tuple(parameters.items()) if costs.measured else ())
            found.setdefault(key, Choice(queue, routine, parameters, inputs, outputs))
    return list(found.values())


def _priced(layer: Layer, queue: int, choices: Sequence[Choice], pool: QueuePool, costs: CostModel) -> Iterator[Choice]:
    """Choices with their costs; those that need a kernel are compared together."""
    busy = [c for c in choices if pool.backend(queue).runs_models or not becomes_view(layer, c.inputs, c.outputs)]
    candidates = [Candidate(c.routine, c.parameters) for c in busy if c.routine is not None]
    prices = dict(zip(map(id, busy), costs.compare(pool.processors[queue], layer, candidates), strict=True))
    for choice in choices:
        seconds = prices.get(id(choice), 0.0)
        inner = None if seconds is None else inner_seconds(pool.processors[queue], layer, seconds, costs)
        yield replace(choice, seconds=inner)
