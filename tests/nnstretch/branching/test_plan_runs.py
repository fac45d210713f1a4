"""Runs of plans without branches: they decide where predictions are close, and run nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import MeasuredDesign, Pool
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.plan_runs import PlanRuns
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.search.unbranched import UnbranchedPlan, single_processor_plan
from nnstretch.branching.transform.network import BranchedNetwork
from tests.kits.networks.searched_networks import Rates, tiny

PLACES: Mapping[str, tuple[int | None, str]] = {
    "processor 0": (0, ""),
    "several": (None, ""),
    "cpu:0-1": (None, "cpu:0-1"),
}
LIMITS = SearchLimits(min_width=0.5, min_depth=0.5, beta=0.9, min_macs=0.7, max_segment=1.0)
NAMES = ("cpu:0", "cpu:1")


def plans_of(seconds: Mapping[str, float]) -> list[UnbranchedPlan]:
    """Plans with made-up seconds; what they are made of does not matter here."""
    some = single_processor_plan(LatencyTable(tiny(), Rates(1e11), 1), 0)
    return [UnbranchedPlan(some.choices, some.prediction, s, *PLACES[place]) for place, s in seconds.items()]


@pytest.mark.parametrize(
    ("predicted", "measured", "designs", "ran", "fastest"),
    [
        # One plan is far ahead of all others: it is the answer as predicted.
        ({"processor 0": 2.0, "cpu:0-1": 1.0}, {}, [2.0, 2.2], [], "cpu:0-1"),
        # The design is far ahead, also of its control.
        ({"processor 0": 2.0, "cpu:0-1": 1.5}, {}, [1.0, 1.1], [], "cpu:0-1"),
        # The design is about as fast as the pool.
        ({"processor 0": 2.0, "cpu:0-1": 1.0}, {"cpu:0-1": 1.2}, [1.05, 1.1], ["cpu:0-1"], "cpu:0-1"),
        # It is ahead of the pool, but not of a control with its MACs on the pool.
        ({"processor 0": 2.0, "cpu:0-1": 1.0}, {"cpu:0-1": 1.0}, [0.8, 1.0], ["cpu:0-1"], "cpu:0-1"),
        # Two plans are close to each other, and the first one is slower than predicted.
        (
            {"several": 1.0, "processor 0": 2.0, "cpu:0-1": 1.05},
            {"several": 1.3, "cpu:0-1": 1.1},
            [5.0, 6.0],
            ["several", "cpu:0-1"],
            "cpu:0-1",
        ),
        # The first one is faster than predicted, so that the second is no longer close.
        ({"several": 1.0, "cpu:0-1": 1.05}, {"several": 0.8}, [], ["several"], "several"),
        # One that cannot run keeps its prediction and runs once.
        (
            {"several": 1.0, "cpu:0-1": 1.05},
            {"several": math.inf, "cpu:0-1": 1.02},
            [],
            ["several", "cpu:0-1"],
            "several",
        ),
    ],
)
def test_plans_run_where_predictions_are_close(
    predicted: dict[str, float], measured: dict[str, float], designs: list[float], ran: list[str], fastest: str
) -> None:
    places: list[str] = []

    def runner(processor: int | None, pool: str, /) -> float:
        places.append(next(place for place, key in PLACES.items() if key == (processor, pool)))
        return measured[places[-1]]

    runs = PlanRuns(runner, lambda: None)
    found = runs.compared(plans_of(predicted), designs)
    assert places == ran
    best = min(found, key=lambda plan: plan.seconds)
    assert (best.processor, best.pool) == PLACES[fastest]
    assert best.is_measured == (math.isfinite(measured.get(fastest, math.inf)))
    assert set(runs.measured_ms) == set(ran)
    assert PlanRuns(runner, lambda: None, 0.0).compared(plans_of(predicted), designs)
    assert places == ran  # after the time limit none runs


def as_predicted(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
    """Runs a design, which takes what is predicted."""
    branches = tuple(tuple(1e-3 * (b.predicted_ms or 0.0) for b in s.branches) for s in network.design.segments)
    return MeasuredDesign(1e-3 * (network.design.predicted_ms or 0.0), branches)


def pool_as_fast_as(ms: float) -> Pool:
    """A pool on which `tiny` is predicted to take about as long."""

    def pool_ms(rate: float) -> float:
        return 1e3 * single_processor_plan(LatencyTable(tiny(), Rates(rate), 1), 0).seconds

    rate = min((1e9 * 1.02**step for step in range(400)), key=lambda one: abs(pool_ms(one) - ms))
    assert pool_ms(rate) == pytest.approx(ms, rel=0.03)
    return Pool("cpu:0-1", Rates(rate), {0: 0.1, 1: 0.1})


@pytest.mark.parametrize(("pool_takes", "is_branched"), [(1.3, True), (0.95, False)])
def test_a_design_is_compared_with_a_plan_that_ran(pool_takes: float, is_branched: bool, tmp_path: Path) -> None:
    """The pool is predicted to be as fast as the design; its run decides, once, and is kept."""
    best_ms, ran = [0.0], []

    def plan_runner(processor: int | None, pool: str, /) -> float:
        assert (processor, pool) == (None, "cpu:0-1")
        ran.append(pool)
        return 1e-3 * best_ms[0] * pool_takes

    predictor = Rates(50e9, 45e9, meeting=1e-6)
    forced, _ = search(tiny(), predictor, SearchOptions(2, LIMITS, even_if_slower=True))
    best_ms[0] = forced[0].predicted_ms or 0.0

    pool = pool_as_fast_as(best_ms[0])

    def searched() -> tuple[Design, SearchReport]:
        options = SearchOptions(
            2,
            LIMITS,
            runner=as_predicted,
            plan_runner=plan_runner,
            kept=tmp_path / "kept.json",
            pool=pool,
            splits=False,
        )
        (design, *_), report = search(tiny(), predictor, options)
        return design, report

    design, report = searched()
    assert ran == ["cpu:0-1"]
    assert bool(design.meeting_points) == is_branched
    assert report.unbranched is not None and report.unbranched.is_measured
    assert report.alternatives(NAMES)["cpu:0-1"] == pytest.approx(best_ms[0] * pool_takes)
    if is_branched:
        share = report.control_shares[design.id]
        assert report.gain(design) == pytest.approx(share * best_ms[0] * pool_takes / report.measured_ms[design.id])
    else:
        assert f"(cpu:0-1), takes {best_ms[0] * pool_takes:.3f} ms" in report.unbranched_note(NAMES)
        assert report.faster_unbranched(design, NAMES) == "cpu:0-1"
    again, recalled = searched()
    assert (again.id, recalled.recalled, ran) == (design.id, True, ["cpu:0-1"])


def test_a_fresh_search_that_is_cut_short_leaves_what_an_earlier_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has time for a run of a plan, but its designs did not run to the end: nothing of it is among the earlier runs."""
    now, ran, kept = [0.0], list[str](), tmp_path / "kept.json"

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """Without tuning, the processors are unequal, so that another design runs, if there is time."""
        now[0] += 1.0 if tuned else 30.0
        found = as_predicted(network, tuned=tuned)
        factors = (1.0, 1.0) if tuned else (1.08, 0.92)
        segments = zip(found.branches, network.design.segments, strict=True)
        branches = tuple(
            tuple(factors[b.processor] * s for s, b in zip(seconds, segment.branches, strict=True))
            for seconds, segment in segments
        )
        longer = sum(map(max, branches)) - sum(map(max, found.branches))
        return MeasuredDesign(found.seconds + longer, branches)

    def plan_runner(processor: int | None, pool: str, /) -> float:
        ran.append(pool)
        return 1e-3 * best_ms * (1 + 0.01 * len(ran))

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    predictor = Rates(50e9, 45e9, meeting=1e-6)
    (best, *_), _ = search(tiny(), predictor, SearchOptions(2, LIMITS, even_if_slower=True))
    best_ms = best.predicted_ms or 0.0
    pool = pool_as_fast_as(best_ms)

    def searched(**more: Any) -> SearchReport:
        now[0] = 0.0
        options = SearchOptions(2, LIMITS, runner=runner, plan_runner=plan_runner, kept=kept, pool=pool, splits=False)
        return search(tiny(), predictor, replace(options, **more))[1]

    first = searched()
    text = kept.read_text()
    assert (first.cut_short, ran) == (False, ["cpu:0-1"])
    fresh = searched(fresh=True, time_limit=50.0)
    assert (fresh.cut_short, fresh.recalled, ran) == (True, False, 2 * ["cpu:0-1"])
    assert kept.read_text() == text
    again = searched()
    assert (again.recalled, again.unbranched_ms, len(ran)) == (True, first.unbranched_ms, 2)
    renewed = searched(fresh=True)
    assert (renewed.recalled, len(ran)) == (False, 3)
    assert searched().unbranched_ms == renewed.unbranched_ms != first.unbranched_ms
