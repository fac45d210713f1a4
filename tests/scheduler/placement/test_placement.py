"""Automatic placement: proofs against brute force, and plans of placed networks that compute what they should."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from nnstretch.compiler.compile import plan_model, simulate_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.simulated.profile import SocProfile
from nnstretch.errors import SelectionError
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.graph.slices import RESIDUAL, is_divisible, sliced_inputs
from nnstretch.passes import optimize
from nnstretch.quantization.pipeline import quantize
from nnstretch.scheduler.placement.alone import only, with_costs
from nnstretch.scheduler.placement.apply import apply
from nnstretch.scheduler.placement.contraction import contract
from nnstretch.scheduler.placement.heuristics import by_rank, heft
from nnstretch.scheduler.placement.joint import completed, is_placed, placed
from nnstretch.scheduler.placement.problem import Part, Placement, PlacementProblem, Turn, Way, makespan
from nnstretch.scheduler.placement.regions import Region, _Answer, _best, find_regions, place
from nnstretch.scheduler.placement.splitting import Division, Divisions, even_division
from nnstretch.scheduler.plan.compiled import Compiled, serial
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.timing import NoInterference
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.hypothesis_examples import examples
from tests.kits.made_up_costs import Work
from tests.scheduler.simulation.test_simulation import NAMES, some_soc, specs

CORES = sorted(os.sched_getaffinity(0))
TWO_CPUS = f"cpu:{CORES[0]},cpu:{CORES[-1]}"
CPU_AND_OPENCL = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"


# -- problems ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """An interference in round numbers."""

    fixed: float = 0.0
    per_byte: float = 0.0
    slower: float = 0.0

    @property
    def whole_tensors(self) -> bool:
        return False

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        return self.fixed * len(others) + self.per_byte * size

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        return 1 + self.slower * len(others) * (1 + queue)


@st.composite
def problems(draw: st.DrawFn, most: int = 6, most_split: int = 2) -> PlacementProblem:
    """Small problems, in which times may be zero, queues unable or forbidden to compute a unit, and some units split."""
    count, queues = draw(st.integers(1, most)), draw(st.integers(2, 3) if most < 6 else st.just(2))
    reads = [tuple(sorted(draw(st.sets(st.integers(0, u - 1), max_size=3)))) if u else () for u in range(count)]
    times = st.integers(0, 6).map(float)
    rows = []
    for _ in range(count):
        row = [draw(times) for _ in range(queues)]
        if draw(st.booleans()) and draw(st.booleans()):
            only = draw(st.integers(0, queues - 1))
            row = [t if queue == only else np.inf for queue, t in enumerate(row)]
        rows.append(row)
    interference = Costs(*(draw(st.sampled_from(some)) for some in ((0, 0.5, 3), (0, 0.25), (0, 0.25, 1))))
    splits: list[tuple[Way, ...]] = [()] * count
    for unit in draw(st.sets(st.integers(0, count - 1), max_size=most_split)):
        both = draw(st.permutations(range(queues)))[: draw(st.integers(2, queues))]
        splits[unit] = (tuple(Part(queue, draw(times) / 2, draw(st.integers(0, 2))) for queue in both),)
    sizes = tuple(draw(st.integers(0, 3)) for _ in rows)
    return PlacementProblem(np.array(rows), tuple(reads), sizes, interference, tuple(splits))


def orders(reads: Sequence[Sequence[int]], ways: Sequence[Way], queues: int) -> Iterable[tuple[Turn, ...]]:
    """An order of parts, in which each comes after all parts of what it reads, for all sequences of queues that have one."""
    turns = [(unit, part.queue) for unit, way in enumerate(ways) for part in way]
    begun: dict[tuple[tuple[int, ...], ...], tuple[Turn, ...]] = {((),) * queues: ()}
    for _ in turns:
        longer: dict[tuple[tuple[int, ...], ...], tuple[Turn, ...]] = {}
        for sequences, order in begun.items():
            waiting = [turn for turn in turns if turn not in order]
            held = {unit for unit, _ in waiting}
            for unit, on in waiting:
                if held.isdisjoint(reads[unit]):
                    extended = (*sequences[:on], (*sequences[on], unit), *sequences[on + 1 :])
                    longer.setdefault(extended, (*order, (unit, on)))
        begun = longer
    return begun.values()


def brute_force(problem: PlacementProblem) -> float:
    """The least makespan of all assignments and orders."""
    return min(
        makespan(problem, ways, order)
        for ways in itertools.product(*(range(len(ways)) for ways in problem.ways))
        for order in orders(problem.reads, [problem.ways[unit][way] for unit, way in enumerate(ways)], problem.queues)
    )


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(5) | problems(4))
def test_the_proved_optimum_is_that_of_brute_force(problem: PlacementProblem) -> None:
    found, least = place(problem, most_states=1_500), brute_force(problem)
    assert found.makespan == pytest.approx(least, abs=1e-9)
    ways = [of_unit.index(way) for of_unit, way in zip(problem.ways, found.ways, strict=True)]
    assert found.makespan == makespan(problem, ways, found.order)
    assert found.optimal
    given_up = place(problem, most_states=0)  # what is left are heuristics and bounds
    assert given_up.bound <= least + 1e-9 <= given_up.makespan + 2e-9
    assert problem.bound <= least + 1e-9


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(14), seed=st.integers(0, 100))
def test_heuristics_make_legal_plans(problem: PlacementProblem, seed: int) -> None:
    ways, order = heft(problem)
    rng = np.random.default_rng(seed)
    drawn = [int(rng.integers(len(of_unit))) for of_unit in problem.ways]
    for mine, legal in ((ways, order), (ways, by_rank(problem, ways)), (drawn, by_rank(problem, drawn))):
        position = {turn: place for place, turn in enumerate(legal)}
        turns = [[(u, part.queue) for part in problem.ways[u][way]] for u, way in enumerate(mine)]
        assert sorted(legal) == sorted(itertools.chain(*turns))
        for unit, sources in enumerate(problem.reads):
            before = [position[turn] for source in sources for turn in turns[source]]
            assert max(before, default=-1) < min(position[turn] for turn in turns[unit])
    found = place(problem, most_states=200)
    assert found.bound <= found.makespan + 1e-9


@pytest.mark.parametrize(
    ("most_states", "after", "bound"),
    [
        # Proved best before a part that is not: what that part may still gain comes off the sum.
        (1_500, {(0,): (10.0, 4.0), (1,): (10.0, 4.0)}, 5.0),
        (1_500, {(0,): (10.0, 9.0), (1,): (10.0, 4.0)}, 5.0),
        # Proved best, and what follows as well: the sum is the bound, although the second way bounds it lower.
        (1_500, {(0,): (10.0, 10.0), (1,): (9.0, 9.0)}, 11.0),
        # Given up: the least of both parts.
        (0, {(0,): (10.0, 10.0), (1,): (9.0, 9.0)}, 10.0),
        (0, {(0,): (10.0, 6.0), (1,): (10.0, 4.0)}, 5.0),
    ],
)
def test_bounds_before_a_part_without_a_proof(
    most_states: int, after: dict[tuple[int, ...], tuple[float, float]], bound: float
) -> None:
    problem = PlacementProblem(np.array([[1.0, 3.0]]), ((),), (0,))
    answers = {ways: _Answer((), (), seconds, least) for ways, (seconds, least) in after.items()}
    found = _best(problem, Region(0, 0, (), (0,)), (), answers, most_states)
    assert found.seconds == 11.0
    assert found.bound == pytest.approx(bound)


def modules(count: int, seed: int, queues: int = 2) -> PlacementProblem:
    """Inception modules, one after another: each joins four paths."""
    rng = np.random.default_rng(seed)
    reads: list[tuple[int, ...]] = [()]
    work = [0.0]
    last: tuple[int, ...] = (0,)
    for _ in range(count):
        first = len(reads)
        reads += [last, last, (first + 1,), last, (first + 3,), last, (first + 5,)]
        work += [1.0, 1.5, 5.0, 0.3, 0.8, 0.6, 0.7]
        last = (first, first + 2, first + 4, first + 6)
    seconds = np.array(work)[:, None] * rng.uniform(0.8, 1.3, (len(work), queues))
    return PlacementProblem(seconds, tuple(reads), (1,) * len(reads), Costs(0.05, 0.0, 0.1))


def test_modules_are_cells_and_whole_networks_are_exact() -> None:
    problem = modules(9, 0)
    assert [cell.exit for cell in find_regions(problem)] == [
        (0,),
        *((f, f + 2, f + 4, f + 6) for f in range(1, 57, 7)),
        (),
    ]
    found = place(problem)
    assert found.optimal and found.makespan < 0.8 * problem.seconds.sum(axis=0).min()
    assert found.makespan <= makespan(problem, *heft(problem))


def test_a_result_that_is_read_before_a_cut_and_after_it_makes_no_cut() -> None:
    """A queue that has fetched it already begins what follows earlier than one that has not."""
    problem = PlacementProblem(np.ones((4, 2)), ((), (), (0, 1), (0, 2)), (8,) * 4)
    assert find_regions(problem) == [Region(0, 3, (), ())]
    later = PlacementProblem(np.ones((4, 2)), ((), (), (0, 1), (2,)), (8,) * 4)
    assert find_regions(later) == [Region(0, 1, (), (0, 1)), Region(2, 2, (0, 1), (2,)), Region(3, 3, (2,), ())]


def test_a_residual_that_crosses_is_no_cut() -> None:
    problem = PlacementProblem(np.ones((5, 2)), ((), (0,), (1,), (0, 2), (3,)), (0,) * 5)
    assert [(cell.first, cell.last) for cell in find_regions(problem)] == [(0, 0), (1, 3), (4, 4)]


@pytest.mark.parametrize(
    ("seconds", "reads", "sizes", "said"),
    [
        (np.ones((2, 2)), ((), (0,)), (1,), "sizes"),
        (np.array([[1.0, np.nan]]), ((),), (1,), "measure"),
        (np.ones((2, 2)), ((1,), ()), (1, 1), "earlier"),
        (np.full((1, 2), np.inf), ((),), (1,), "no queue"),
    ],
)
def test_problems_that_make_no_sense_are_refused(
    seconds: np.ndarray, reads: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], said: str
) -> None:
    with pytest.raises(SelectionError, match=said):
        PlacementProblem(seconds, reads, sizes)


class ByBytes(NoInterference):
    """A second for every byte, and a thousand for every queue that made some."""

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        return size + 1000.0 * len(others)


def test_a_transfer_is_of_all_bytes_that_other_queues_made() -> None:
    """Of a split unit each queue makes those of its channels."""
    way = Division((0, 1, 2), (16, 32, 16)).way((1.0, 2.0, 3.0), 6400)
    assert way == (Part(0, 1.0, 1600), Part(1, 2.0, 3200), Part(2, 3.0, 1600))
    problem = PlacementProblem(np.ones((1, 3)), ((),), (6400,), ByBytes())
    assert [problem.fetch(way, queue) for queue in range(3)] == [6800.0, 5200.0, 6800.0]
    assert problem.fetch(way[:1], 0) == 0.0


# -- networks ------------------------------------------------------------------------------------------------------


def inception(count: int = 2, size: int = 8) -> ir.Model:
    """Modules of a 1×1, a 3×3 and another 3×3 path that meet at a concat, and an output."""
    rng = np.random.default_rng(0)
    body, weights, last, channels = [], [], "x", 32
    for m in range(count):
        for path, filters, kernel in (("a", 32, 1), ("b", 48, 3), ("c", 48, 3)):
            name = f"{path}{m}"
            body.append(f"{name} = Conv <pads = [{', '.join([str(kernel // 2)] * 4)}]> ({last}, w{name})")
            values = rng.standard_normal((filters, channels, kernel, kernel)) / np.sqrt(channels) / kernel
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{name}"))
        body.append(f"m{m} = Concat <axis = 1> (a{m}, b{m}, c{m})")
        last, channels = f"m{m}", 128
    shapes = ", ".join(f"float[{','.join(map(str, w.dims))}] {w.name}" for w in weights)
    text = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,32,{size},{size}] x) => (float[1,128,{size},{size}] y) <{shapes}> {{ {" ".join(body)} y = Relu ({last}) }}
    """
    model = parser.parse_model(text)
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    return ir.from_proto(model)


