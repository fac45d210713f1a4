"""A new kind of queue needs one file and one line of the registry to be planned, validated, loaded and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from nnstretch.devices.backends import BACKENDS
from nnstretch.devices.base.backend import Backend, LoadableStep, LoadedQueues, LoadRequest, StepTarget
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Descriptor, KernelCall, Layout, Lowering, Operand, Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.binding.image import Queue, QueueKind
from nnstretch.errors import PackageError
from nnstretch.graph.layer import Layer
from nnstretch.graph.reference import relative_error, run_layer
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.selection_problem import selection_problem
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.plan.validate import validate
from nnstretch.scheduler.planner import choice_space, make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORE = usable_cores()[0]
LAYERS: dict[str, Layer] = {}
RECORD: list[str] = []


class PythonRoutine(Routine):
    """Every layer as a call of Python that names it."""

    descriptor = Descriptor("python", "float32", "reference")

    def supports(self, layer: Layer) -> bool:
        return not layer.parts

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        LAYERS[layer.name] = layer
        reads = tuple(Operand("input", i) for i in layer.activations)
        writes = tuple(Operand("output", i) for i in range(len(layer.outputs)))
        return Lowering((KernelCall(layer.name, reads, writes, model=layer.name.encode()),))


class PythonQueues(LoadedQueues):
    """Threads that compute layers in Python and record their names."""

    def __init__(self, request: LoadRequest) -> None:
        self._queues = request.queues

    def engine_queue(self, queue: int) -> Queue:
        return Queue(QueueKind.CALL, self._queues[queue].cores, name=self._queues[queue].processor)

    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        assert step.model is not None
        layer = LAYERS[step.model.decode()]

        def call(reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
            RECORD.append(layer.name)
            typed = [r.view(t.dtype).reshape(t.shape) for r, t in zip(reads, step.read_types, strict=True)]
            for target, result in zip(writes, run_layer(layer, *typed), strict=True):
                target[:] = np.ascontiguousarray(result).view(np.uint8).reshape(-1)

        return call


PYTHON = Backend("python", "Python queue", ("call",), PythonQueues, changes_layouts=False)


class PythonProcessor(Processor):
    backend = PYTHON
    spec = ProcessorSpec("python")

    def __init__(self, blocked: Layout) -> None:
        self.blocked = blocked
        self.reorder = PythonRoutine()
        self.routines = (self.reorder,)

    @property
    def fingerprint(self) -> str:
        return "python"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(BACKENDS, PYTHON.name, PYTHON)
    RECORD.clear()
    yield
    LAYERS.clear()


def planned(network: RandomNetwork) -> Compiled:
    cpu = CpuProcessor(ProcessorSpec("cpu", cores=(CORE,)))
    return make_plan(optimize(network.graph()), (cpu, PythonProcessor(cpu.blocked)), cpu)


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_with_queues_of_a_new_kind_runs(seed: int) -> None:
    network = RandomNetwork(seed, processors=2, kept=1)
    compiled = planned(network)
    validate(Plan.from_json(compiled.plan.to_json()))
    mine = [
        compiled.plan.steps[number].layer
        for subgraph in compiled.plan.subgraphs
        for number in range(subgraph.first, subgraph.first + subgraph.count)
        if compiled.plan.queues[subgraph.queue].backend is PYTHON
    ]
    with PlanSession(compiled) as session, session.replica() as replica:
        for one in (session, replica):
            RECORD.clear()
            for found, expected in zip(one.run(None, {"x": network.input}), network.expected(), strict=True):
                assert relative_error(found, expected) < 1e-4
            assert RECORD == mine != []


def test_crossing_to_a_queue_of_a_new_kind_costs_a_transfer() -> None:
    cpu = CpuProcessor(ProcessorSpec("cpu", cores=(CORE,)))
    processors = (cpu, PythonProcessor(cpu.blocked))
    space = choice_space(optimize(RandomNetwork(1, processors=0).graph()), processors, cpu)
    problem = selection_problem(space.graph, space.choices, space.pool, space.costs)
    (u, v), matrix = next(iter(problem.edges.items()))
    for row, a in enumerate(space.choices[u]):
        for column, b in enumerate(space.choices[v]):
            if a.outputs == b.inputs[:1] and a.queue != b.queue:
                assert matrix[row, column] > 0
    assert {choice.queue for choice in space.choices[u]} == {0, 1}


def test_a_kind_that_is_not_registered_is_refused() -> None:
    plan = planned(RandomNetwork(0, processors=2)).plan
    unknown = replace(plan, queues=(plan.queues[0], replace(plan.queues[1], kind="abacus")))
    with pytest.raises(PackageError, match="'abacus'"):
        validate(unknown)


def test_constants_of_a_queue_without_memory_are_refused() -> None:
    plan = planned(RandomNetwork(0, processors=2)).plan
    with pytest.raises(PackageError, match="queue 1, which has no memory of its own"):
        validate(replace(plan, constant_ranges={**plan.constant_ranges, 1: (0, 4)}))
