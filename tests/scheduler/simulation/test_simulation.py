from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.compiler.compile import plan_model, simulate_model
from nnstretch.compiler.costs import latency_predictor, open_profiler
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.simulated.processor import layer_seconds
from nnstretch.devices.simulated.profile import (
    PairProfile,
    ProcessorProfile,
    SocProfile,
    Throughput,
    load_profile,
    save_profile,
)
from nnstretch.errors import DeviceError, UsageError
from nnstretch.graph.layer import TensorType
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.simulation.costs import SimulatedPredictor
from nnstretch.scheduler.simulation.events import SimulatedTask, run_tasks
from nnstretch.scheduler.simulation.timing import NoInterference, ProfiledInterference, critical_path, simulate
from scripts.studies.fit_profile import fit
from tests.kits.graphs.graphs import RandomNetwork

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "studies" / "fit_profile.py"
NAMES = ("a", "b", "c")
ALONE = NoInterference()


def never(queue: int, others: frozenset[int]) -> float:
    return 1.0


def twice(queue: int, others: frozenset[int]) -> float:
    return 2.0 if others else 1.0


# -- tasks by hand -------------------------------------------------------------------------------------------------


def test_queues_run_at_the_same_time_and_meet() -> None:
    tasks = [
        SimulatedTask(1, (), 0.0, (4.0, 1.0)),
        SimulatedTask(0, (), 0.0, (3.0,)),
        SimulatedTask(0, (0,), 0.5, (2.0,)),
    ]
    one, two, three = run_tasks(tasks, never)
    assert one.steps == ((0.0, 4.0), (4.0, 5.0))
    assert two.steps == ((0.0, 3.0),)
    assert three.ready == 5.0
    assert three.steps == ((5.5, 7.5),)


def test_queues_slow_each_other_down_as_long_as_both_compute() -> None:
    # Both at half speed until 6, when the second is done; the first has 1 s of work left.
    one, two = run_tasks([SimulatedTask(0, (), 0.0, (4.0,)), SimulatedTask(1, (), 0.0, (3.0,))], twice)
    assert one.steps == ((0.0, 7.0),)
    assert two.steps == ((0.0, 6.0),)


def test_only_the_slowed_one_is_slow() -> None:
    def first(queue: int, others: frozenset[int]) -> float:
        return 3.0 if queue == 0 and 1 in others else 1.0

    # Two seconds beside the other give 2/3 of a second of work.
    one, two = run_tasks([SimulatedTask(0, (), 0.0, (2.0,)), SimulatedTask(1, (), 0.0, (2.0,))], first)
    assert one.steps[0] == pytest.approx((0.0, 2 + 4 / 3))
    assert two.steps == ((0.0, 2.0),)


def test_a_transfer_neither_slows_nor_is_slowed() -> None:
    one, two = run_tasks([SimulatedTask(0, (), 2.0, (1.0,)), SimulatedTask(1, (), 0.0, (3.0,))], twice)
    # Queue 1 works alone until 2, then both share: queue 0 is done at 4, as is queue 1.
    assert one.steps == ((2.0, 4.0),)
    assert two.steps == ((0.0, 4.0),)


def test_tasks_without_duration_are_done_at_once() -> None:
    tasks = [
        SimulatedTask(0, (), 0.0, (0.0,)),
        SimulatedTask(1, (0,), 0.0, (0.0, 1.0)),
        SimulatedTask(0, (1,), 0.0, ()),
    ]
    assert [t.steps for t in run_tasks(tasks, never)] == [((0.0, 0.0),), ((0.0, 0.0), (0.0, 1.0)), ()]


@st.composite
def task_lists(draw: st.DrawFn) -> list[SimulatedTask]:
    seconds = st.floats(0, 10)
    return [
        SimulatedTask(
            draw(st.integers(0, 2)),
            tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=3)))) if number else (),
            draw(seconds),
            tuple(draw(st.lists(seconds, max_size=3))),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


def longest_chain(tasks: list[SimulatedTask]) -> float:
    """The end of every task from its predecessors, independent of the simulation."""
    ends: list[float] = []
    for number, task in enumerate(tasks):
        before = [*task.waits, *(i for i in range(number) if tasks[i].queue == task.queue)]
        ends.append(max([ends[i] for i in before], default=0.0) + task.transfer + sum(task.steps))
    return max(ends)


def end_of(times: list[object]) -> float:
    return max((end for t in times for _, end in t.steps), default=0.0)  # type: ignore[attr-defined]