def space_of(model: ir.Model, processors: str) -> ChoiceSpace:
    found = build_processors(processors)
    return choice_space(optimize(model), found.named, found.host, Work())


def planned(space: ChoiceSpace) -> Compiled:
    return plan_of(space, default_selector().select(space.problem))


def check(
    compiled: Compiled, feeds: dict[str, np.ndarray], expected: Sequence[np.ndarray], runs: int, tolerance: float = 1e-4
) -> None:
    """Concurrent runs give the bytes of one step after another, which are ONNX Runtime's answer."""
    with PlanSession(compiled) as concurrent, PlanSession(serial(compiled)) as one_by_one:
        reference = one_by_one.run(None, feeds)
        for wanted, found in zip(expected, reference, strict=True):
            assert relative_error(found, wanted) < tolerance
        for _ in range(runs):
            for a, b in zip(concurrent.run(None, feeds), reference, strict=True):
                assert a.tobytes() == b.tobytes()


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_modules_are_shared_out(processors: str) -> None:
    """The two 3×3 paths run at the same time, the 1×1 path, or a share of it, beside one of them."""
    model = inception()
    space = placed(space_of(model, processors), NoInterference())
    report = space.placement
    assert report is not None and report.pays
    assert report.together < 0.62 * report.alone[report.fastest]  # (5 + 1) / 10 and what takes time without work
    assert bool(report.splits) == (report.together < report.bound * (1 - 1e-6))
    compiled = planned(space)
    queue_of = {
        compiled.plan.steps[i].layer: s.queue
        for s in compiled.plan.subgraphs
        for i in range(s.first, s.first + s.count)
    }
    names = {unit.outputs[0]: unit.name for unit in space.graph.units}
    assert all(queue_of[names[f"b{m}"]] != queue_of[names[f"c{m}"]] for m in range(2))
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 8, 8)).astype(np.float32)}
    check(compiled, feeds, run_proto(ir.to_proto(model), feeds), runs=20)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_any_network_is_computed_right(processors: str, seed: int) -> None:
    network = RandomNetwork(seed, 0, nodes=8 + seed, kept=seed % 3, flat=seed % 2 == 1, size=6)
    space = placed(space_of(network.graph(), processors), NoInterference())
    assert space.placement is not None
    check(planned(space), {"x": network.input}, network.expected(), runs=5)


