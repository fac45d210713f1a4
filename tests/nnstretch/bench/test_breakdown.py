"""Where the time of a branched run goes: causes add up, and each gets the time that it is to blame for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.bench.ablation.breakdown import CAUSES, JOINING, UNBRANCHED, break_down, causes, step_keys
from nnstretch.bench.timing import interval, perfect_split, resampled
from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.scheduler.plan.schema import Plan, PlanQueue, PlanStep, PlanSubgraph

LEFT, RIGHT = "segments.1.branches.0.layers", "segments.1.branches.1.layers"


def plan(*subgraphs: tuple[int, list[tuple[str, str]]]) -> Plan:
    """A plan of two queues; sub-graphs are (queue, [(name, operator) of every step])."""
    steps = [PlanStep(name, op, "r", "kernel", "k", (), ()) for _, some in subgraphs for name, op in some]
    graphs, first = [], 0
    for queue, some in subgraphs:
        graphs.append(PlanSubgraph(queue, first, len(some)))
        first += len(some)
    queues = (PlanQueue("host", "cpu:0", (0,)), PlanQueue("host", "cpu:1", (1,)))
    return Plan(16, queues, (), (), (), tuple(steps), tuple(graphs), 0, (), (), {}, {})


def trace(total: float, *times: tuple[float, float]) -> RunTrace:
    """A run that begins at 1 s; times in milliseconds."""
    begin = 10**9
    steps = np.array([[begin + round(1e6 * t) for t in pair] for pair in times], np.int64)
    return RunTrace(steps, np.zeros((0, 2), np.int64), begin, begin + round(1e6 * total))


@pytest.fixture
def branched() -> Plan:
    """A stem on one processor, two branches of two layers each, a change of layout, and a head."""
    return plan(
        (0, [("segments.0.branches.0.layers.stem", "Conv")]),
        (1, [(f"{RIGHT}.a", "Conv"), ("reorder", "Reorder"), (f"{RIGHT}.b", "Conv")]),
        (0, [(f"{LEFT}.a", "Conv"), (f"{LEFT}.b", "Conv")]),
        (0, [("segments.1", "Reorder"), ("head.fc", "Dense")]),
    )


def test_every_step_is_known(branched: Plan) -> None:
    right, left = (1, 1), (1, 0)
    assert step_keys(branched) == [UNBRANCHED, right, right, right, left, left, JOINING, UNBRANCHED]


def test_layers_that_one_routine_computes_belong_to_their_branch() -> None:
    names = [(f"{LEFT}.a+{LEFT}.b", "Chain"), (f"{RIGHT}.a", "Conv"), ("segments.10.branches.0", "Conv")]
    assert step_keys(plan((0, names))) == [(1, 0), (1, 1), UNBRANCHED]


def test_time_goes_to_its_cause(branched: Plan) -> None:
    # stem 0-1, handing over to 1.1, right 1.1-4.1 with gaps of 0.5, left 1.1-2.6, joining 4.2-4.4, head 4.4-5.4, end at 5.5.
    run = trace(
        5.5, (0, 1), (1.1, 1.6), (2.1, 2.6), (3.1, 4.1), (1.1, 1.6), (1.6, 2.6), (4.2, 4.4), (4.4, 5.4)
    )  # fmt: skip
    # Alone, every layer of the branches takes 0.1 ms less.
    alone = trace(9, (0, 1), (1, 1.4), (2, 2.4), (3, 3.9), (4, 4.4), (5, 5.9), (6, 6.2), (7, 8))
    found, branches = break_down(branched, [run], [alone], 5.5, 9)
    assert found.layers == pytest.approx((0.4 + 0.4 + 0.9 + 0.4 + 0.9 + 1 + 1) / 2)
    assert found.contention_factor == pytest.approx(0.5 / 2)
    assert found.joining == pytest.approx(0.2 / 2)
    assert found.gaps == pytest.approx(1.0 / 2)
    assert found.waiting == pytest.approx(1.5 / 2)
    assert found.unbranched == pytest.approx((1 + 1) / 2)
    # 0.1 from the stem to the branches and 0.1 at the end for both, 0.1 + 0.3 before the joining is done.
    assert found.meeting == pytest.approx((0.1 * 2 + 0.1 * 2 + 0.1 + 0.3) / 2)
    assert found.total == pytest.approx(5.5)
    assert [(b.segment, b.branch, b.processor) for b in branches] == [(1, 0, "cpu:0"), (1, 1, "cpu:1")]
    assert [b.beside_ms for b in branches] == pytest.approx([1.5, 2.0])
    assert [b.alone_ms for b in branches] == pytest.approx([1.3, 1.7])


def test_disturbed_runs_do_not_count(branched: Plan) -> None:
    times = ((0, 1), (1, 2), (2, 2), (2, 3), (1, 2), (2, 3), (3, 3), (3, 4))
    slow = tuple((10 * a, 10 * b) for a, b in times)
    runs = [trace(40, *slow), trace(4, *times), trace(40, *slow), trace(40, *slow)]
    found, _ = break_down(branched, runs, runs, 4, 4)
    assert found.total == pytest.approx(4)
    assert found.waiting == pytest.approx(0)


@given(st.lists(st.integers(0, 50), min_size=16, max_size=16), st.floats(0.1, 9), st.floats(0.1, 9))
def test_causes_add_up(delays: list[int], split: float, measured: float) -> None:
    made = plan(
        (0, [("segments.0.branches.0.layers.stem", "Conv")]),
        (1, [(f"{RIGHT}.a", "Conv"), ("reorder", "Reorder"), (f"{RIGHT}.b", "Conv")]),
        (0, [(f"{LEFT}.a", "Conv"), (f"{LEFT}.b", "Conv")]),
        (0, [("segments.1", "Reorder"), ("head.fc", "Dense")]),
    )
    now, times = [0, 0], []
    for number, queue in enumerate((0, 1, 1, 1, 0, 0, 0, 0)):
        begin = now[queue] + delays[2 * number]
        now[queue] = begin + delays[2 * number + 1]
        times.append((begin, now[queue]))
    run = trace(max(now) + 1, *times)
    found, _ = break_down(made, [run], [run], 1.0, 1.0)
    assert found.total == pytest.approx(max(now) + 1)
    assert found.contention_factor == 0
    parts = causes(found, split, measured)
    assert sum(parts.values()) == pytest.approx(measured)
    assert parts.keys() == CAUSES.keys()


# -- intervals -----------------------------------------------------------------------------------------------------


def test_equal_rounds_leave_no_uncertainty() -> None:
    samples = resampled([[np.full(5, 2e-3)] * 6, [np.full(3, 1e-3)] * 6])
    assert list(interval(samples[0])) == pytest.approx([2.0, 2.0])
    assert list(interval(samples[0] / samples[1])) == pytest.approx([2.0, 2.0])


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for number in range(200):
        rounds = [rng.normal(5e-3, 1e-3, 1) for _ in range(15)]
        low, high = interval(resampled([rounds], seed=number)[0])
        held += low <= 5.0 <= high
    assert 175 <= held <= 200


def test_what_disturbs_a_whole_round_leaves_ratios_alone() -> None:
    rng = np.random.default_rng(0)
    disturbances = rng.uniform(1, 3, 12)
    one = [np.full(3, 1e-3 * d) for d in disturbances]
    other = [np.full(3, 2e-3 * d) for d in disturbances]
    samples = resampled([one, other])
    low, high = interval(samples[0])
    assert high > 1.1 * low
    assert list(interval(samples[1] / samples[0])) == pytest.approx([2.0, 2.0])


def test_a_processor_that_cannot_do_the_work_takes_no_share_of_it() -> None:
    assert perfect_split([2.0, 2.0]) == 1.0
    assert perfect_split([2.0, float("inf")]) == 2.0
    assert perfect_split([float("inf")] * 2) == float("inf")
