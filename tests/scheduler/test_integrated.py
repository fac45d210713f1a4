"""Integrated profiling: costs from inside the network decide, with made-up costs and runs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from nnstretch.compiler import build_processors
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import Parameters, Routine
from nnstretch.graph.layer import CHAIN, Layer, TensorType
from nnstretch.graph.passes import optimize
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.costs import CostModel
from nnstretch.scheduler.integrated import NEAR, Key, refined
from nnstretch.scheduler.plan import PlanStep
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.selectors import default_selector
from nnstretch.scheduler.session import Session
from tests.scheduler.graphs import RandomNetwork

CORE = min(os.sched_getaffinity(0))


class Units(CostModel):
    """A second for every layer by itself, and a hundredth of one more or less, whatever computes it."""

    measured = True

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if layer.op == CHAIN:
            return None
        return 1.0 + 0.01 * _draw(layer.workload, str(routine.descriptor), parameters)

    def handover(self, tensor: TensorType) -> float:
        return 0.0


def _draw(*what: object) -> float:
    return zlib.crc32(repr([dict(w) if isinstance(w, Mapping) else w for w in what]).encode()) / 2**32


class Memory:
    """Records in memory."""

    def __init__(self) -> None:
        self.found: dict[Key, float] = {}

    def inside(self, key: Key) -> float | None:
        return self.found.get(key)

    def keep_inside(self, found: Mapping[Key, tuple[float, ...]]) -> None:
        self.found.update({key: float(np.median(samples)) for key, samples in found.items()})


class Runs:
    """Runs of plans in which steps take `seconds`."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, compiled: Compiled) -> np.ndarray:
        self.count += 1
        return np.array([[self.seconds(step)] * 3 for step in compiled.plan.steps])

    @staticmethod
    def seconds(step: PlanStep) -> float:
        """Between 0.9 and 1.2, by routine and parameters, for layers that are no changes of layout."""
        return 0.9 + 0.3 * _draw(step.routine, step.parameters) if step.cost_ms else 0.0


def space_of(seed: int) -> ChoiceSpace:
    found = build_processors(f"cpu:{CORE}")
    graph = optimize(RandomNetwork(seed, 1).graph())
    return choice_space(graph, found.named, found.host, Units(), near=NEAR)


@pytest.mark.parametrize("seed", range(8))
def test_the_path_that_is_selected_was_run_and_costs_what_it_took(seed: int) -> None:
    runs, records = Runs(), Memory()
    space = refined(space_of(seed), records, run=runs)
    assignment = default_selector().select(space.problem)
    plan = plan_of(space, assignment).plan
    mine = [s for s in plan.steps if s.cost_ms and s.op not in ("Reorder", "Concat", "Reshape")]
    assert mine
    for step in mine:
        assert step.cost_ms == pytest.approx(1e3 * Runs.seconds(step), rel=1e-6)
    assert 1 <= runs.count <= 12
    by_itself = default_selector().select(space_of(seed).problem)
    assert assignment.cost <= space.problem.cost(by_itself.choices) + 1e-9


def test_what_is_known_is_not_run_again() -> None:
    runs, records = Runs(), Memory()
    first = refined(space_of(1), records, run=runs)
    count = runs.count
    second = refined(space_of(1), records, run=runs)
    assert runs.count == count
    assert default_selector().select(first.problem) == default_selector().select(second.problem)


def test_times_of_one_network_are_not_those_of_another() -> None:
    records = Memory()
    refined(space_of(1), records, run=Runs())
    names = {key.network for key in records.found}
    refined(space_of(2), records, run=Runs())
    assert len({key.network for key in records.found}) == len(names) + 1 == 2


def test_estimates_and_several_processors_are_left_alone() -> None:
    runs = Runs()
    space = space_of(1)
    several = replace(space, pool=replace(space.pool, lanes=space.pool.lanes * 2))
    assert refined(several, Memory(), run=runs) is several
    found = build_processors(f"cpu:{CORE}")
    estimated = choice_space(optimize(RandomNetwork(1, 1).graph()), found.named, found.host)
    assert refined(estimated, Memory(), run=runs) is estimated
    assert runs.count == 0


def test_steps_are_timed_one_by_one() -> None:
    space = space_of(3)
    compiled = plan_of(space, default_selector().select(space.problem))
    with Session(compiled) as session:
        seconds = session.step_seconds(4)
    assert seconds.shape == (len(compiled.plan.steps), 4)
    assert (seconds >= 0).all() and seconds.sum() > 0
