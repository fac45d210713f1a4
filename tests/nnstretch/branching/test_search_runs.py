"""Runs of designs in a search: measured layers and branches, tuning, kept results, time limits."""

import math
from pathlib import Path
from typing import Any

import pytest

from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import MeasuredDesign
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.graph.layer import Layer
from tests.kits.networks.searched_networks import (
    Rates,
    prepared_small,
)


def test_underestimated_layers_are_measured() -> None:
    class Guessing(Rates):
        """Underestimates some layers by a factor of three until they are measured."""

        def __init__(self) -> None:
            super().__init__(100e9, 90e9)
            self.known: set[tuple[int, str]] = set()

        def layer_seconds(self, layer: Layer, processor: int) -> float:
            dear = layer.op == "Conv" and layer.outputs[0].shape[1] % 3 == 1
            guessed = (processor, layer.workload) not in self.known
            return super().layer_seconds(layer, processor) * (3.0 if dear and not guessed else 1.0)

        def confirm(self, found: list[Layer], processor: int, /) -> bool:
            before = self.seconds(found, processor)
            self.known.update((processor, layer.workload) for layer in found)
            return self.seconds(found, processor) != before

    plan, predictor = prepared_small(), Guessing()
    designs, _ = search(plan, predictor, SearchOptions(2, designs=1))
    assert predictor.known
    assert designs[0].predicted_ms is not None
    sure, _ = search(plan, predictor, SearchOptions(2, designs=1))
    assert sure[0].predicted_ms == pytest.approx(designs[0].predicted_ms)


def test_measured_runs_rebalance_the_branches() -> None:
    runs: list[tuple[bool, Design, float]] = []

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """Processor 1 takes a quarter longer than predicted, and a half longer than the other when all is tuned."""
        factors = (0.8, 1.2) if tuned else (1.0, 1.25)
        branches = tuple(
            tuple((branch.predicted_ms or 0.0) * 1e-3 * factors[branch.processor] for branch in segment.branches)
            for segment in network.design.segments
        )
        runs.append((tuned, network.design, sum(map(max, branches))))
        return MeasuredDesign(runs[-1][2], branches)

    def share(design: Design) -> float:
        first, second = (sum(b.macs for s in design.segments for b in s.branches if b.processor == p) for p in range(2))
        return second / first

    plan, predictor = prepared_small(), Rates(100e9, 100e9)
    (plain, *_), untried = search(plan, predictor, SearchOptions(2))
    (best, *_), report = search(plan, predictor, SearchOptions(2, runner=runner))
    # Before the first run nothing was corrected.
    assert report.front == untried.front
    assert runs[0][1].id == plain.id
    shared, tuned = [run for run in runs if not run[0]], [run for run in runs if run[0]]
    assert min(seconds for _, _, seconds in shared) < shared[0][2]
    assert {design.id: 1e3 * seconds for _, design, seconds in tuned} == report.measured_ms
    assert report.measured_ms[best.id] == min(report.measured_ms.values())
    assert share(best) < share(tuned[0][1]) < share(plain)


@pytest.mark.parametrize(
    ("ahead", "even_if_slower", "is_tuned"), [(1.2, False, False), (1.02, False, True), (1.2, True, True)]
)
def test_a_design_that_cannot_win_is_not_tuned(ahead: float, even_if_slower: bool, is_tuned: bool) -> None:
    """The network without branches is ahead by a share that tuning the design makes up for, or not."""
    runs: list[bool] = []

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        runs.append(tuned)
        branches = tuple(tuple(1e-3 * (b.predicted_ms or 0.0) for b in s.branches) for s in network.design.segments)
        return MeasuredDesign(sum(map(max, branches)), branches)

    plan, predictor = prepared_small(), Rates(100e9, 100e9)
    (best, *_), _ = search(plan, predictor, SearchOptions(2, even_if_slower=True))
    seconds = 1e-3 * (best.predicted_ms or 0.0) / ahead
    placed = SearchOptions(2, runner=runner, placed_seconds=lambda: seconds, even_if_slower=even_if_slower)
    (design, *_), report = search(plan, predictor, placed)
    assert runs[0] is False
    assert (True in runs) == bool(report.measured_ms) == is_tuned
    assert (design.meeting_points > 0) == even_if_slower


