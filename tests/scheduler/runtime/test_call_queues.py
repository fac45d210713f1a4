"""Plans with queues of calls: LiteRT and ONNX Runtime as processors beside CPU cores and an OpenCL device."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import REORDER, Parameters, Routine
from nnstretch.devices.base.spec import parse_processors, usable_cores
from nnstretch.devices.external.litert.engine import LiteRtModel
from nnstretch.devices.external.onnxruntime import OnnxRuntimeModel
from nnstretch.errors import DeviceError, PackageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.calls import inner_seconds
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled, serial
from nnstretch.scheduler.plan.schema import Plan, PlanQueue
from nnstretch.scheduler.plan.validate import validate
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.hypothesis_examples import examples
from tests.scheduler.runtime.test_external_engines import RandomPrices

pytest.importorskip("ai_edge_litert.interpreter")

CORES = usable_cores()
FIRST, LAST = CORES[0], CORES[-1]
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")

TOGETHER = (f"cpu:{FIRST},litert@{LAST}", f"litert@{FIRST},ort@{LAST}", f"cpu:{FIRST},ort@{LAST}")


@pytest.fixture(scope="module", params=TOGETHER)
def pair(request: pytest.FixtureRequest) -> Processors:
    return build_processors(request.param)


def placed(*nodes: tuple[str, Sequence[str], str, int], outputs: Sequence[str] = ("y",)) -> ir.Model:
    """A network of nodes (operator, inputs, output, processor) on images of 16 channels, with weights for convolutions."""
    rng = np.random.default_rng(0)
    shape = (1, 16, 12, 12)
    made, weights = [], []
    for kind, inputs, output, processor in nodes:
        names = list(inputs)
        attributes: dict[str, Any] = {"axis": 1} if kind == "Concat" else {}
        if kind == "Conv":
            weight = rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
            weights.append(numpy_helper.from_array(weight, f"{output}_w"))
            names.append(f"{output}_w")
            attributes = {"pads": [1] * 4}
        node = helper.make_node(kind, names, [output], name=output, **attributes)
        entry = node.metadata_props.add()
        entry.key, entry.value = PLACEMENT_KEY, str(processor)
        made.append(node)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(
        made, "placed", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], ends, weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def planned(model: ir.Model, usable: Processors, seed: int | None = None) -> Compiled:
    costs = None if seed is None else RandomPrices(seed)
    return make_plan(optimize(model.clone()), usable.named, usable.host, costs)


def calls(plan: Plan) -> list[str]:
    return [step.layer for step in plan.steps if step.kind == "call"]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), kept=st.integers(0, 3), flat=st.booleans(), prices=st.none() | st.integers(0, 99)
)
def test_any_placement_computes_the_same(
    pair: Processors, seed: int, kept: int, flat: bool, prices: int | None
) -> None:
    network = RandomNetwork(seed, processors=2, nodes=10, kept=kept, flat=flat)
    compiled = planned(network.graph(), pair, prices)
    with PlanSession(compiled) as session, PlanSession(serial(compiled)) as apart:
        first, second, third = (s.run(None, {"x": network.input}) for s in (session, session, apart))
    for y, again, alone, expected in zip(first, second, third, network.expected(), strict=True):
        assert relative_error(y, expected) < 1e-4
        assert np.array_equal(y, again)
        assert np.array_equal(y, alone)


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(4))
def test_beside_a_device(seed: int) -> None:
    usable = build_processors(f"cpu:{FIRST},litert@{LAST},opencl:0")
    network = RandomNetwork(seed, processors=3, kept=1, size=6)
    with PlanSession(planned(network.graph(), usable, seed)) as session:
        found = session.run(None, {"x": network.input})
    for y, expected in zip(found, network.expected(), strict=True):
        assert relative_error(y, expected) < 1e-4


BRANCHES = (
    ("Conv", ["x"], "a", 0),
    ("Conv", ["x"], "p", 1),
    ("Relu", ["p"], "q", 1),
    ("Conv", ["a"], "b", 0),
    ("Conv", ["q"], "r", 1),
    ("Add", ["q", "r"], "s", 1),
    ("Concat", ["b", "s"], "y", 0),
)


def test_a_branch_is_one_call() -> None:
    usable = build_processors(TOGETHER[0])
    plan = planned(placed(*BRANCHES), usable).plan
    (call,) = [step for step in plan.steps if step.kind == "call"]
    assert call.op == "Chain" and call.routine == "litert:float32/xnnpack"
    (subgraph,) = [s for s in plan.subgraphs if plan.queues[s.queue].kind == "call"]
    assert subgraph.count == 1 and not subgraph.waits
    assert plan.queues[subgraph.queue] == PlanQueue("call", f"litert@{LAST}", (LAST,))
    assert plan.macs == 4 * 16 * 16 * 9 * 144


def test_alone_a_processor_makes_one_call() -> None:
    for name in ("litert", "ort"):
        usable = build_processors(f"{name}@{LAST}")
        plan = planned(placed(*((kind, i, o, 0) for kind, i, o, _ in BRANCHES)), usable).plan
        assert [step.kind for step in plan.steps] == ["call"]
        assert not plan.fallback_layers


def test_calls_end_where_queues_meet() -> None:
    """Another queue wants `p` before `q` is begun, and `r`, which adds `a`, waits for that queue."""
    usable = build_processors(TOGETHER[0])
    model = placed(
        ("Conv", ["x"], "p", 1),
        ("Conv", ["p"], "a", 0),
        ("Conv", ["p"], "q", 1),
        ("Conv", ["q"], "r", 1),
        ("Add", ["a", "r"], "s", 1),
        ("Conv", ["s"], "t", 1),
        outputs=("q", "t"),
    )
    compiled = planned(model, usable)
    assert calls(compiled.plan) == ["p", "q", "r+t"]
    x = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)
    with PlanSession(compiled) as session:
        found = session.run(None, {"x": x})
    for y, expected in zip(found, run_proto(ir.to_proto(model), {"x": x}), strict=True):
        assert relative_error(y, expected) < 1e-4


def test_calls_fit_the_steps_of_the_engine() -> None:
    """Four tensors may leave a call, sixteen may enter it."""
    usable = build_processors(f"litert@{LAST}")
    ends = [(kind, ["x"], f"e{i}", 0) for i, kind in enumerate(["Conv"] * 9)]
    plan = planned(placed(*ends, outputs=[e[2] for e in ends]), usable).plan
    assert max(len(step.writes) for step in plan.steps) <= 4
    assert len(calls(plan)) < 9


def test_a_call_that_fails_stays_apart() -> None:
    class Prices(RandomPrices):
        def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
            return None if len(layer.parts) == 2 else super().seconds(processor, routine, layer, parameters)

    usable = build_processors(TOGETHER[0])
    joined, apart = (
        make_plan(optimize(placed(*BRANCHES)), usable.named, usable.host, costs)
        for costs in (RandomPrices(0), Prices(0))
    )
    assert len(calls(joined.plan)) == 1
    assert len(calls(apart.plan)) == 2


def test_queues_work_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that computes holds neither Python's lock nor another queue: that one goes on while it lasts."""
    usable = build_processors(TOGETHER[1])
    chains = [
        ("Conv", ["x" if i == 0 else f"{queue}{i - 1}"], f"{queue}{i}", number)
        for number, queue in enumerate("ab")
        for i in range(30)
    ]
    model = placed(*chains, ("Concat", ["a29", "b29"], "y", 0))
    ticks, seen = [0], Event()

    def tick(self: OnnxRuntimeModel, *arguments: object) -> None:
        while not seen.wait(1e-4):
            ticks[0] += 1

    def watch(self: LiteRtModel, *arguments: object) -> None:
        went_on = False
        for _ in range(2000):
            before = ticks[0]
            self._interpreter.invoke()
            went_on = ticks[0] > before
            if went_on:
                break
        seen.set()
        if not went_on:
            raise DeviceError("the other queue never went on")

    monkeypatch.setattr(OnnxRuntimeModel, "run", tick)
    monkeypatch.setattr(LiteRtModel, "run", watch)
    interval = sys.getswitchinterval()
    with PlanSession(planned(model, usable)) as session:
        sys.setswitchinterval(60)  # nobody loses the lock who does not let go of it
        try:
            session.run(None, {"x": np.zeros((1, 16, 12, 12), np.float32)})
        finally:
            sys.setswitchinterval(interval)


