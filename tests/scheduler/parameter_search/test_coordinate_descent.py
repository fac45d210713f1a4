"""Coordinate descent from the short lists: results, measurements and skipped settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir
import pytest
import torch
from torch import nn

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.parameter_search.coordinate_descent import descend, neighbours
from nnstretch.scheduler.plan.schema import queue_pool


class Valleys(CostModel):
    """Costs that grow with the distance from one setting of the routine's space. Records its queries."""

    measured = True

    def __init__(self, place: float) -> None:
        self._place = place
        self._optima: dict[tuple[str, str], Mapping[str, int]] = {}
        self.asked: set[tuple[str, str, tuple[tuple[str, int], ...]]] = set()

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float:
        self.asked.add((layer.workload, str(routine.descriptor), tuple(sorted(parameters.items()))))
        return layer.macs * 1e-9 * (1 + 0.1 * self.distance(routine, layer, parameters))

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0

    def distance(self, routine: Routine, layer: Layer, parameters: Parameters) -> float:
        return sum(abs(math.log((1 + parameters[n]) / (1 + v))) for n, v in self.optimum(routine, layer).items())

    def optimum(self, routine: Routine, layer: Layer) -> Mapping[str, int]:
        key = (str(routine.descriptor), layer.workload)
        if key not in self._optima:
            space = routine.search_space(layer)
            self._optima[key] = space[int(self._place * (len(space) - 1))]
        return self._optima[key]


def network() -> ir.Model:
    layers = [
        nn.Conv2d(3, 64, 3, padding=1),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Conv2d(64, 128, 1),
        nn.Conv2d(128, 8, 1),
    ]
    return optimize(export(nn.Sequential(*layers).eval(), torch.zeros(1, 3, 28, 28)))


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_it_approaches_the_optimum_with_few_measurements(place: float) -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    pool = queue_pool([processor], processor)
    graph = unit_graph(network(), is_native(pool))
    costs = Valleys(place)
    found = descend(graph, pool, costs)
    better = 0
    for unit in graph.units[:3]:
        layer = unit.layer
        routines = [r for r in processor.routines if r.supports(layer) and len(r.search_space(layer)) > 1]
        for routine in routines:
            usual = min(costs.distance(routine, layer, s) for s in routine.parameter_space(layer))
            for setting in found(processor, routine, layer):
                assert setting in routine.search_space(layer)
                assert costs.distance(routine, layer, setting) < usual
                better += 1
        space = sum(len(r.search_space(layer)) for r in routines)
        asked = len([1 for workload, *_ in costs.asked if workload == layer.workload])
        assert asked < max(40, space / 4)
    assert better >= 2
    before = set(costs.asked)
    assert [found(processor, r, graph.units[1].layer) for r in processor.routines] == [
        descend(graph, pool, costs)(processor, r, graph.units[1].layer) for r in processor.routines
    ]
    assert costs.asked == before, "a second search asks nothing new"


def test_layers_with_a_negligible_share_are_skipped() -> None:
    processor = CpuProcessor(ProcessorSpec("cpu", cores=(min(usable_cores()),)))
    pool = queue_pool([processor], processor)
    small = nn.Sequential(nn.Conv2d(64, 256, 3, padding=1), nn.Conv2d(256, 2, 1))
    graph = unit_graph(optimize(export(small.eval(), torch.zeros(1, 64, 28, 28))), is_native(pool))
    last = graph.units[-1].layer
    assert last.macs < 0.01 * graph.units[0].layer.macs
    costs = Valleys(0.9)
    descend(graph, pool, costs)
    usual = sum(len(r.parameter_space(last)) for r in processor.routines if r.supports(last))
    assert len([1 for workload, *_ in costs.asked if workload == last.workload]) == usual


SPACE: Sequence[Parameters] = [{"a": a, "b": b // a} for a in (1, 2, 4) for b in (8, 16, 32)]


def test_neighbours_change_one_parameter_by_a_step_and_the_others_as_little_as_they_can() -> None:
    assert neighbours({"a": 2, "b": 8}, "a", SPACE) == [{"a": 4, "b": 8}, {"a": 1, "b": 8}]
    assert neighbours({"a": 1, "b": 32}, "a", SPACE) == [{"a": 2, "b": 16}]
    assert neighbours({"a": 1, "b": 32}, "b", SPACE) == [{"a": 1, "b": 16}]
    assert neighbours({"a": 3, "b": 5}, "a", SPACE) == [{"a": 4, "b": 4}, {"a": 2, "b": 4}]
