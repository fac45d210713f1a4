"""Plans end to end: any placement on any queues gives ONNX Runtime's answer, concurrently and serially alike."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import DesignError, FeedError, PackageError
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.scheduler.plan.compiled import Compiled, serial
from nnstretch.scheduler.runtime.critical_path import run_summary
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
TWO_CPUS = f"cpu:{CORES[0]},cpu:{CORES[-1]}"
CPU_AND_OPENCL = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


def compiled(network: RandomNetwork, processors: str) -> Compiled:
    return plan_model(network.graph(), build_processors(processors), tune=False)


def check(network: RandomNetwork, processors: str, runs: int) -> None:
    plan = compiled(network, processors)
    with PlanSession(plan) as concurrent, PlanSession(serial(plan)) as one_by_one:
        reference = one_by_one.run(None, {"x": network.input})
        for expected, found in zip(network.expected(), reference, strict=True):
            assert relative_error(found, expected) < 1e-4
        for _ in range(runs):
            for a, b in zip(concurrent.run(None, {"x": network.input}), reference, strict=True):
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("seed", range(25))
def test_two_cpu_queues(seed: int) -> None:
    check(RandomNetwork(seed, processors=2, nodes=5 + seed), TWO_CPUS, runs=40)


@pytest.mark.parametrize("seed", range(10))
def test_channels_that_do_not_fill_blocks(seed: int) -> None:
    check(RandomNetwork(seed, processors=2, nodes=12, channels=(5, 16, 19)), TWO_CPUS, runs=5)


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(8))
def test_cpu_and_opencl_queues(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are recorded as command buffers, or not."""
    monkeypatch.setenv("NNSTRETCH_COMMAND_BUFFERS", str(seed % 2))
    check(RandomNetwork(100 + seed, processors=2, nodes=10 + seed), CPU_AND_OPENCL, runs=20)


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(3))
def test_opencl_alone(seed: int) -> None:
    check(RandomNetwork(200 + seed, processors=0), f"opencl:0@{CORES[-1]}", runs=3)


def test_one_cpu_with_all_cores() -> None:
    check(RandomNetwork(7, processors=0, nodes=20), "cpu", runs=10)


def test_a_convolution_does_not_write_over_a_residual_that_it_convolves() -> None:
    lines = """
        <ir_version: 8, opset_import: ["": 18]> m (float[1, 16, 9, 9] x) => (float[1, 16, 9, 9] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Conv<pads = [1, 1, 1, 1]>(a, w) c = Add(a, b) y = Relu(c) }
    """
    proto = onnx.parser.parse_model(lines)
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    feeds = {"x": rng.standard_normal((1, 16, 9, 9)).astype(np.float32)}
    plan = plan_model(ir.from_proto(proto), build_processors(f"cpu:{CORES[0]}"), tune=False)
    assert any(step.op == "Conv" and len(set(step.reads)) < len(step.reads) for step in plan.plan.steps)
    with PlanSession(plan) as session:
        (found,) = session.run(None, feeds)
    assert relative_error(found, run_proto(proto, feeds)[0]) < 1e-4


@pytest.mark.parametrize("ratios", ["1:2", "5:1"])
def test_cores_of_different_speed(ratios: str) -> None:
    network, processors = RandomNetwork(7, processors=0, nodes=20), f"cpu:{CORES[0]}+{CORES[-1]}*{ratios}"
    assert compiled(network, processors).plan.queues[0].ratios == tuple(map(int, ratios.split(":")))
    check(network, processors, runs=10)


def test_concurrent_callers_take_turns() -> None:
    network = RandomNetwork(3, processors=2, nodes=16)
    with PlanSession(compiled(network, TWO_CPUS)) as session:
        reference = session.run(None, {"x": network.input})
        wrong: list[int] = []

        def call(number: int) -> None:
            scaled = network.input * np.float32(1)
            for _ in range(30):
                answers = session.run(None, {"x": scaled})
                if any(a.tobytes() != b.tobytes() for a, b in zip(answers, reference, strict=True)):
                    wrong.append(number)

        threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.parametrize("channels", [(16, 32), (256, 512)])