@given(task_lists())
def test_without_contention_the_longest_chain_decides(tasks: list[SimulatedTask]) -> None:
    tasks = [replace(task, steps=(*task.steps, 0.0)) for task in tasks]
    assert end_of(list(run_tasks(tasks, never))) == pytest.approx(longest_chain(tasks), abs=1e-9)


@given(task_lists(), st.floats(1, 5))
def test_contention_stretches_steps_within_bounds(tasks: list[SimulatedTask], factor: float) -> None:
    def slowed(queue: int, others: frozenset[int]) -> float:
        return factor ** len(others)

    tasks = [replace(task, steps=(*task.steps, 0.0)) for task in tasks]
    times = run_tasks(tasks, slowed)
    assert end_of(list(times)) >= longest_chain(tasks) - 1e-6
    busy: dict[int, float] = {}
    for task, found in zip(tasks, times, strict=True):
        assert found.ready >= busy.get(task.queue, 0.0) - 1e-9
        assert all(found.ready >= times[wait].steps[-1][1] - 1e-9 for wait in task.waits)
        at = found.ready + task.transfer
        for (begin, end), seconds in zip(found.steps, task.steps, strict=True):
            assert begin == pytest.approx(at, abs=1e-6)
            assert seconds - 1e-6 <= end - begin <= seconds * factor**2 + 1e-6
            at = end
        busy[task.queue] = at


# -- plans ---------------------------------------------------------------------------------------------------------


def some_soc(
    sync: float = 0.0, gb_per_s: float = 1e6, contention_factor: tuple[float, float] = (1.0, 1.0)
) -> SocProfile:
    def processor(speed: float) -> ProcessorProfile:
        every = Throughput(((1.0, speed),))
        kinds = dict.fromkeys(("conv", "grouped", "depthwise", "dense"), every)
        return ProcessorProfile(1.0 / speed, kinds, {"any": speed})

    pairs = [(one, other) for i, one in enumerate(NAMES) for other in NAMES[i + 1 :]]
    return SocProfile(
        {name: processor(i + 1.0) for i, name in enumerate(NAMES)},
        tuple(PairProfile(pair, sync, gb_per_s, contention_factor) for pair in pairs),
    )


def specs(folder: Path, soc: SocProfile, count: int) -> str:
    path = folder / f"{soc.identity}.json"
    save_profile(soc, path)
    return ",".join(f"sim:{path}/{name}" for name in NAMES[:count])


def planned(model: ir.Model, folder: Path, soc: SocProfile, count: int) -> tuple[Plan, ProfiledInterference, Timeline]:
    compiled, timeline = simulate_model(model, build_processors(specs(folder, soc, count)))
    return compiled.plan, ProfiledInterference(soc, dict(enumerate(NAMES[:count]))), timeline


def wide() -> ir.Model:
    """As `chain((0,))` with more MACs per byte."""
    return chain((0,), 64)


def chain(processors: tuple[int, ...], channels: int = 8) -> ir.Model:
    """1×1 convolutions of 10×10 pixels, one after another, on these processors."""
    shape = (1, channels, 10, 10)
    x = value = ir.val("x", ir.DataType.FLOAT, shape)
    nodes, weights = [], []
    for number, processor in enumerate(processors):
        weight = ir.val(f"w{number}", ir.DataType.FLOAT, (channels, channels, 1, 1))
        weight.const_value = ir.tensor(np.ones((channels, channels, 1, 1), np.float32), name=weight.name)
        result = ir.val(f"y{number}", ir.DataType.FLOAT, shape)
        nodes.append(ir.node("Conv", [value, weight], {"kernel_shape": [1, 1]}, outputs=[result], name=f"c{number}"))
        nodes[-1].metadata_props["nnstretch.processor"] = str(processor)
        weights.append(weight)
        value = result
    graph = ir.Graph([x], [value], nodes=nodes, initializers=weights, opset_imports={"": 20}, name="chain")
    return ir.Model(graph, ir_version=10)


