"""Plans for a CPU and two OpenCL devices: no bytes are given to both devices, and the answers are those of ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.opencl.queues import installed_runtime
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.plan.compiled import Compiled, serial
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.hypothesis_examples import examples
from tests.scheduler.runtime.test_half_plans import FakeDevice, Prices

CORES = sorted(os.sched_getaffinity(0))
SHARED = f"cpu:{CORES[0]},opencl:0@{CORES[-1]},opencl:0"
"""The third processor shares all cores, so that two cores are enough."""
TOLERANCE = 1e-4
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two devices need two cores")


def networks(*channels: tuple[int, ...], size: int | None = None) -> st.SearchStrategy[RandomNetwork]:
    """Random networks on three processors."""
    return st.builds(
        RandomNetwork,
        seed=st.integers(0, 2**32 - 1),
        processors=st.just(3),
        nodes=st.integers(3, 16),
        channels=st.sampled_from(channels),
        kept=st.integers(0, 3),
        flat=st.booleans(),
        size=st.just(size),
    )


@pytest.fixture(scope="module")
def host() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=(CORES[0],)))


def planned(model: ir.Model, processors: Sequence[Processor], host: Processor, seed: int | None = None) -> Compiled:
    """A plan with estimated costs, or with random ones, which mix layouts more."""
    return make_plan(optimize(model), processors, host, None if seed is None else Prices(seed, 0.5))


def devices_touching(plan: Plan) -> dict[tuple[str, int], set[int]]:
    """The OpenCL queues whose steps use each region of memory but weights."""
    touching: dict[tuple[str, int], set[int]] = {}
    for subgraph in plan.subgraphs:
        for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            for buffer in (plan.buffers[i] for i in (*step.reads, *step.writes) if i is not None):
                if buffer.memory != "constant" and plan.queues[subgraph.queue].kind == "opencl":
                    touching.setdefault((buffer.memory, buffer.index), set()).add(subgraph.queue)
    return touching


def written_by(plan: Plan, memory: str) -> dict[int, set[int]]:
    """For each region of a kind of memory the queues that write to it."""
    writers: dict[int, set[int]] = {}
    for subgraph in plan.subgraphs:
        for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            for buffer in (plan.buffers[i] for i in step.writes):
                if buffer.memory == memory:
                    writers.setdefault(buffer.index, set()).add(subgraph.queue)
    return writers


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(
    network=networks((16, 32), (5, 16, 19)),
    coherent=st.booleans(),
    halves=st.booleans(),
    prices=st.none() | st.integers(0, 1000),
)
def test_no_bytes_are_given_to_two_devices(
    host: CpuProcessor, network: RandomNetwork, coherent: bool, halves: bool, prices: int | None
) -> None:
    """`make_plan` validates, too: no read before a write, no race, no slot transferred by a queue without ownership."""
    devices = [FakeDevice(i, host.blocked.block, ("float32", "float16")[: 1 + halves]) for i in range(2)]
    for device in devices:
        device.coherent = coherent
    plan = planned(network.graph(), [host, *devices], host, prices).plan
    assert all(len(queues) == 1 for queues in devices_touching(plan).values())
    if not coherent:
        assert all(len(queues) == 1 or 0 not in queues for queues in written_by(plan, "shared").values())


@pytest.fixture(scope="module")
def processors() -> Processors:
    return build_processors(SHARED)


@pytest.fixture(params=Sharing, ids=lambda sharing: sharing.name, scope="module")
def sharing(request: pytest.FixtureRequest, processors: Processors) -> Iterator[Sharing]:
    """Devices that share the host's memory in either way, and the same as if each had one of its own."""
    unified, fine = request.param is not Sharing.COPIED, request.param is Sharing.COHERENT
    with pytest.MonkeyPatch.context() as patch:
        for processor in processors.named[1:]:
            patch.setattr(processor, "coherent", unified)
            runtime = installed_runtime(processor.spec)
            patch.setattr(runtime, "info", replace(runtime.info, unified=unified, fine_grained=fine))
        yield request.param


def check(
    model: ir.Model, feeds: dict[str, np.ndarray], expected: Sequence[np.ndarray], processors: Processors, runs: int
) -> Plan:
    """Concurrent runs give the bytes of one step after another, which are ONNX Runtime's answer."""
    compiled = planned(model, processors.named, processors.host)
    with PlanSession(compiled) as concurrent, PlanSession(serial(compiled)) as one_by_one:
        reference = one_by_one.run(None, feeds)
        for wanted, found in zip(expected, reference, strict=True):
            assert relative_error(found, wanted) < TOLERANCE
        for _ in range(runs):
            for a, b in zip(concurrent.run(None, feeds), reference, strict=True):
                assert a.tobytes() == b.tobytes()
    return compiled.plan