def test_weights_begin_on_pages(channels: tuple[int, ...]) -> None:
    """Every step's weights then begin on a cache line, whether they were packed just now or mapped from a package."""
    constants = compiled(RandomNetwork(5, processors=0, channels=channels), "cpu").constants
    assert constants.ctypes.data % 4096 == 0


def test_package_round_trip(tmp_path: Path) -> None:
    network = RandomNetwork(5, processors=2)
    with PlanSession(compiled(network, TWO_CPUS)) as session:
        session.save(tmp_path / "net.nns", {"name": "random"})
        reference = session.run(None, {"x": network.input})
    with PlanSession.load(tmp_path / "net.nns") as session:
        for a, b in zip(session.run(None, {"x": network.input}), reference, strict=True):
            assert a.tobytes() == b.tobytes()


def test_wrong_feeds() -> None:
    network = RandomNetwork(5, processors=0)
    with PlanSession(compiled(network, "cpu")) as session:
        with pytest.raises(FeedError, match="shape"):
            session.run(None, {"x": network.input[:, :, 1:]})
        with pytest.raises(FeedError, match="float64"):
            session.run(None, {"x": network.input.astype(np.float64)})
        with pytest.raises(FeedError, match="inputs"):
            session.run(None, {"y": network.input})
        with pytest.raises(FeedError, match="output"):
            session.run(["nothing"], {"x": network.input})


def test_more_branches_than_processors() -> None:
    with pytest.raises(DesignError, match="processor"):
        compiled(RandomNetwork(2, processors=3, nodes=20), TWO_CPUS)


def test_plan_for_another_block() -> None:
    import dataclasses

    plan = compiled(RandomNetwork(5, processors=0), "cpu")
    other = 4 if plan.plan.block != 4 else 8
    broken = dataclasses.replace(plan, plan=dataclasses.replace(plan.plan, block=other))
    with pytest.raises(PackageError, match="vectors"):
        PlanSession(broken)


@pytest.mark.parametrize("seed", range(6))
def test_sub_graphs_are_apart_only_where_somebody_waits(seed: int) -> None:
    plan = compiled(RandomNetwork(seed, processors=2, nodes=24), TWO_CPUS).plan
    awaited = {wait for subgraph in plan.subgraphs for wait in subgraph.waits}
    for queue in range(len(plan.queues)):
        mine = [number for number, subgraph in enumerate(plan.subgraphs) if subgraph.queue == queue]
        assert all(one in awaited or plan.subgraphs[other].waits for one, other in itertools.pairwise(mine))


def test_a_timeline_has_every_step_once_and_in_order() -> None:
    network = RandomNetwork(11, processors=2, nodes=20)
    with PlanSession(compiled(network, TWO_CPUS)) as session:
        timeline = session.profile({"x": network.input}, runs=3)
        steps = [e for e in timeline.events if e.kind == "step"]
        assert len(steps) == len(session.plan.steps)
        for queue in range(len(session.plan.queues)):
            mine = [e for e in timeline.events if e.queue == queue]
            assert all(a.end <= b.begin for a, b in itertools.pairwise(mine))
        assert all(0 <= e.begin <= e.end <= timeline.total for e in timeline.events)
        found = run_summary(session.plan, timeline)
    # The path covers the run without holes or overlaps from its begin to the end of the last step.
    assert sum(link.gap + link.step.end - link.step.begin for link in found.path) == max(e.end for e in steps)
    assert sum(link.step.end - link.step.begin for link in found.path) <= found.critical_path + 1 <= timeline.total + 1
    assert all(queue.busy + queue.waiting + queue.idle == timeline.total for queue in found.queues)
    assert len(found.waits) == sum(e.kind == "wait" for e in timeline.events)
    assert any(link.is_transfer for link in found.path)