def randomly_split(space: ChoiceSpace, seed: int, inside: Mapping[int, float] | None = None) -> ChoiceSpace:
    """The space with each layer on a random queue or split by channels over several; `inside` as in `apply`."""
    rng = np.random.default_rng(seed)
    contraction = contract(space, [[options[0] for options in space.choices]])
    seconds = np.full((len(contraction.reads), len(space.pool.queues)), np.inf)
    seconds[[contraction.begin, contraction.end], 0] = 0.0
    for options, group in zip(space.choices, contraction.group_of, strict=True):
        if group is not None:
            seconds[group, [choice.queue for choice in options]] = 1.0
    divisions = {}
    for group, number in contraction.alone().items():
        unit = space.graph.units[number]
        channels = unit.layer.outputs[0].shape[1] if is_divisible(unit.layer) and not unit.is_fallback else 0
        if channels > 16:
            first = 16 * int(rng.integers(1, -(-channels // 16)))
            queues = tuple(int(queue) for queue in rng.permutation([0, 1]))
            divisions[group] = [(Division(queues, (first, channels - first)), (1.0, 1.0))]
    found = Divisions(divisions, contraction.sizes)
    problem = PlacementProblem(seconds, contraction.reads, contraction.sizes, NoInterference(), found.ways())
    ways = [int(rng.integers(len(of_unit))) for of_unit in problem.ways]
    for group in divisions:
        if group == min(divisions) or rng.random() < 0.6:
            ways[group] = len(problem.ways[group]) - 1
    chosen = tuple(of_unit[way] for of_unit, way in zip(problem.ways, ways, strict=True))
    placement = Placement(chosen, by_rank(problem, ways), 0.0, 0.0)
    applied = apply(space, contraction, placement, found, inside or {})
    assert len(applied.splits) == sum(len(way) > 1 for way in chosen) >= 1
    return applied.space


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_any_split_of_any_network_is_computed_right(processors: str, seed: int) -> None:
    """Shares of 16 channels or more, of 40 some that end within a block; with residuals, concats and outputs among them."""
    network = RandomNetwork(301 + seed, 0, nodes=10 + seed, channels=(32, 40, 48), kept=seed % 3, size=6)
    space = randomly_split(space_of(network.graph(), processors), seed)
    check(planned(space), {"x": network.input}, network.expected(), runs=5)


def residual_chain(size: int = 8) -> ir.Model:
    """A chain in which one processor would always wait for another one: convolutions, a shortcut, and a dense layer."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"a": (64, 3, 3, 3), "b": (64, 64, 3, 3), "c": (64, 64, 3, 3), "d": (100, 64)}
    shapes |= {f"{name}_bias": shape[:1] for name, shape in shapes.items()}
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32), name)
        for name, s in shapes.items()
    ]
    declared = ", ".join(f"float[{','.join(map(str, w.dims))}] {w.name}" for w in weights)
    model = parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,3,{size},{size}] x) => (float[1,100] y) <{declared}> {{
        p = Conv <pads = [1, 1, 1, 1]> (x, a, a_bias)  q = Relu (p)
        r = Conv <pads = [1, 1, 1, 1]> (q, b, b_bias)  s = Relu (r)
        t = Conv <pads = [1, 1, 1, 1]> (s, c, c_bias)  u = Add (t, q)  v = Relu (u)
        m = GlobalAveragePool (v)  f = Flatten (m)  y = Gemm <transB = 1> (f, d, d_bias)
    }}""")
    del model.graph.initializer[:]
    model.graph.initializer.extend(weights)
    return ir.from_proto(model)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_a_chain_is_shared_out_by_splitting_its_layers(processors: str) -> None:
    """In halves, without a copy: shares are written side by side, and the residual is read where it lies."""
    model = residual_chain()
    space = placed(space_of(model, processors), NoInterference())
    report = space.placement
    assert report is not None and report.pays
    assert len(report.splits) == 3 and all(set(s.values()) == {32} for s in report.splits.values())
    assert report.together < 0.53 * report.alone[report.fastest]
    compiled = planned(space)
    assert {step.op for step in compiled.plan.steps} <= {"Conv", "GlobalPool", "Dense", "Reorder"}
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    check(compiled, feeds, run_proto(ir.to_proto(model), feeds), runs=20)


CHANNELWISE = parser.parse_model("""
<ir_version: 10, opset_import: ["" : 20]>
net (float[1,40,13,13] x, float[1,40,6,6] z) => (float[1,40,1,1] y) <float[40,1,3,3] w, float[40] b> {
    p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)
    q = Conv <group = 40, pads = [1, 1, 1, 1]> (p, w, b)  r = Add (q, z)  s = Relu (r)
    t = AveragePool <kernel_shape = [2, 2]> (s)  y = GlobalAveragePool (t)
}""")


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_layers_that_work_channel_by_channel_are_split_with_what_they_read(processors: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = onnx.ModelProto()
    model.CopyFrom(CHANNELWISE)
    for name, shape in (("w", (40, 1, 3, 3)), ("b", (40,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    shapes = {"x": (1, 40, 13, 13), "z": (1, 40, 6, 6)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    space = space_of(ir.from_proto(model), processors)
    units = [unit for unit in space.graph.units if is_divisible(unit.layer)]
    assert [unit.layer.op for unit in units] == ["MaxPool", "Conv", "AveragePool", "GlobalPool"]
    assert [sliced_inputs(unit.layer) for unit in units] == [(0,), (0, RESIDUAL), (0,), (0,)]
    check(planned(randomly_split(space, seed)), feeds, run_proto(model, feeds), runs=20)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize("seed", range(4))
def test_any_split_of_an_int8_network_is_computed_right(seed: int, tmp_path: Path) -> None:
    """Shares are computed in int8 or in float32; rounding apart, the result is that of the network before it was quantised."""
    feeds = [{"x": np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype(np.float32)} for n in range(3)]
    quantize(residual_chain(), feeds, tmp_path / "int8.onnx")
    space = randomly_split(space_of(load(tmp_path / "int8.onnx"), TWO_CPUS), seed)
    check(planned(space), feeds[0], run_proto(ir.to_proto(residual_chain()), feeds[0]), runs=5, tolerance=0.05)


def test_shares_follow_speeds_in_whole_blocks() -> None:
    unit = next(u for u in space_of(residual_chain(), TWO_CPUS).graph.units if u.layer.op == "Dense")
    cases = {(1.0, 1.0): (48, 52), (3.0, 1.0): (32, 68), (1.0, 100.0): (80, 20), (1.0, 1.0, 2.0): (48, 32, 20)}
    for seconds, channels in cases.items():
        found = even_division(unit, dict(enumerate(seconds)))
        assert found == Division(tuple(range(len(seconds))), channels)
    assert even_division(unit, {1: 1.0}) is None  # alone
    assert even_division(unit, dict.fromkeys(range(7), 1.0)) is None  # six blocks


def design(size: int = 8) -> ir.Model:
    """A network that a design has placed: a segment of one branch on processor 1, one of two branches, and a head."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (64, 32, 3, 3), "w1": (64, 64, 3, 3), "w2": (64, 64, 3, 3), "w3": (128, 1024)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32), name)
        for name, s in shapes.items()
    ]
    declared = ", ".join(f"float[{','.join(map(str, w.dims))}] {w.name}" for w in weights)
    proto = parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,32,{size},{size}] x) => (float[1,1024] y) <{declared}> {{
        s = Conv <pads = [1, 1, 1, 1]> (x, w0)
        a = Conv <pads = [1, 1, 1, 1]> (s, w1)  b = Conv <pads = [1, 1, 1, 1]> (s, w2)
        c = Concat <axis = 1> (a, b)  m = GlobalAveragePool (c)  f = Flatten (m)  y = Gemm (f, w3)
    }}""")
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(weights)
    model = ir.from_proto(proto)
    for node, segment, branch, processor in zip(model.graph, (0, 1, 1), (0, 0, 1), (1, 0, 1), strict=False):
        node.name = f"segments.{segment}.branches.{branch}.conv"
        node.metadata_props[PLACEMENT_KEY] = str(processor)
    return model


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
def test_what_lies_beside_no_branch_of_a_design_is_split(processors: str) -> None:
    model = design()
    compiled = planned(completed(space_of(model, processors), NoInterference()))
    queues: dict[str, set[int]] = {}
    for subgraph in compiled.plan.subgraphs:
        for step in compiled.plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            if step.macs:
                queues.setdefault(step.layer.partition("[")[0], set()).add(subgraph.queue)
    (head,) = queues.keys() - {f"segments.{s}.branches.{b}.conv" for s, b in ((0, 0), (1, 0), (1, 1))}
    assert queues[head] == queues["segments.0.branches.0.conv"] == {0, 1}
    assert (queues["segments.1.branches.0.conv"], queues["segments.1.branches.1.conv"]) == ({0}, {1})
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 32, 8, 8)).astype(np.float32)}
    check(compiled, feeds, run_proto(ir.to_proto(model), feeds), runs=20)


def test_layers_that_somebody_placed_without_branches_stay_where_they_are() -> None:
    model = residual_chain()
    for node in model.graph:
        node.metadata_props[PLACEMENT_KEY] = "1"
    space = space_of(model, TWO_CPUS)
    assert completed(space, NoInterference()) is space


def test_what_a_design_placed_stays_where_it_is() -> None:
    model = inception()
    assert not is_placed(space_of(model, TWO_CPUS))
    assert is_placed(space_of(model, f"cpu:{CORES[0]}"))
    next(iter(model.graph)).metadata_props[PLACEMENT_KEY] = "1"
    assert is_placed(space_of(model, TWO_CPUS))
    assert plan_model(model, build_processors(TWO_CPUS), tune=False).placement is None


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_what_is_refined_on_one_processor_changes_no_other_costs() -> None:
    """A fallback runs on queue 0 alone, so that its cost is corrected once."""
    model = ir.from_proto(
        parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 20]>
            net (float[1,32,8,8] x) => (float[1,32,8,8] y) { a = Relu (x) b = Sinh (a) y = Sigmoid (b) }"""
        )
    )
    space = corrected = space_of(model, TWO_CPUS)
    for queue, factor in enumerate((2.0, 3.0)):
        single = only(corrected, queue)
        assert single is not None
        slower = [[replace(c, seconds=factor * (c.seconds or 0.0)) for c in options] for options in single.choices]
        corrected = with_costs(corrected, queue, single.with_seconds(slower))
    for unit, before, after in zip(space.graph.units, space.choices, corrected.choices, strict=True):
        ratios = {c.queue: (c.seconds or 0.0) / (b.seconds or 1.0) for b, c in zip(before, after, strict=True)}
        assert ratios == pytest.approx({0: 2.0} if unit.is_fallback else {0: 2.0, 1: 3.0})


def test_concats_are_no_units() -> None:
    space = space_of(inception(), TWO_CPUS)
    chosen = [options[0] for options in space.choices]
    contraction = contract(space, [chosen])
    views = [u.layer.op for u, g in zip(space.graph.units, contraction.group_of, strict=True) if g is None]
    assert views == ["Concat", "Concat"]
    assert contraction.reads == ((), *((0,),) * 3, *((1, 2, 3),) * 3, (4, 5, 6), (7,))


def test_layout_changes_count_as_often_as_a_plan_has_them() -> None:
    """Once for a tensor and a layout, however many layers read it so, such as the three paths that read the caller's input."""
    space = space_of(inception(), f"cpu:{CORES[0]}")
    answer = default_selector().select(space.problem)
    chosen, steps = space.chosen(answer), plan_of(space, answer).plan.steps
    assert any(step.op == "Reorder" for step in steps)
    taken = contract(space, [chosen]).seconds(space, chosen)
    assert taken.sum() == pytest.approx(sum(step.cost_ms or 0.0 for step in steps) * 1e-3)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_views_come_right_after_what_they_read() -> None:
    """Later ones would keep those that read them waiting, although the order of placement has them first."""
    for seed in range(4):
        units = randomly_split(space_of(inception(), TWO_CPUS), seed).graph.units
        place = {name: number for number, unit in enumerate(units) for name in unit.outputs}
        views = [unit.layer.op in ("Concat", "Slice") for unit in units]
        assert sum(views) > 2
        for number, unit in enumerate(units):
            last = max((place.get(name, -1) for name in unit.inputs), default=-1)
            assert not views[number] or all(views[last + 1 : number])


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_shares_take_what_layers_take_in_the_network() -> None:
    """On queue 1 three times as long as alone; whole layers have such seconds already."""
    space = space_of(inception(), TWO_CPUS)
    whole = {unit.name for unit in space.graph.units}
    alone, inside = (randomly_split(space, 2, factors) for factors in ({}, {1: 3.0}))
    found = set()
    for unit, before, after in zip(inside.graph.units, alone.choices, inside.choices, strict=True):
        for one, other in zip(before, after, strict=True):
            slower = unit.name not in whole and other.queue == 1
            assert other.seconds == pytest.approx((3.0 if slower else 1.0) * (one.seconds or 0.0))
            found.add((slower, bool(one.seconds)))
    assert (True, True) in found and (False, True) in found


# -- simulated processors ------------------------------------------------------------------------------------------


def even(soc: SocProfile) -> SocProfile:
    """A profile whose processors are all like the first."""
    return replace(soc, processors=dict.fromkeys(soc.processors, soc.processors[NAMES[0]]))


def test_simulated_processors_share_where_meeting_is_cheap(tmp_path: Path) -> None:
    for sync, pays in ((0.0, True), (1e9, False)):
        compiled, timeline = simulate_model(inception(), build_processors(specs(tmp_path, even(some_soc(sync)), 2)))
        report = compiled.placement
        assert report is not None and report.pays is pays
        assert report.seconds == pytest.approx(timeline.total * 1e-9)
        assert len({s.queue for s in compiled.plan.subgraphs}) == 1 + pays
