"""Calls: on queues that run models, the layers between two joins become one model; costs of layers inside a call.

A layer that is measured alone is a call of its own and pays for entering and leaving it. Inside a larger call
it does not: per tensor that is half the cost of a call that passes a tensor through. Selection uses the cost
of layers inside calls, and adds the cost of entering or leaving wherever a tensor crosses queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.units import UnitGraph, join_units

_LEAST_SHARE = 0.05
"""Lower bound of a layer's time inside a call, as a share of its time as a call of its own."""


def crossing_seconds(processor: Processor, tensor: TensorType, costs: CostModel) -> float:
    """Seconds for a tensor to enter or leave a call of a processor; 0 if its queue runs no models."""
    if not processor.backend.runs_models or not costs.measured:
        return 0.0
    return (costs.reorder_seconds(processor, tensor, PLAIN, PLAIN) or 0.0) / 2


def inner_seconds(processor: Processor, layer: Layer, seconds: float, costs: CostModel) -> float:
    """Seconds of a layer inside a call if it takes `seconds` alone; unchanged if the queue runs no models."""
    tensors = [*(layer.type_of(i) for i in layer.activations), *layer.outputs]
    return max(_LEAST_SHARE * seconds, seconds - sum(crossing_seconds(processor, t, costs) for t in tensors))


def join_calls(
    graph: UnitGraph, chosen: Sequence[Choice], processors: Sequence[Processor], costs: CostModel
) -> tuple[UnitGraph, list[Choice]]:
    """Joins the units of each call into one unit.

    A call is a sub-graph (NN-Stretch): units of one queue where only the first waits for other queues and
    other queues wait only for the last. Units whose joint model fails when it is measured stay separate
    calls.

    Args:
        graph: units in topological order.
        chosen: a choice per unit; those on queues that run models read and write plain tensors.
        processors: by queue.
        costs: give the cost of a call if they are measured.

    Returns:
        The graph with joined units, and the choices of its units.
    """
    units, choices = list(graph.units), list(chosen)
    removed: set[int] = set()
    for group in _Grouping(graph, chosen, processors).groups():
        joined = join_units([graph.units[u] for u in group], _seen_outside(graph, group))
        choice = _joint(joined.layer, [chosen[u] for u in group], processors, costs)
        if choice is not None:
            units[group[0]], choices[group[0]] = joined, choice
            removed.update(group[1:])
    left = [u for u in range(len(units)) if u not in removed]
    return replace(graph, units=tuple(units[u] for u in left)), [choices[u] for u in left]


def _joint(layer: Layer, parts: Sequence[Choice], processors: Sequence[Processor], costs: CostModel) -> Choice | None:
    """The choice for a call of several units; None if it fails."""
    queue = parts[0].queue
    routine = next((r for r in processors[queue].routines if r.supports(layer)), None)
    if routine is None:
        return None
    parameters = routine.default_parameters(layer)
    seconds: float | None = sum(choice.seconds or 0.0 for choice in parts)
    if costs.measured:
        seconds = costs.seconds(processors[queue], routine, layer, parameters)
    inputs, outputs = routine.layouts(layer, parameters)
    return None if seconds is None else Choice(queue, routine, parameters, inputs, outputs, seconds)


def _seen_outside(graph: UnitGraph, group: Sequence[int]) -> list[str]:
    """Outputs of a group of units that other units or the caller read."""
    inside = set(group)
    wanted = {*graph.outputs, *(n for u, unit in enumerate(graph.units) if u not in inside for n in unit.inputs)}
    return [name for u in group for name in graph.units[u].outputs if name in wanted]


class _Grouping:
    """Groups units in order. A group ends where another queue needs its result or its own queue must wait."""

    def __init__(self, graph: UnitGraph, chosen: Sequence[Choice], processors: Sequence[Processor]) -> None:
        self._graph = graph
        self._queue = [choice.queue for choice in chosen]
        self._calls = [processors[choice.queue].backend.runs_models and choice.routine is not None for choice in chosen]
        maker = {name: u for u, unit in enumerate(graph.units) for name in unit.outputs}
        self._needs = [{maker[name] for name in unit.inputs if name in maker} for unit in graph.units]
        self._needed_elsewhere = {
            before for u, needs in enumerate(self._needs) for before in needs if self._queue[before] != self._queue[u]
        }

    def groups(self) -> list[list[int]]:
        """Ascending unit numbers of each call of two or more units."""
        found: list[list[int]] = []
        growing: dict[int, list[int]] = {}
        waited: dict[
            tuple[int, int], int
        ] = {}  # (queue, other queue) -> last unit of the other queue it has waited for
        for unit, queue in enumerate(self._queue):
            if not self._calls[unit]:
                continue
            foreign = [u for u in self._needs[unit] if self._queue[u] != queue]
            waits = [u for u in foreign if u > waited.get((queue, self._queue[u]), -1)]
            for u in waits:
                waited[queue, self._queue[u]] = max(u, waited.get((queue, self._queue[u]), -1))
            if waits or queue not in growing or self._reads([*growing[queue], unit]) > MAX_READS:
                growing[queue] = []
                found.append(growing[queue])
            growing[queue].append(unit)
            if unit in self._needed_elsewhere:
                del growing[queue]
        return [part for group in found for part in self._writable(group) if len(part) > 1]

    def _reads(self, group: Sequence[int]) -> int:
        """Number of tensors that a group reads."""
        made = {name for u in group for name in self._graph.units[u].outputs}
        return len({name for u in group for name in self._graph.units[u].inputs} - made)

    def _writable(self, group: list[int]) -> list[list[int]]:
        """Splits a group until no part has more outputs than a step can write."""
        if len(group) == 1 or len(_seen_outside(self._graph, group)) <= MAX_WRITES:
            return [group]
        middle = len(group) // 2
        return [*self._writable(group[:middle]), *self._writable(group[middle:])]