def test_packages(tmp_path: Path) -> None:
    usable = build_processors(TOGETHER[0])
    network, path = RandomNetwork(0, processors=2), tmp_path / "m.nns"
    with PlanSession(planned(network.graph(), usable)) as session:
        session.save(path)
        count = len(calls(session.plan))
    assert len([n for n in zipfile.ZipFile(path).namelist() if n.startswith("tflite/")]) == count > 0
    with PlanSession.load(path) as session:
        found = session.run(None, {"x": network.input})
    for y, expected in zip(found, network.expected(), strict=True):
        assert relative_error(y, expected) < 1e-4


def test_what_queues_of_calls_cannot_run() -> None:
    plan = planned(placed(*BRANCHES), build_processors(TOGETHER[0])).plan
    queue = next(i for i, one in enumerate(plan.queues) if one.kind == "call")
    moved = [replace(s, queue=queue) if plan.steps[s.first].kind == "kernel" else s for s in plan.subgraphs]
    for wrong in (
        replace(plan, subgraphs=tuple(moved)),
        replace(plan, queues=tuple(replace(one, kind="abacus") for one in plan.queues)),
        replace(plan, queues=tuple(replace(one, ratios=(1,)) for one in plan.queues)),
    ):
        with pytest.raises(PackageError):
            validate(wrong)