def test_a_chain_across_processors_by_hand(tmp_path: Path) -> None:
    soc = some_soc(sync=7.0, gb_per_s=2.0, contention_factor=(3.0, 3.0))
    _, _, timeline = planned(chain((0, 1, 1, 0)), tmp_path, soc, 2)
    (node, *_) = layers(optimize(chain((0,))))
    slow, fast = (round(layer_seconds(soc.processors[name], node.layer, 4) * 1e9) for name in "ab")
    transfer = 7000 + 4 * 800 / 2
    assert timeline.total == pytest.approx(2 * slow + 2 * fast + 2 * transfer, abs=5)
    steps = [(e.queue, e.end - e.begin) for e in sorted(timeline.events, key=lambda e: e.begin) if e.kind == "step"]
    assert [queue for queue, _ in steps] == [0, 1, 1, 0]
    assert [length for _, length in steps] == pytest.approx([slow, fast, fast, slow], abs=2)
    waits = [(e.queue, e.end - e.begin) for e in timeline.events if e.kind == "wait"]
    assert [queue for queue, _ in waits] == [0, 1]
    assert timeline.queues == tuple(specs(tmp_path, soc, 2).split(","))


def test_the_input_is_where_queue_0_reads_it(tmp_path: Path) -> None:
    soc = some_soc(sync=7.0, gb_per_s=2.0)
    (node, *_) = layers(optimize(chain((0,))))
    fast = layer_seconds(soc.processors["b"], node.layer, 4) * 1e9
    assert planned(chain((1,)), tmp_path, soc, 2)[2].total == pytest.approx(fast + 7000 + 4 * 800 / 2, abs=2)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 3))
def test_random_networks_obey_their_plan(tmp_path_factory: pytest.TempPathFactory, seed: int, count: int) -> None:
    folder = tmp_path_factory.mktemp("profiles")
    model = RandomNetwork(seed, count).graph()
    free, _, ideal = planned(model, folder, some_soc(), count)
    serial = sum(step.cost_ms or 0.0 for step in free.steps) * 1e6
    longest = critical_path(free, ALONE) * 1e9
    assert longest <= serial * (1 + 1e-9)
    assert simulate(free, ALONE).total == pytest.approx(longest, abs=1)
    assert ideal.total == pytest.approx(longest, rel=1e-3, abs=len(free.steps))
    assert sum(e.macs for e in ideal.events) == free.macs

    soc = some_soc(sync=5.0, gb_per_s=1.0, contention_factor=(1.3, 1.7))
    plan, interference, timeline = planned(model, folder, soc, count)
    assert timeline.total >= critical_path(plan, interference) * 1e9 - 1
    queues_busy = [timeline.busy(queue) for queue in range(len(timeline.queues))]
    assert max(queues_busy) <= timeline.total
    for queue in range(len(timeline.queues)):
        mine = sorted((e for e in timeline.events if e.queue == queue), key=lambda e: (e.begin, e.end))
        assert all(one.end <= other.begin for one, other in itertools.pairwise(mine))


def test_the_predictor_and_the_plan_agree(tmp_path: Path) -> None:
    soc = some_soc(sync=5.0, gb_per_s=1.0)
    for seed in range(8):
        model = RandomNetwork(seed, 0, channels=(16,)).graph()
        names = specs(tmp_path, soc, 1)
        plan = plan_model(model, build_processors(names)).plan
        copies = sum((step.cost_ms or 0.0) * 1e-3 for step in plan.steps if step.op == "Reorder")
        predicted = latency_predictor(build_processors(names)).seconds([n.layer for n in layers(optimize(model))], 0)
        assert simulate(plan, ALONE).total == pytest.approx((predicted + copies) * 1e9, abs=len(plan.steps) + 1)


def test_the_predictor_includes_synchronisation_and_contention(tmp_path: Path) -> None:
    soc = some_soc(sync=5.0, gb_per_s=1.0, contention_factor=(1.5, 2.0))
    slow_pair = replace(soc.pairs[2], sync_us=50.0)  # of b and c
    found = latency_predictor(build_processors(specs(tmp_path, replace(soc, pairs=(*soc.pairs[:2], slow_pair)), 3)))
    assert isinstance(found, SimulatedPredictor)
    tensor = TensorType((1, 10, 5, 5))
    assert found.meeting_seconds(tensor, (0, 1, 2), (0, 1, 2)) == pytest.approx(50e-6 + 1e-6)
    assert found.meeting_seconds(tensor, (0, 1), (0,)) == pytest.approx(5e-6 + 1e-6)
    assert found.meeting_seconds(tensor, (1,), (1, 2)) == pytest.approx(50e-6 + 1e-6)
    assert found.meeting_seconds(tensor, (2,), (2,)) == 0.0
    assert found.contention_factor(0, frozenset({1})) == 1.5
    assert found.contention_factor(1, frozenset({0, 2})) == 2.0 * 1.5
    assert found.error(0) is None
    assert not found.confirm([], 0)


