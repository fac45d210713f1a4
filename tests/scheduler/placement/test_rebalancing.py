"""Rebalancing where runs are computed from made-up true costs: it finds their best placement, or keeps the best of what ran."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.run_factors import RunFactors
from nnstretch.scheduler.placement.contraction import contract
from nnstretch.scheduler.placement.joint import completed, is_placed, placed
from nnstretch.scheduler.placement.problem import PlacementProblem
from nnstretch.scheduler.placement.rebalancing import (
    Comparison,
    NamedInterference,
    StepTimes,
    placed_by_runs,
    rebalanced,
)
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.parts import whole_name
from nnstretch.scheduler.plan.rebalanced import RebalanceReport, moves
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.concurrent import share_alone, waiting_seconds
from nnstretch.scheduler.simulation.events import run_tasks
from nnstretch.scheduler.simulation.timing import InterferenceModel, NoInterference, plan_tasks
from tests.kits.made_up_costs import Work
from tests.scheduler.placement.test_placement import Costs, brute_force, design, residual_chain

CORES = sorted(os.sched_getaffinity(0))
NAMES = (f"cpu:{CORES[0]}", f"cpu:{CORES[-1]}")

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


@dataclass
class World:
    """Runs plans whose steps take what they cost by multiply-adds, times the true factor of their processor and layer."""

    interference: InterferenceModel
    processors: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[tuple[str, str], float] = field(default_factory=dict)
    ran: list[float] = field(default_factory=list)

    def factor(self, processor: str, layer: str) -> float:
        return self.processors.get(processor, 1.0) * self.layers.get((processor, whole_name(layer)), 1.0)

    def true_plan(self, plan: Plan) -> Plan:
        names = [plan.queues[queue].processor for queue in plan.step_queues]
        costs = (
            1e3 * (1e-9 * step.macs + 1e-7) * self.factor(name, step.layer)
            for step, name in zip(plan.steps, names, strict=True)
        )
        return replace(plan, steps=tuple(replace(s, cost_ms=c) for s, c in zip(plan.steps, costs, strict=True)))

    def spans(self, plan: Plan) -> np.ndarray:
        times = run_tasks(plan_tasks(self.true_plan(plan), self.interference), self.interference.contention_factor)
        return np.array([step for task in times for step in task.steps])

    def step_times(self, compiled: Compiled) -> StepTimes:
        spans = self.spans(compiled.plan)
        self.ran.append(float(spans.max()))
        return StepTimes(np.stack([spans] * 3), np.stack([spans[:, 1] - spans[:, 0]] * 3))

    def compare(self, plans: Sequence[Compiled]) -> Comparison:
        seconds = tuple(float(self.spans(compiled.plan).max()) for compiled in plans)
        ratios = np.array([[one / other for other in seconds] for one in seconds])
        return Comparison(seconds, ratios, np.stack([ratios, ratios], axis=2))


def space_of(model: ir.Model) -> ChoiceSpace:
    found = build_processors(",".join(NAMES))
    return choice_space(optimize(model), found.named, found.host, Work())


def by_prediction(space: ChoiceSpace, interference: InterferenceModel) -> Compiled:
    """The plan by the costs of a space."""
    made = completed(space, interference) if is_placed(space) else placed(space, interference)
    return plan_of(made, default_selector().select(made.problem))


def rebalance(space: ChoiceSpace, world: World, first: Compiled | None = None) -> tuple[Compiled, RebalanceReport]:
    """A plan, by default that by costs that are the same everywhere, rebalanced in the world."""
    interference = world.interference
    answer = rebalanced(
        first or by_prediction(space, interference),
        lambda factors: placed_by_runs(space, interference, {}, factors),
        world,
        lambda plan: NamedInterference(interference, space.pool, plan),
        is_tuned_here=first is None,
    )
    assert answer.rebalancing is not None
    return answer, answer.rebalancing


def paths(kernels: Sequence[int], size: int = 8) -> ir.Model:
    """Paths of one convolution each, of too few channels to be split, that meet at a concat."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 8, k, k)).astype(np.float32), f"w{n}")
        for n, k in enumerate(kernels)
    ]
    declared = ", ".join(f"float[{','.join(map(str, w.dims))}] {w.name}" for w in weights)
    body = " ".join(f"c{n} = Conv <pads = [{', '.join([str(k // 2)] * 4)}]> (x, w{n})" for n, k in enumerate(kernels))
    names = ", ".join(f"c{n}" for n in range(len(kernels)))
    proto = parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,8,{size},{size}] x) => (float[1,{16 * len(kernels)},{size},{size}] y) <{declared}> {{
        {body} m = Concat <axis = 1> ({names}) y = Relu (m)
    }}""")
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(weights)
    return ir.from_proto(proto)


def least(space: ChoiceSpace, world: World) -> float:
    """Seconds of the best placement of whole layers by true costs, by brute force."""
    chosen = [options[0] for options in space.choices]
    contraction = contract(space, [chosen])
    seconds = np.zeros((len(contraction.reads), 2))
    for unit, group in zip(space.graph.units, contraction.group_of, strict=True):
        if group is not None:
            own = 1e-9 * unit.layer.macs + 1e-7
            seconds[group] += [own * world.factor(name, unit.layer.name) for name in NAMES]
    for caller in (contraction.begin, contraction.end):
        seconds[caller] = 0.0, np.inf
    return brute_force(PlacementProblem(seconds, contraction.reads, contraction.sizes, world.interference))


SPEEDS = [(1.0, 2.0), (2.0, 1.0), (1.0, 0.5), (4.0, 2.0)]


@pytest.mark.parametrize("speeds", [*SPEEDS, (1.0, 50.0)])
@pytest.mark.parametrize("interference", [NoInterference(), Costs(fixed=1e-6, slower=0.25)], ids=["none", "some"])
def test_the_best_placement_by_true_costs_is_found(
    speeds: tuple[float, float], interference: InterferenceModel
) -> None:
    """A processor that has half or twice the speed by which the plan was made, or so little that the other one gets all."""
    world = World(interference, dict(zip(NAMES, speeds, strict=True)))
    space = space_of(paths((3, 5, 5, 7)))
    answer, report = rebalance(space, world)
    after = float(world.spans(answer.plan).max())
    assert after == pytest.approx(least(space, world), rel=5e-3)  # layout changes count here only
    assert report.after == pytest.approx(after) and report.before == pytest.approx(world.ran[0])
    assert report.ratio == pytest.approx(after / world.ran[0])
    assert report.moved == moves_from_first(report) and report.waiting_after < report.waiting_before


def moves_from_first(report: RebalanceReport) -> object:
    """The moves of the only plan that was kept."""
    (kept,) = (one for one in report.rounds if one.kept)
    return kept.moved


@pytest.mark.parametrize("far", [False, True])
def test_a_plan_of_another_device_is_where_it_begins(far: bool) -> None:
    """Nothing is known of the costs that it was made by: it is the one by the costs here, or far from that."""
    world = World(NoInterference(), {NAMES[1]: 2.0})
    space = space_of(paths((3, 3, 5, 7)))
    there = World(NoInterference(), {NAMES[1]: 9.0 if far else 1.0})
    first, _ = rebalance(space, there)
    package = Compiled(Plan.from_json(first.plan.to_json()), np.empty(0, np.uint8))
    answer, report = rebalance(space, world, package)
    assert float(world.spans(answer.plan).max()) == pytest.approx(least(space, world), rel=5e-3)
    assert report.before == world.ran[0] and report.ratio < 0.95 and report.moved


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_what_ran_is_kept(seed: int) -> None:
    """Layers that take up to twice or half of what was predicted, each on each processor."""
    rng = np.random.default_rng(seed)
    space = space_of(paths((3, 5, 5, 7)))
    layers = {(name, unit.layer.name): float(2 ** rng.uniform(-1, 1)) for unit in space.graph.units for name in NAMES}
    world = World(Costs(fixed=2e-7), layers=layers)
    answer, report = rebalance(space, world)
    assert float(world.spans(answer.plan).max()) == min(world.ran)
    assert len(world.ran) == 1 + len(report.rounds) <= 5
    assert report.ratio <= 1 and all(one.measured <= 1.0001 * one.best for one in report.rounds if one.kept)
    assert report.after >= (1 - 1e-9) * least(space, world)


def test_a_plan_that_is_best_already_stays() -> None:
    space = space_of(paths((3, 3, 5, 5)))
    world = World(NoInterference())
    answer, report = rebalance(space, world)
    assert (report.rounds, report.moved, report.ratio, report.interval) == ((), (), 1.0, None)
    assert report.before == report.after == pytest.approx(least(space, world), rel=5e-3)
    assert answer.plan == by_prediction(space, NoInterference()).plan


def test_a_plan_that_ran_slower_is_not_kept() -> None:
    """The device slows down for every plan but the first: what it was measured to be does not hold."""

    class Worsening(World):
        def compare(self, plans: Sequence[Compiled]) -> Comparison:
            seconds = tuple(1.0 + number for number in range(len(plans)))
            ratios = np.array([[one / other for other in seconds] for one in seconds])
            return Comparison(seconds, ratios, np.stack([ratios, ratios], axis=2))

    space = space_of(paths((3, 3, 5, 5, 7)))
    world = Worsening(NoInterference(), {NAMES[1]: 2.0})
    answer, report = rebalance(space, world)
    assert report.rounds and not any(one.kept for one in report.rounds) and report.rounds[0].moved
    assert (report.before, report.after, report.ratio, report.interval, report.moved) == (1.0, 1.0, 1.0, None, ())
    assert answer.plan == by_prediction(space, NoInterference()).plan


@pytest.mark.parametrize("speeds", SPEEDS)
def test_shares_of_channels_follow_the_true_speeds(speeds: tuple[float, float]) -> None:
    """As good as what is placed by the true costs, in which the slower processor gets the smaller shares."""

    class TrueWork(Work):
        def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
            return world.processors[processor.name] * (1e-9 * layer.macs + 1e-7)

    world = World(NoInterference(), dict(zip(NAMES, speeds, strict=True)))
    found = build_processors(",".join(NAMES))
    model = residual_chain()
    known = choice_space(optimize(model.clone()), found.named, found.host, TrueWork())
    best = by_prediction(known, NoInterference())
    answer, report = rebalance(space_of(model), world)
    assert float(world.spans(answer.plan).max()) == pytest.approx(float(world.spans(best.plan).max()), rel=1e-6)
    slow = NAMES[int(speeds[1] > speeds[0])]
    assert report.ratio < 0.95 and any(f"16 on {slow}" in one.after for one in report.moved)
    assert any(one.before == f"32 on {NAMES[0]} + 32 on {NAMES[1]}" for one in report.moved)


def test_branches_stay_where_their_design_puts_them() -> None:
    world = World(NoInterference(), {NAMES[1]: 2.0})
    answer, report = rebalance(space_of(design()), world)
    assert report.ratio < 1 and report.moved
    assert not [one for one in report.moved if one.layer.startswith("segments.1.")]
    queues = dict(zip((step.layer for step in answer.plan.steps), answer.plan.step_queues, strict=True))
    assert [queues[f"segments.1.branches.{n}.conv"] for n in (0, 1)] == [0, 1]


# -- what runs say --------------------------------------------------------------------------------------------------


def test_seconds_without_contention_are_those_that_the_run_was_made_of() -> None:
    world = World(Costs(fixed=1e-6, slower=0.5), {NAMES[1]: 1.5})
    plan = by_prediction(space_of(paths((3, 3, 5, 5, 7))), world.interference).plan
    spans = world.spans(plan)
    found = (spans[:, 1] - spans[:, 0]) * share_alone(plan, spans, world.interference)
    wanted = [1e-3 * (step.cost_ms or 0.0) for step in world.true_plan(plan).steps]
    assert found == pytest.approx(wanted)
    assert (spans[:, 1] - spans[:, 0]).max() > 1.3 * max(wanted) / 1.5


def test_waiting_is_what_a_clock_counts() -> None:
    plan = by_prediction(space_of(paths((3, 3, 5, 5, 7))), NoInterference()).plan
    assert {0, 1} == set(plan.step_queues)
    rng = np.random.default_rng(0)
    now, times = [0, 3], []
    for queue in plan.step_queues:
        begin = now[queue] + int(rng.integers(0, 5))
        now[queue] = begin + int(rng.integers(1, 9))
        times.append((begin, now[queue]))
    ticks = range(max(now))
    busy = [
        [any(q == queue and b <= tick < e for q, (b, e) in zip(plan.step_queues, times, strict=True)) for tick in ticks]
        for queue in (0, 1)
    ]
    assert waiting_seconds(plan, np.array(times, float)) == sum(a != b for a, b in zip(*busy, strict=True))


def test_parts_and_groups_have_the_factor_of_their_layers() -> None:
    factors = RunFactors(
        {("p", "a"): 2.0, ("p", "b"): 3.0, ("q", "a"): 0.5}, {("p", "a"): 1, ("p", "b"): 3, ("q", "a"): 1}
    )
    assert [factors.of("p", name) for name in ("a", "a[0:16]", "a[band 1, rows 3:9]", "a+c", "d", "d[0:8]")] == [
        *(2.0, 2.0, 2.0, 2.0),
        *(3.0, 3.0),  # the weighted median
    ]
    assert (factors.of("q", "b"), factors.of("r", "a")) == (0.5, 3.0)
    assert RunFactors().of("p", "a") == 1.0


def test_moves_name_shares() -> None:
    shared = by_prediction(space_of(residual_chain()), NoInterference()).plan
    assert moves(shared, shared) == ()
    alone = space_of(residual_chain())
    whole = plan_of(alone, default_selector().select(alone.problem)).plan
    found = {one.layer: (one.before, one.after) for one in moves(whole, shared)}
    assert (NAMES[0], f"32 on {NAMES[0]} + 32 on {NAMES[1]}") in found.values()
