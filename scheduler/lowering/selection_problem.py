"""The selection problem: costs of all choices, and of layout changes and transfers between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.calls import crossing_seconds
from nnstretch.scheduler.lowering.choices import Choice, Fused
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.plan.schema import QueuePool
from nnstretch.scheduler.selection.problem import Costs, Problem


def selection_problem(
    graph: UnitGraph, choices: Sequence[Sequence[Choice]], pool: QueuePool, costs: CostModel
) -> Problem:
    """The problem of one choice per unit, with layout changes and transfers as edge costs.

    The caller's inputs and outputs count as plain tensors on queue 0.
    """
    return _ProblemMaker(graph, choices, pool, costs).make()


@dataclass
class _ProblemMaker:
    _graph: UnitGraph
    _choices: Sequence[Sequence[Choice]]
    _pool: QueuePool
    _costs: CostModel
    _adapt_seconds: dict[tuple[TensorType, Layout, Layout, int], float] = field(default_factory=dict)

    def make(self) -> Problem:
        graph = self._graph
        node_costs: list[Costs] = [np.array([c.seconds or 0.0 for c in cs]) for cs in self._choices]
        edges: dict[tuple[int, int], Costs] = {}
        producer = {name: (i, k) for i, unit in enumerate(graph.units) for k, name in enumerate(unit.outputs)}
        for v, unit in enumerate(graph.units):
            for position, name in enumerate(unit.inputs):
                if name in producer:
                    u, k = producer[name]
                    matrix = self._matrix(graph.types[name], u, k, v, position)
                    edges[u, v] = edges.get((u, v), np.zeros_like(matrix)) + matrix
                else:
                    node_costs[v] = node_costs[v] + self._from_caller(graph.types[name], v, position)
        for name in graph.outputs:
            if name in producer:
                u, k = producer[name]
                node_costs[u] = node_costs[u] + self._to_caller(graph.types[name], u, k)
        return Problem(tuple(node_costs), edges, names=tuple(unit.name for unit in graph.units))

    def _matrix(self, tensor: TensorType, u: int, output: int, v: int, position: int) -> Costs:
        return np.array(
            [
                [self._edge(tensor, a.outputs[output], a.queue, b.inputs[position], b.queue) for b in self._choices[v]]
                for a in self._choices[u]
            ]
        )

    def _from_caller(self, tensor: TensorType, v: int, position: int) -> Costs:
        return np.array([self._edge(tensor, PLAIN, 0, c.inputs[position], c.queue, True) for c in self._choices[v]])

    def _to_caller(self, tensor: TensorType, u: int, output: int) -> Costs:
        return np.array([self._edge(tensor, c.outputs[output], c.queue, PLAIN, 0, True) for c in self._choices[u]])

    def _edge(
        self, tensor: TensorType, before: Layout, source: int, after: Layout, target: int, caller: bool = False
    ) -> float:
        if isinstance(before, Fused) or isinstance(after, Fused):
            return 0.0 if before == after else float("inf")
        backends = [self._pool.backend(queue) for queue in (source, target)]
        crosses = source != target and any(backend.own_memory for backend in backends)
        meets = source != target and (self._costs.all_cross or any(backend.synchronises for backend in backends))
        seconds = self._transfer(tensor, source, target) if meets else 0.0
        if crosses and (before.dtype or after.dtype):
            return seconds + self._cast(tensor, before, source, after, target, caller)
        if crosses and all(backend.own_memory for backend in backends):  # the host copies
            return seconds + self._adapt(tensor, before, after, 0)
        if before != after or (caller and crosses):
            seconds += self._adapt(tensor, before, after, source)
        return seconds

    def _transfer(self, tensor: TensorType, source: int, target: int) -> float:
        """Seconds of a transfer between two queues, and of entering and leaving calls."""
        one, other = (self._pool.processors[queue] for queue in (source, target))
        crossing = sum(crossing_seconds(processor, tensor, self._costs) for processor in (one, other))
        return self._costs.transfer(one, other, tensor) + crossing

    def _cast(self, tensor: TensorType, before: Layout, source: int, after: Layout, target: int, caller: bool) -> float:
        """Cost of a change of element type at a crossing between host and device, which the device computes.

        The host copies the caller's arrays as they are. Two devices pass tensors of their own types only.
        """
        own_memory = [self._pool.backend(queue).own_memory for queue in (source, target)]
        if all(own_memory):
            return float("inf")
        device, host = (source, target) if own_memory[0] else (target, source)
        copy = self._adapt(tensor, PLAIN, PLAIN, host) if caller else 0.0
        return copy + self._adapt(tensor, before, after, device)

    def _adapt(self, tensor: TensorType, before: Layout, after: Layout, queue: int) -> float:
        key = (tensor, before, after, queue)
        if key not in self._adapt_seconds:
            processor = self._pool.processors[self._pool.reordering(queue)]
            seconds = self._costs.reorder_seconds(processor, tensor, before, after)
            self._adapt_seconds[key] = float("inf") if seconds is None else seconds
        return self._adapt_seconds[key]
