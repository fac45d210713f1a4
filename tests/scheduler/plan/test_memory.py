"""The arena planner: tensors that are needed at the same time never overlap, others share."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.frontends.resolve import load_any
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.scheduler.lowering import assembly
from nnstretch.scheduler.plan.memory import Tenant, least_bytes, plan_arena
from nnstretch.scheduler.plan.schema import ALIGNMENT, PlanSubgraph
from nnstretch.scheduler.plan.validate import HappensBefore
from nnstretch.scheduler.runtime.session import PlanSession


@st.composite
def schedules(draw: st.DrawFn) -> tuple[HappensBefore, int]:
    """Random sub-graphs on up to three queues with random waits."""
    subgraphs: list[PlanSubgraph] = []
    first = 0
    for i in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 3))
        waits = tuple(draw(st.sets(st.integers(0, i - 1)))) if i else ()
        subgraphs.append(PlanSubgraph(draw(st.integers(0, 2)), first, count, waits))
        first += count
    return HappensBefore(subgraphs), first


@given(schedule=schedules(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_no_overlap_unless_ordered(schedule: tuple[HappensBefore, int], data: st.DataObject) -> None:
    order, steps = schedule
    users = st.lists(st.integers(0, steps - 1), min_size=1, max_size=3, unique=True).map(tuple)
    tenants = data.draw(st.lists(st.builds(Tenant, st.integers(1, 500), users), max_size=8))
    offsets, size = plan_arena(tenants, order.steps)
    for i, one in enumerate(tenants):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + one.bytes <= size
        for j, other in enumerate(tenants[:i]):
            apart = offsets[i] + one.bytes <= offsets[j] or offsets[j] + other.bytes <= offsets[i]
            one_first = all(order.steps(a, b) for a in one.steps for b in other.steps)
            other_first = all(order.steps(b, a) for a in one.steps for b in other.steps)
            assert apart or one_first or other_first


def test_a_chain_needs_two_tensors() -> None:
    order = HappensBefore([PlanSubgraph(0, 0, 10)])
    tenants = [Tenant(1024, (i, i + 1)) for i in range(9)]
    assert plan_arena(tenants, order.steps)[1] == 2048


def test_queues_that_run_at_once_do_not_share() -> None:
    order = HappensBefore([PlanSubgraph(0, 0, 2), PlanSubgraph(1, 2, 2)])
    tenants = [Tenant(1024, (0, 1)), Tenant(1024, (2, 3))]
    assert plan_arena(tenants, order.steps)[1] == 2048


def test_several_orders_are_tried() -> None:
    """Placed largest first, these tenants would take a tenth more than the largest set of them that is live at once."""
    order = HappensBefore([PlanSubgraph(0, 0, 9)])
    tenants = [Tenant(64, (6, 7)), Tenant(384, (6, 8)), Tenant(192, (0, 8)), Tenant(128, (1, 4)), Tenant(320, (1, 2))]
    assert least_bytes(tenants) == 64 + 384 + 192
    assert plan_arena(tenants, order.steps)[1] == least_bytes(tenants)


@pytest.mark.parametrize("network", ["resnet18", "densenet121", "googlenet", "mobilenetv2", "squeezenet"])
def test_networks_take_no_more_than_their_live_tensors(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations take at most 5 % more than the largest set of tensors that are live at once."""
    asked: list[list[Tenant]] = []

    def spy(tenants: list[Tenant], before: Callable[[int, int], bool]) -> tuple[list[int], int]:
        asked.append(list(tenants))
        return plan_arena(tenants, before)

    monkeypatch.setattr(assembly, "plan_arena", spy)
    plan = plan_model(load_any(network), build_processors(f"cpu:{min(os.sched_getaffinity(0))}"), tune=False).plan
    (tenants,) = asked
    assert plan.host_bytes <= 1.05 * least_bytes(tenants)


def residual_network(reads_again: bool) -> ir.Model:
    """y = relu(conv(x) + conv(conv(x))), where the first summand may be wanted once more afterwards."""
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,9,9] x) => (float[1,16,9,9] y) <float[16,16,3,3] w, float[16,16,1,1] v> {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Conv (a, v)
        c = Conv (b, v)
        s = Add (c, a)
        r = Relu (s)
        y = SECOND
    }
    """.replace("SECOND", "Mul (r, a)" if reads_again else "Conv (r, v)")
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 16, 3, 3)), ("v", (16, 16, 1, 1))):
        weight = rng.standard_normal(shape).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return ir.from_proto(model)


@pytest.mark.parametrize("reads_again", [False, True])
def test_a_residual_is_overwritten_unless_it_is_wanted_again(reads_again: bool) -> None:
    model = residual_network(reads_again)
    plan = plan_model(model, build_processors(f"cpu:{min(os.sched_getaffinity(0))}"), tune=False)
    (step,) = [s for s in plan.plan.steps if s.op == "Conv" and s.reads[3] is not None]
    residual, written = plan.plan.buffers[step.reads[3] or 0], plan.plan.buffers[step.writes[0]]
    assert (residual.offset == written.offset) is not reads_again

    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9)).astype(np.float32)
    (expected,) = run_proto(ir.to_proto(residual_network(reads_again)), {"x": x})
    with PlanSession(plan) as session:
        for _ in range(3):
            assert relative_error(session.run(None, {"x": x})[0], expected) < 1e-5