# ---- costs --------------------------------------------------------------------------------------------------------


def test_a_call_is_measured_as_a_whole(tmp_path: Path) -> None:
    """The plan's cost of a call is that of the call; the costs of its layers are less than what each takes by itself."""
    usable = build_processors(TOGETHER[0])
    store = ProfileStore(tmp_path / "profiles.sqlite")
    with Profiler(store, usable.host, processors=usable.named) as profiler:
        model = optimize(placed(*BRANCHES))
        compiled = make_plan(model, usable.named, usable.host, profiler)
        image = TensorType((1, 16, 12, 12))
        assert profiler.transfer(usable.named[0], usable.named[1], image) > 0
        layer = Layer("relu", "Activation", (image,), (image,))
        processor = next(p for p in usable.named if p.backend.runs_models)
        assert inner_seconds(processor, layer, 1.0, profiler) < 1.0
        assert inner_seconds(usable.host, layer, 1.0, profiler) == 1.0
        assert 0 < inner_seconds(processor, layer, 1e-9, profiler) < 1e-9, "never nothing"
        measured = profiler.measurements
        again = make_plan(model, usable.named, usable.host, profiler)
        assert profiler.measurements == measured, "all of it is remembered"
    store.close()
    for plan in (compiled.plan, again.plan):
        (call,) = [step for step in plan.steps if step.kind == "call"]
        assert call.cost_ms is not None and call.cost_ms > 0


def test_changes_of_layout_are_queue_0s() -> None:
    usable = build_processors(TOGETHER[0])
    for seed in range(8):
        plan = planned(RandomNetwork(seed, processors=2).graph(), usable, seed).plan
        queues = {i: s.queue for s in plan.subgraphs for i in range(s.first, s.first + s.count)}
        assert {plan.queues[queues[i]].kind for i, step in enumerate(plan.steps) if step.op == REORDER} <= {"host"}


def test_cores_that_are_not_there_are_replaced() -> None:
    """A plan made for other cores runs on those that there are, its calls on those of their queue."""
    (spec,) = parse_processors(f"litert@{LAST}")
    compiled = planned(placed(*BRANCHES), build_processors(TOGETHER[0]))
    queues = tuple(replace(queue, cores=(1000 + i,)) for i, queue in enumerate(compiled.plan.queues))
    moved = replace(compiled, plan=replace(compiled.plan, queues=queues))
    with PlanSession(moved) as session:
        session.run(None, {"x": np.zeros((1, 16, 12, 12), np.float32)})
    assert spec.cores == (LAST,)
