"""Integrated profiling: costs from inside the network decide, with made-up costs and runs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import FUSION_GROUP, Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.measurement.integrated import CONFIRMED, NEAR, LayerTimeKey, Samples, refined
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import PlanStep
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.textual_graphs import model_of, normal

CORE = min(os.sched_getaffinity(0))


class Units(CostModel):
    """About a second for every layer by itself, within a hundredth, with any routine."""

    measured = True

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if layer.op == FUSION_GROUP:
            return None
        return 1.0 + 0.01 * _draw(layer.workload, str(routine.descriptor), parameters)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0


def _draw(*what: object) -> float:
    return zlib.crc32(repr([dict(w) if isinstance(w, Mapping) else w for w in what]).encode()) / 2**32


class Memory:
    """Layer times in memory."""

    def __init__(self, slowed: Sequence[bool] = ()) -> None:
        self.found: dict[LayerTimeKey, Samples] = {}
        self._slowed = iter(slowed)

    def layer_samples(self, key: LayerTimeKey) -> Samples:
        return self.found.get(key, ())

    def keep_layer_samples(self, found: Mapping[LayerTimeKey, Samples]) -> None:
        self.found.update(found)

    def forget_layer_samples(self, keys: Sequence[LayerTimeKey]) -> None:
        for key in keys:
            del self.found[key]

    def is_slowed(self) -> bool:
        return next(self._slowed, False)

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        raise AssertionError("runs are given")


class Runs:
    """Runs of plans in which steps take `seconds`, times what disturbs the first runs of all, and then the `last`."""

    def __init__(self, *disturbances: float, last: float = 1.0) -> None:
        self.count = 0
        self._disturbances, self._last = disturbances, last

    def __call__(self, compiled: Compiled) -> np.ndarray:
        disturbed = self._disturbances[self.count] if self.count < len(self._disturbances) else self._last
        self.count += 1
        return np.array([[disturbed * self.seconds(step)] * 3 for step in compiled.plan.steps])

    @staticmethod
    def seconds(step: PlanStep) -> float:
        """Between 0.9 and 1.2, by routine and parameters, for layers that are no changes of layout."""
        return 0.9 + 0.3 * _draw(step.routine, step.parameters) if step.cost_ms else 0.0


def space_of(seed: int) -> ChoiceSpace:
    found = build_processors(f"cpu:{CORE}")
    graph = optimize(RandomNetwork(seed, 1).graph())
    return choice_space(graph, found.named, found.host, Units(), near=NEAR)


def assert_selected_costs_are_true(space: ChoiceSpace) -> None:
    """The selected path has its undisturbed cost."""
    plan = plan_of(space, default_selector().select(space.problem)).plan
    mine = [s for s in plan.steps if s.cost_ms and s.op not in ("Reorder", "Concat", "Reshape")]
    assert mine
    for step in mine:
        assert step.cost_ms == pytest.approx(1e3 * Runs.seconds(step), rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_path_that_is_selected_was_run_and_costs_what_it_took(seed: int) -> None:
    runs, records = Runs(), Memory()
    space = refined(space_of(seed), records, run=runs)
    assert_selected_costs_are_true(space)
    assignment = default_selector().select(space.problem)
    assert 1 <= runs.count <= 4 * 12
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
    several = replace(space, pool=replace(space.pool, queues=space.pool.queues * 2))
    assert refined(several, Memory(), run=runs) is several
    found = build_processors(f"cpu:{CORE}")
    estimated = choice_space(optimize(RandomNetwork(1, 1).graph()), found.named, found.host)
    assert refined(estimated, Memory(), run=runs) is estimated
    assert runs.count == 0


def costs_of(space: ChoiceSpace) -> list[float]:
    """The cost of every choice."""
    return [choice.seconds or 0.0 for choices in space.choices for choice in choices]


def undisturbed(seed: int) -> ChoiceSpace:
    return refined(space_of(seed), Memory(), run=Runs())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("disturbances", [(1.5,), (1.3, 1.4), (1.2, 1.3, 1.5), (1.0, 1.4), (1.0, 1.3, 1.0, 1.2)])
def test_a_disturbed_path_is_run_again(seed: int, disturbances: tuple[float, ...]) -> None:
    quiet = undisturbed(seed)
    runs = Runs(*disturbances)
    found = refined(space_of(seed), Memory(), run=runs)
    assert runs.count > len(disturbances)
    assert costs_of(found) == pytest.approx(costs_of(quiet))


@pytest.mark.parametrize("seed", range(4))
def test_a_path_is_scaled_by_what_its_baseline_takes_at_the_same_time(seed: int) -> None:
    """The machine becomes permanently slower at the second path."""
    quiet = undisturbed(seed)
    alone = Runs()
    refined(space_of(seed), Memory(), run=alone)
    assert alone.count > 1
    found = refined(space_of(seed), Memory(), run=Runs(1.0, last=1.4))
    assert costs_of(found) == pytest.approx(costs_of(quiet))


def test_what_ran_on_a_slow_core_is_run_again() -> None:
    """The core is slowed by less than a path's times can show."""
    quiet = undisturbed(1)
    found = refined(space_of(1), Memory(slowed=[True, False]), run=Runs(1.05))
    assert costs_of(found) == pytest.approx(costs_of(quiet))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("disturbed", [1.15, 1.5, 3.0])
