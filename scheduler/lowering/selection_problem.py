"""The selection problem: costs of all choices, and of layout changes and transfers between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.choices import Choice, Fused
from nnstretch.scheduler.lowering.crossing import CrossingCosts, Passage
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.plan.schema import QueuePool
from nnstretch.scheduler.selection.problem import Costs, Problem


def selection_problem(
    graph: UnitGraph, choices: Sequence[Sequence[Choice]], pool: QueuePool, costs: CostModel
) -> Problem:
    """The problem of one choice per unit, with layout changes and transfers as edge costs.

    The caller's inputs and outputs count as plain tensors on queue 0.
    """
    return _ProblemMaker(graph, choices, CrossingCosts(pool, costs, rounds=not graph.in_float32)).make()


@dataclass
class _ProblemMaker:
    _graph: UnitGraph
    _choices: Sequence[Sequence[Choice]]
    _crossings: CrossingCosts

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
        """Costs between the choices of two units; choices with equal layouts on one queue share theirs."""
        made = [(choice.outputs[output], choice.queue) for choice in self._choices[u]]
        read = [(choice.inputs[position], choice.queue) for choice in self._choices[v]]
        rows, columns = ({end: n for n, end in enumerate(dict.fromkeys(ends))} for ends in (made, read))
        costs = np.array([[self._edge(tensor, *before, *after) for after in columns] for before in rows])
        return costs[np.ix_([rows[end] for end in made], [columns[end] for end in read])]

    def _from_caller(self, tensor: TensorType, v: int, position: int) -> Costs:
        return np.array([self._edge(tensor, PLAIN, 0, c.inputs[position], c.queue, True) for c in self._choices[v]])

    def _to_caller(self, tensor: TensorType, u: int, output: int) -> Costs:
        return np.array([self._edge(tensor, c.outputs[output], c.queue, PLAIN, 0, True) for c in self._choices[u]])

    def _edge(
        self, tensor: TensorType, before: Layout, source: int, after: Layout, target: int, of_caller: bool = False
    ) -> float:
        if isinstance(before, Fused) or isinstance(after, Fused):
            return 0.0 if before == after else float("inf")
        return self._crossings.seconds(Passage(tensor, before, source, after, target, of_caller))
