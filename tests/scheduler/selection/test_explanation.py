"""Explanations, amounts of resources, and limits on real layers with synthetic costs."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.errors import SelectionError, UsageError
from nnstretch.graph.layer import FUSION_GROUP, Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.constraints.pareto import pareto
from nnstretch.scheduler.selection.explanation import explain
from nnstretch.scheduler.selection.problem import Problem
from nnstretch.scheduler.selection.resources import ERROR, MEMORY, with_resources

CORE = min(os.sched_getaffinity(0))

NETWORK = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[1,16,12,12] x) => (float[1,16,12,12] y)
<float[16,16,3,3] a = {WEIGHTS}, float[16,16,3,3] b = {WEIGHTS}> {
    c = Conv <pads = [1, 1, 1, 1]> (x, a)
    d = Relu (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, b)
    f = Add (e, x)
    y = Relu (f)
}
"""


class Prices(CostModel):
    """Winograd is twice as fast as the rest, and, where errors are known, less exact."""

    measured = True

    def __init__(self, errors: bool = True) -> None:
        self.errors = errors

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if layer.op == FUSION_GROUP:
            return None
        return 0.5 if routine.descriptor.algorithm == "winograd" else 1.0

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if not self.errors:
            return None
        return 1e-5 if routine.descriptor.algorithm == "winograd" else 1e-7

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0


def space_of(prices: Prices) -> ChoiceSpace:
    weights = ",".join(f"{(i * 37 % 101 - 50) / 100:.2f}" for i in range(16 * 16 * 9))
    model = ir.from_proto(parser.parse_model(NETWORK.replace("WEIGHTS", weights)))
    processors = build_processors(f"cpu:{CORE}")
    return choice_space(optimize(model), processors.named, processors.host, prices)


@pytest.fixture(scope="module")
def space() -> ChoiceSpace:
    return space_of(Prices())


def test_every_unit_is_explained(space: ChoiceSpace) -> None:
    answer = default_selector().select(space.problem)
    units = explain(space, answer)
    assert [u.name for u in units] == [u.name for u in space.graph.units]
    convolutions = [u for u in units if u.op == "Conv"]
    assert len(convolutions) == 2
    for unit in units:
        assert sum(c.chosen for c in unit.candidates) == 1
        assert [c.seconds for c in unit.candidates] == sorted(c.seconds for c in unit.candidates)
        assert unit.greedy_loss >= 0
    for unit in convolutions:
        algorithms = {c.routine.split("/")[1] for c in unit.candidates}
        assert {"winograd", "direct"} <= algorithms
        assert next(c for c in unit.candidates if c.chosen).routine.endswith("/winograd")
    total = sum(next(c for c in u.candidates if c.chosen).seconds + u.adapts for u in units)
    assert total == pytest.approx(answer.cost)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_loss_is_what_the_whole_network_loses(space: ChoiceSpace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = space.problem.sizes
    edges = {e: rng.random(m.shape) for e, m in space.problem.edges.items()}
    problem = Problem(tuple(rng.random(s) for s in sizes), edges)
    answer = default_selector().select(problem)
    every = {c: problem.cost(c) for c in itertools.product(*map(range, sizes))}
    for node, unit in enumerate(explain(replace(space, problem=problem), answer)):
        fastest = int(problem.costs[node].argmin())
        forced = min(cost for choices, cost in every.items() if choices[node] == fastest)
        assert unit.greedy_loss == pytest.approx(forced - answer.cost)


def test_slower_choices_that_need_less_are_kept(space: ChoiceSpace) -> None:
    wide = with_resources(space, [MEMORY, ERROR])
    assert wide.problem.sizes >= space.problem.sizes
    assert sum(wide.problem.sizes) > sum(space.problem.sizes)
    fastest = default_selector().select(wide.problem)
    assert fastest.cost == pytest.approx(default_selector().select(space.problem).cost)
    front = pareto(wide.problem, [MEMORY])
    assert front.gap == 0
    assert front.points[0].cost == pytest.approx(fastest.cost)
    assert len(front.points) >= 2
    least = front.points[-1]
    weights = 2 * 16 * 16 * 9 * 4
    assert weights <= least.amounts[MEMORY] < front.points[0].amounts[MEMORY]
    plan = plan_of(wide, least).plan
    assert not any(step.routine.endswith("/winograd") for step in plan.steps)


def test_limits_hold_in_plans(space: ChoiceSpace) -> None:
    wide = with_resources(space, [ERROR])
    limited = replace(wide.problem, limits={ERROR: 1.2e-5})
    answer = default_selector().select(limited)
    assert answer.optimal
    assert answer.amounts[ERROR] <= 1.2e-5
    plan = plan_of(wide, answer).plan
    assert len({step.layer for step in plan.steps if step.routine.endswith("/winograd")}) == 1
    with pytest.raises(SelectionError, match="error is limited to 1e-12"):
        default_selector().select(replace(wide.problem, limits={ERROR: 1e-12}))


def test_what_is_not_known_cannot_be_traded(space: ChoiceSpace) -> None:
    with pytest.raises(UsageError, match="no resource 'power'"):
        with_resources(space, ["power"])
    with pytest.raises(UsageError, match="has no errors of routines"):
        with_resources(space_of(Prices(errors=False)), [ERROR])