def test_what_was_kept_of_a_disturbed_tuning_heals(seed: int, disturbed: float) -> None:
    records = Memory()
    refined(space_of(seed), records, run=Runs(last=disturbed))
    assert_selected_costs_are_true(refined(space_of(seed), records, run=Runs()))


def test_a_network_that_is_slower_than_its_layers_is_believed_in_the_end() -> None:
    records, runs = Memory(), Runs(last=1.6)
    for _ in range(CONFIRMED):
        refined(space_of(1), records, run=runs)
    count = runs.count
    refined(space_of(1), records, run=runs)
    assert runs.count == count


def test_the_store_keeps_and_forgets_times_inside_networks(tmp_path: Path) -> None:
    space, store = space_of(1), ProfileStore(tmp_path / "p.sqlite")
    host = space.host
    key, other = (LayerTimeKey("n", host.fingerprint, workload, "r", (("a", 1),)) for workload in ("w", "v"))
    with Profiler(store, host) as profiler:
        assert profiler.layer_samples(key) == ()
        profiler.keep_layer_samples({key: (2.0, 1.0), other: (3.0,)})
        assert profiler.layer_samples(key) == (2.0, 1.0)
        profiler.forget_layer_samples([key])
        assert profiler.layer_samples(key) == ()
        assert profiler.layer_samples(other) == (3.0,)
    store.close()


def test_steps_are_timed_one_by_one() -> None:
    space = space_of(3)
    compiled = plan_of(space, default_selector().select(space.problem))
    with PlanSession(compiled) as session:
        seconds = session.step_seconds(4)
    assert seconds.shape == (len(compiled.plan.steps), 4)
    assert (seconds >= 0).all() and seconds.sum() > 0


def convolutions() -> ir.Model:
    """Eight convolutions in a row, each with more channels than the one before."""
    weights = {f"w{i}": normal(16 * (i + 2), 16 * (i + 1), 3, 3) for i in range(8)}
    layers = " ".join(f"t{i + 1} = Conv<pads = [1, 1, 1, 1]>(t{i}, w{i})" for i in range(8))
    return optimize(model_of(f"net (float[1, 16, 12, 12] t0) => (float[1, 144, 12, 12] t8) {{ {layers} }}", weights))


@pytest.mark.parametrize(("unit", "chosen"), [(1.08, True), (1.3, False)])
def test_a_routine_whose_unit_costs_are_a_little_higher_is_tried(unit: float, chosen: bool) -> None:
    """Direct convolution is the fastest inside the network, but its unit costs were measured in a bad moment."""
    favoured = "cpu:float32/direct"

    class Disturbed(Units):
        def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
            found = super().seconds(processor, routine, layer, parameters)
            return found * unit if found is not None and str(routine.descriptor) == favoured else found

    def run(compiled: Compiled) -> np.ndarray:
        steps = compiled.plan.steps
        return np.array([[(0.8 if s.routine == favoured else 1.0) if s.cost_ms else 0.0] * 3 for s in steps])

    cpu = build_processors(f"cpu:{CORE}")
    space = refined(choice_space(convolutions(), cpu.named, cpu.host, Disturbed(), near=NEAR), Memory(), run=run)
    routines = [step.routine for step in plan_of(space, default_selector().select(space.problem)).plan.steps]
    assert routines.count(favoured) == (8 if chosen else 0)


def test_a_routine_that_is_faster_inside_networks_is_tried_where_its_unit_costs_are_higher() -> None:
    """Direct convolution takes 0.9 of its unit costs here. It is the cheaper one in a few layers, whose times say so."""
    favoured = "cpu:float32/direct"

    least_macs = 12 * 12 * 9 * 16 * 16

    class Biased(Units):
        def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
            unit = super().seconds(processor, routine, layer, parameters)
            if unit is None or str(routine.descriptor) != favoured:
                return unit
            return unit * (0.97 if layer.macs < 15 * least_macs else 1.06)

    class Inside(Runs):
        def __call__(self, compiled: Compiled) -> np.ndarray:
            self.count += 1
            shares = [0.9 if step.routine == favoured else 1.0 for step in compiled.plan.steps]
            units = [0.0 if not step.cost_ms else 1.0 for step in compiled.plan.steps]
            return np.array([[share * unit] * 3 for share, unit in zip(shares, units, strict=True)])

    cpu = build_processors(f"cpu:{CORE}")
    space = choice_space(convolutions(), cpu.named, cpu.host, Biased(), near=NEAR)
    before, after = (
        [step.routine for step in plan_of(one, default_selector().select(one.problem)).plan.steps]
        for one in (space, refined(space, Memory(), run=Inside()))
    )
    assert 3 <= before.count(favoured) < after.count(favoured)