def test_a_design_that_was_not_tuned_runs_again_where_it_may_be_returned(tmp_path: Path) -> None:
    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        branches = tuple(tuple(1e-3 * (b.predicted_ms or 0.0) for b in s.branches) for s in network.design.segments)
        return MeasuredDesign(sum(map(max, branches)), branches)

    def searched(*, even_if_slower: bool) -> tuple[bool, int, bool]:
        placed = SearchOptions(
            2, runner=runner, kept=tmp_path / "kept.json", placed_seconds=lambda: 1e-9, even_if_slower=even_if_slower
        )
        (design, *_), report = search(prepared_small(), Rates(100e9, 100e9), placed)
        return report.recalled, len(report.measured_ms), design.id in report.measured_ms

    assert searched(even_if_slower=False) == (False, 0, False)
    assert searched(even_if_slower=False) == (True, 0, False)
    assert searched(even_if_slower=True) == (False, 1, True)
    assert searched(even_if_slower=True) == (True, 1, True)


def test_the_same_search_again_runs_no_design(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """Processor 1 is slower than predicted."""
        runs.append(network.design.id)
        branches = tuple(
            tuple((branch.predicted_ms or 0.0) * 1e-3 * (1.0, 1.3)[branch.processor] for branch in segment.branches)
            for segment in network.design.segments
        )
        return MeasuredDesign(sum(map(max, branches)), branches)

    plan, file = prepared_small(), tmp_path / "kept.json"

    def searched(rate: float = 100e9, **more: Any) -> tuple[list[Design], SearchReport]:
        runs.clear()
        return search(plan, Rates(100e9, rate), SearchOptions(2, designs=3, runner=runner, kept=file, **more))

    designs, report = searched()
    assert runs and not report.recalled
    again, kept = searched()
    assert not runs and kept.recalled
    assert (again[0], kept.measured_ms) == (designs[0], report.measured_ms)
    # Predictions that have moved since do not make it run again; what ran fastest still comes first.
    moved, _ = searched(101e9)
    assert not runs and moved[0].id == designs[0].id
    renewed, report = searched(fresh=True)
    assert runs and not report.recalled and renewed[0] == designs[0]
    text = file.read_text()
    for damaged in ("", "[]", "{}", text[:-20], text.replace('"stop": ', '"stop": 9'), text.replace("1.3", "-1.3")):
        assert damaged != text
        file.write_text(damaged)
        renewed, _ = searched()
        assert runs and renewed[0] == designs[0]
        assert "the designs run again" in caplog.text
        caplog.clear()
        assert file.read_text() == text


def test_no_design_runs_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tuned_runs = [0.0], []

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        """A run takes 10 seconds, or 30 with tuning; processor 1 is slower than predicted."""
        now[0] += 30.0 if tuned else 10.0
        tuned_runs.append(tuned)
        factors = (0.8, 1.2) if tuned else (1.0, 1.25)
        branches = tuple(
            tuple((branch.predicted_ms or 0.0) * 1e-3 * factors[branch.processor] for branch in segment.branches)
            for segment in network.design.segments
        )
        return MeasuredDesign(sum(map(max, branches)), branches)

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    plan, predictor = prepared_small(), Rates(100e9, 100e9)

    def searched(seconds: float) -> tuple[list[bool], SearchReport]:
        now[0] = 0.0
        tuned_runs.clear()
        designs, report = search(plan, predictor, SearchOptions(2, runner=runner, time_limit=seconds))
        assert designs
        return list(tuned_runs), report

    everything, report = searched(math.inf)
    assert not report.cut_short
    assert everything.count(False) > 1
    runs, report = searched(1.0)  # the length of the first run is not known before it
    assert (runs, report.cut_short, dict(report.measured_ms)) == ([False], True, {})
    runs, report = searched(10.0 * everything.count(False) + 1.0)
    assert runs == [False] * everything.count(False) + [True]
    assert len(report.measured_ms) == 1