def test_unplaced_layers_leave_a_processor_where_that_pays(tmp_path: Path) -> None:
    model = chain((0, 0, 0, 0))
    for node in model.graph:
        node.metadata_props.clear()
    for sync, queue in ((0.0, 1), (1000.0, 0)):  # queue 1 is twice as fast
        plan, _, _ = planned(model, tmp_path, some_soc(sync=sync), 2)
        assert {subgraph.queue for subgraph in plan.subgraphs} == {queue}


def test_the_script_fits_a_profile(tmp_path: Path) -> None:
    """Two networks of known price give back that price, a third, on both processors, the bandwidth; a fourth is only tested."""
    soc = some_soc(gb_per_s=0.5)
    rows: list[dict[str, Any]] = []
    for number, (model, names) in enumerate(
        [(chain((0,)), "a"), (wide(), "a"), (chain((0,)), "b"), (wide(), "b"), (chain((0, 1, 0)), "ab")]
    ):
        path = tmp_path / f"{number}.onnx"
        ir.save(model, path)
        specs_of = ",".join(spec for spec in specs(tmp_path, soc, 2).split(",") if spec[-1] in names)
        seconds = simulate_model(model, build_processors(specs_of))[1].total
        rows.append({"model": str(path), "processors": [*names], "ms": seconds * 1e-6})
    table, made = tmp_path / "table.json", tmp_path / "made.json"
    ir.save(wide(), tmp_path / "held.onnx")
    rows.append({"model": str(tmp_path / "held.onnx"), "processors": ["a"], "ms": 2 * rows[1]["ms"]})
    table.write_text(json.dumps({"measurements": rows, "launch_us": {"a": 1.0, "b": 0.5}}))
    command = [sys.executable, str(SCRIPT), str(table), "-o", str(made), "--hold-out", str(tmp_path / "held.onnx")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=250).stdout
    fitted, held_out = printed.split("held out")
    assert "held.onnx" not in fitted
    assert "root mean square 50.0%, largest 50.0%" in held_out
    found = load_profile(str(made))
    assert found.pair("a", "b").gb_per_s == pytest.approx(0.5, rel=0.02)
    for name in "ab":
        one, other = found.processors[name], soc.processors[name]
        assert one.compute["conv"].gmacs_per_s[0][1] == pytest.approx(other.compute["conv"].gmacs_per_s[0][1], rel=0.02)
        assert one.memory_gb_per_s["any"] == pytest.approx(other.memory_gb_per_s["any"], rel=0.02)
    with pytest.raises(UsageError, match="no model 'missing' to hold out"):
        fit(table, made, ["missing"])
    table.write_text('{"measurements": [{}]}')
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)
    assert result.returncode == 2
    assert "is no table of measurements" in result.stderr


# -- refusals ------------------------------------------------------------------------------------------------------


def test_simulated_processors_run_and_measure_nothing(tmp_path: Path) -> None:
    processors = build_processors(specs(tmp_path, some_soc(), 1))
    compiled = plan_model(chain((0,)), processors, tune=False)
    with pytest.raises(DeviceError, match="only exist in a profile"):
        PlanSession(compiled)
    with pytest.raises(UsageError, match="are simulated and cannot be measured"):
        open_profiler(processors)


def test_simulated_and_real_processors_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not all of one profile"):
        build_processors(f"{specs(tmp_path, some_soc(), 1)},cpu")
    with pytest.raises(UsageError, match="not all of one profile"):
        build_processors(f"{specs(tmp_path, some_soc(), 1)},sim:phone/cpu")


def test_a_layer_that_no_processor_computes_is_named(tmp_path: Path) -> None:
    soc = some_soc()
    first, *others = soc.processors
    without = replace(soc.processors[first], compute={"dense": soc.processors[first].compute["conv"]})
    changed = replace(soc, processors={**soc.processors, first: without})
    with pytest.raises(DeviceError, match=r"cannot compute .* \(Conv\): the profile has no rate for 'conv'; add it"):
        simulate_model(chain((0,)), build_processors(specs(tmp_path, changed, 1)))
    assert others
    simulate_model(chain((1,)), build_processors(specs(tmp_path, changed, 2)))  # the other processor computes it


def test_real_processors_are_not_simulated() -> None:
    processors = build_processors("cpu")
    with pytest.raises(UsageError, match="are not simulated"):
        simulate_model(chain((0,)), processors)
    plan = plan_model(chain((0,)), processors, tune=False).plan
    with pytest.raises(DeviceError, match="has no cost"):
        simulate(replace(plan, steps=tuple(replace(step, cost_ms=None) for step in plan.steps)), ALONE)