@pytest.mark.opencl
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(network=networks((16, 32), size=6))
def test_any_network(processors: Processors, sharing: Sharing, network: RandomNetwork) -> None:
    check(network.graph(), {"x": network.input}, network.expected(), processors, runs=5)


def placed(body: str, outputs: str, weights: Sequence[str], queues: dict[str, int]) -> ir.Model:
    """A network over 1x32x6x6 tensors; `queues` says where each tensor is made; weights are 32x32x3x3."""
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,32,6,6] x) => ({outputs}) <{", ".join(f"float[32,32,3,3] {name}" for name in weights)}> {{ {body} }}
    """
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name in weights:
        values = rng.standard_normal((32, 32, 3, 3)).astype(np.float32) / 17
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    for node in model.graph.node:
        entry = node.metadata_props.add()
        entry.key, entry.value = PLACEMENT_KEY, str(queues[node.output[0]])
    return ir.from_proto(model)


CONCAT = placed(
    """
    a = Conv <pads = [1, 1, 1, 1]> (x, u)
    b = Conv <pads = [1, 1, 1, 1]> (x, v)
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    all = Concat <axis = 1> (a, b, c)
    p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (all)
    q = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (all)
    r = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (all)
    """,
    "float[1,96,6,6] p, float[1,96,6,6] q, float[1,96,6,6] r",
    ("u", "v", "w"),
    {"a": 0, "b": 1, "c": 2, "all": 0, "p": 0, "q": 1, "r": 2},
)
RESIDUAL = placed(
    """
    a = Conv <pads = [1, 1, 1, 1]> (x, u)
    b = Conv <pads = [1, 1, 1, 1]> (a, v)
    s = Add (b, a)
    c = Conv <pads = [1, 1, 1, 1]> (s, w)
    y = Add (c, s)
    z = Add (c, a)
    """,
    "float[1,32,6,6] y, float[1,32,6,6] z, float[1,32,6,6] s",
    ("u", "v", "w"),
    {"a": 1, "b": 2, "s": 2, "c": 1, "y": 1, "z": 0},
)
ROWS = placed(
    """
    a = Relu (x)
    f = Flatten (a)
    g = Relu (f)
    h = Mul (f, g)
    b = Relu (a)
    """,
    "float[1,1152] h, float[1,1152] f, float[1,32,6,6] b",
    (),
    {"a": 1, "f": 0, "g": 2, "h": 2, "b": 2},
)


@pytest.mark.opencl
@pytest.mark.parametrize("home", [0, 1, 2])
def test_a_concat_of_three_queues(processors: Processors, sharing: Sharing, home: int) -> None:
    model = CONCAT.clone()
    for node in model.graph:
        if node.op_type == "Concat":
            node.metadata_props[PLACEMENT_KEY] = str(home)
    plan = compared(model, processors)
    assert {s.queue for s in plan.subgraphs} == {0, 1, 2}
    if sharing is not Sharing.COPIED:
        # The host and one device write their parts in place; of what the other one makes there is one copy.
        copies = [s for s in plan.steps if s.op == "Reorder" and _bytes(plan, s.writes) == 4 * 32 * 36]
        assert len([s for s in copies if _is_part(plan, s.writes[0])]) == 1


def _bytes(plan: Plan, buffers: Sequence[int]) -> int:
    return sum(plan.buffers[i].bytes for i in buffers)


def _is_part(plan: Plan, index: int) -> bool:
    buffer = plan.buffers[index]
    return any(b.value == buffer.value and b.bytes > buffer.bytes for b in plan.buffers)


@pytest.mark.opencl
@pytest.mark.parametrize("model", [RESIDUAL, ROWS], ids=["residual", "rows"])
def test_what_one_device_makes_others_read(processors: Processors, sharing: Sharing, model: ir.Model) -> None:
    compared(model.clone(), processors)


def compared(model: ir.Model, processors: Processors) -> Plan:
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 6, 6)).astype(np.float32)}
    return check(model, feeds, run_proto(ir.to_proto(model), feeds), processors, runs=20)


def test_an_output_that_a_device_reads_too(host: CpuProcessor) -> None:
    """The caller's array is not device memory."""
    model = placed("y = Relu (x) z = Mul (y, y)", "float[1,32,6,6] y, float[1,32,6,6] z", (), {"y": 0, "z": 1})
    device = FakeDevice(0, host.blocked.block, ("float32",))
    plan = planned(model, [host, device], host).plan
    assert all(memory != "output" for memory, _ in devices_touching(plan))
