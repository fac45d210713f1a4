"""Layers that one routine computes together: chosen where cheaper, with correct results."""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.frontends.resolve import load_any
from nnstretch.graph.layer import FUSION_GROUP, Layer, TensorType
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession

CORE = min(os.sched_getaffinity(0))


class Prices(CostModel):
    """One second per layer, `pair` seconds for two that are fused, and `block` seconds for three."""

    measured = True

    def __init__(self, pair: float, block: float) -> None:
        self.of = {1: 1.0, 2: pair, 3: block}

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self.of[len(layer.parts) if layer.op == FUSION_GROUP else 1]

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0


def inverted_residual(second_reader: bool = False) -> ir.Model:
    """Expand, depthwise, project with the shortcut; the expanded tensor may have another consumer."""
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,9,9] x) => (float[1,16,9,9] y SECOND) <float[48,16,1,1] e, float[48,1,3,3] d, float[16,48,1,1] p> {
        a = Conv (x, e)
        b = Relu (a)
        c = Conv <pads = [1, 1, 1, 1], group = 48> (b, d)
        f = Relu (c)
        g = Conv (f, p)
        y = Add (g, x)
        MORE
    }
    """
    text = text.replace("SECOND", ", float[1,48,9,9] z" if second_reader else "")
    model = parser.parse_model(text.replace("MORE", "z = Sigmoid (b)" if second_reader else ""))
    rng = np.random.default_rng(0)
    for name, shape in (("e", (48, 16, 1, 1)), ("d", (48, 1, 3, 3)), ("p", (16, 48, 1, 1))):
        weight = rng.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return ir.from_proto(model)


def planned(model: ir.Model, pair: float, block: float = 4.0, processors: str = f"cpu:{CORE}") -> Compiled:
    (processor,) = build_processors(processors).named
    return make_plan(optimize(model), [processor], processor, Prices(pair, block))


WAYS = [(0.5, 1.6), (1.9, 3.1), (2.1, 3.1), (2.1, 2.9), (0.5, 1.4)]


@pytest.mark.parametrize(
    ("way", "ops"), zip(WAYS, [["Chain", "Conv"]] * 2 + [["Conv"] * 3] + [["Chain"]] * 2, strict=True)
)
def test_the_cheaper_way_is_taken(way: tuple[float, float], ops: list[str]) -> None:
    compiled = planned(inverted_residual(), *way)
    assert sorted(s.op for s in compiled.plan.steps if s.op != "Reorder") == ops


def test_every_multiply_accumulate_is_counted_once() -> None:
    plans = [planned(inverted_residual(), *way).plan for way in WAYS]
    assert len({sum(step.macs for step in plan.steps) for plan in plans}) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("second_reader", [False, True])
def test_answers_do_not_depend_on_it(way: tuple[float, float], second_reader: bool) -> None:
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 9)).astype(np.float32)
    expected = run_proto(ir.to_proto(inverted_residual(second_reader)), {"x": x})
    with PlanSession(planned(inverted_residual(second_reader), *way)) as session:
        for found, wanted in zip(session.run(None, {"x": x}), expected, strict=True):
            assert relative_error(found, wanted) < 1e-5


def test_what_somebody_else_reads_is_stored() -> None:
    steps = planned(inverted_residual(second_reader=True), 0.1).plan.steps
    chains = [step for step in steps if step.op == "Chain"]
    assert len(chains) == 1, "the project may be fused with the depthwise layer, the expansion with nothing"


@pytest.mark.slow
def test_a_network_of_pairs() -> None:
    model = load_any("mobilenetv2")
    x = np.random.default_rng(2).standard_normal((1, 3, 224, 224)).astype(np.float32)
    (name,) = [value.name for value in model.graph.inputs if value.name not in model.graph.initializers]
    (expected,) = run_proto(ir.to_proto(model), {str(name): x})
    compiled = planned(model, 0.5)
    assert sum(step.op == "Chain" for step in compiled.plan.steps) == 17
    with PlanSession(compiled) as session:
        assert relative_error(session.run(None, {str(name): x})[0], expected) < 1e-4
