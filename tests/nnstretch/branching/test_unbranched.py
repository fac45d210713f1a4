"""The search beside plans without branches: no design is behind the best of them, which is returned where none is ahead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import Pool
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import branch_seconds, network_prediction
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.search.unbranched import pool_plan, single_processor_plan, split_estimate, unbranched_plan
from nnstretch.branching.stretch import rebuild, stretch
from nnstretch.branching.tracing.operators import shape_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.network import export_branched
from nnstretch.cli.stretching.answer import branches_table
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.metadata import PLACEMENT_KEY
from tests.kits.networks.searched_networks import IMAGES, Rates, every_design, small, tiny, within

LIMITS = SearchLimits(min_width=0.5, min_depth=0.5, beta=0.9, min_macs=0.7, max_segment=1.0)
NAMES = ("cpu:0", "opencl:0", "cpu:1", "cpu:2")


@cache
def branched_designs(width: float) -> list[list[SegmentChoice]]:
    """All designs of the chain for two processors whose branches have this width, which the search considers too."""
    return [
        choices
        for choices in every_design(tiny(), (width,), LIMITS)
        if any(len(choice.branches) > 1 for choice in choices)
    ]


def whole_plans(plan: Blueprint, predictor: Rates, processors: int) -> Iterator[float]:
    """Seconds of the blocks and the head on every combination of processors, added up from their layers.

    The input lies with processor 0, or with the only one that works.
    """
    blocks = len(plan.traced.blocks)
    parts = [plan.whole(Segment(number, number + 1)) for number in range(blocks)]
    layers = [part_layers(part, kept_counts(part, 1.0)).layers for part in (*parts, plan.head)]
    tensors = [TensorType(shape_of(plan.boundary(number)) or ()) for number in range(blocks + 1)]
    for places in itertools.product(range(processors), repeat=blocks + 1):
        work = sum(predictor.layer_seconds(layer, p) for some, p in zip(layers, places, strict=True) for layer in some)
        homes = (places[0] if len(set(places)) == 1 else 0, *places)
        meetings = zip(tensors, homes, places, strict=False)
        yield work + sum(predictor.meeting_seconds(tensor) for tensor, home, place in meetings if home != place)


@settings(max_examples=12, deadline=None)
@given(
    other=st.floats(0.1, 4.0),
    meeting=st.sampled_from([0.0, 2e-6, 1e-5, 3e-5, 1e-4, 1e-3]),
    together=st.sampled_from([1.0, 1.3]),
    placed=st.floats(0.4, 1.5),
    width=st.sampled_from([0.5, 0.625, 0.75]),
    best_effort=st.booleans(),
)
def test_no_plan_is_ahead_of_the_design(
    other: float, meeting: float, together: float, placed: float, width: float, best_effort: bool
) -> None:
    """Against brute force over wholes, branchings and mixtures of both, and a made-up plan of the scheduler."""
    plan, predictor = tiny(), Rates(50e9, 50e9 * other, meeting=meeting, together=together)
    latencies = LatencyTable(plan, predictor, 2)
    wholes = list(whole_plans(plan, predictor, 2))
    scheduled = max(placed * min(wholes), split_estimate(latencies))
    options = SearchOptions(2, LIMITS, designs=3, best_effort=best_effort, placed_seconds=lambda: scheduled)
    designs, report = search(plan, predictor, options)
    branched = (
        network_prediction(latencies, choices, branch_seconds(latencies, choices)).seconds
        for choices in branched_designs(width)
        if within(plan, latencies, choices, LIMITS)
    )
    best = min(scheduled, *wholes, *branched)
    for design in designs:
        assert (design.predicted_ms or 0.0) <= 1e3 * min(scheduled, *wholes) * (1 + 1e-9)
    assert (designs[0].predicted_ms or 0.0) <= 1e3 * best * (1 + 1e-9)
    assert report.stays_unbranched == (designs[0].meeting_points == 0)
    if report.stays_unbranched:
        assert designs[0].predicted_ms == pytest.approx(1e3 * min(scheduled, *wholes))
        assert len(designs) == 1
        assert designs[0].macs == designs[0].original_macs


@pytest.mark.parametrize("processors", [2, 3, 4])
@pytest.mark.parametrize("best_effort", [False, True])
def test_endless_transfers_leave_the_network_whole(processors: int, best_effort: bool) -> None:
    rates = (70e9, 100e9, 90e9, 80e9)[:processors]
    predictor = Rates(*rates, meeting=1e3)
    (design,), report = search(tiny(), predictor, SearchOptions(processors, LIMITS, best_effort=best_effort))
    assert design.meeting_points == 0
    assert design.processors == (1,)  # the fastest, beside which nobody works
    assert design.predicted_ms == pytest.approx(report.original_ms[1])
    assert design.predicted_ms == pytest.approx(1e3 * report.predictions[design.id].seconds)
    note = report.unbranched_note(NAMES)
    assert "\n" not in note
    assert f"on opencl:0 alone, is predicted to take {design.predicted_ms:.3f} ms" in note
    if best_effort:
        assert report.branched_ms is not None
        assert report.branched_ms > 1e3
        assert f"the fastest branched design {report.branched_ms:.3f} ms" in note
    else:
        assert report.branched_ms is None
        assert "alpha = 0.3" in note


@pytest.mark.parametrize("processors", [2, 3, 4])
def test_free_transfers_and_equal_processors_leave_it_branched(processors: int) -> None:
    predictor = Rates(*[100e9] * processors, meeting=0.0)
    asked: list[int] = []

    def placed() -> float:
        asked.append(1)
        return math.inf

    options = SearchOptions(processors, designs=3, placed_seconds=placed)
    designs, report = search(tiny(), predictor, options)
    forced, _ = search(tiny(), predictor, SearchOptions(processors, designs=3, even_if_slower=True))
    assert designs == forced
    assert all(design.meeting_points for design in designs)
    assert report.unbranched_note(NAMES) == ""
    assert report.branched_ms == pytest.approx(designs[0].predicted_ms)


def placed_search(seconds: float, options: SearchOptions) -> tuple[list[Design], SearchReport, int]:
    """A search beside a plan of the scheduler that takes this long, and the number of times that it was asked."""
    asked: list[float] = []

    def placed() -> float:
        asked.append(seconds)
        return seconds

    made = SearchOptions(**{**vars(options), "placed_seconds": placed})
    designs, report = search(tiny(), Rates(1e9, 0.9e9, meeting=1e-6), made)
    return designs, report, len(asked)


def test_the_scheduler_is_asked_where_its_plan_may_be_ahead() -> None:
    """Branches with more MACs than the original are behind a network that is split without loss."""
    wide = SearchLimits(min_macs=1.2, beta=2.0, alpha=2.0)
    (forced, *_), _, asked = placed_search(1e-9, SearchOptions(2, wide, even_if_slower=True))
    assert asked == 0
    assert forced.predicted_ms is not None
    (design,), report, asked = placed_search(1e-3 * forced.predicted_ms, SearchOptions(2, wide))
    assert asked == 1
    assert design.meeting_points == 0
    assert design.predicted_ms == pytest.approx(forced.predicted_ms)
    assert report.unbranched is not None
    assert report.unbranched.processor is None
    assert {segment.split for segment in design.segments} == {(0, 1)}
    assert "whole blocks" not in str(branches_table([design], NAMES[:2], report).caption)
    note = report.unbranched_note(NAMES)
    assert "placed on several processors" in note
    assert note.count(f"{forced.predicted_ms:.3f} ms") == 2
    branched, report, asked = placed_search(1.001e-3 * forced.predicted_ms, SearchOptions(2, wide))
    assert (asked, branched[0].id, report.unbranched_note(NAMES)) == (1, forced.id, "")
    assert all((one.predicted_ms or 0.0) < 1.001 * forced.predicted_ms for one in branched)


def test_the_scheduler_is_not_asked_where_branching_is_clearly_ahead() -> None:
    small_ones = SearchLimits(min_macs=0.4, beta=0.6, min_width=0.25, min_depth=0.5, max_segment=1.0)
    designs, report, asked = placed_search(0.0, SearchOptions(2, small_ones, designs=1))
    assert (asked, report.unbranched, report.stays_unbranched) == (0, None, False)
    assert designs[0].meeting_points


def test_a_target_is_met_without_branches_where_these_have_fewer_macs() -> None:
    plan, predictor = tiny(), Rates(100e9, 20e9, meeting=2e-5)
    alone = 1e3 * single_processor_plan(LatencyTable(plan, predictor, 2), 0).seconds
    limits = SearchLimits(target_ms=1.001 * alone, beta=1.0)
    designs, report = search(plan, predictor, SearchOptions(2, limits, designs=3))
    assert all(design.meeting_points == 0 or design.macs > design.original_macs for design in designs)
    if report.stays_unbranched:
        assert (designs[0].predicted_ms or 0.0) <= 1.001 * alone
        assert "branching does not pay" in report.unbranched_note(NAMES)
    with pytest.raises(DesignError, match=r"raise the target|can be reached"):
        search(plan, predictor, SearchOptions(2, SearchLimits(target_ms=0.1 * alone, beta=1.0)))


def test_a_target_that_only_the_whole_network_meets() -> None:
    """Transfers make every branched network slower than the target."""
    plan, predictor = tiny(), Rates(100e9, 95e9, meeting=1e-2)
    alone = 1e3 * single_processor_plan(LatencyTable(plan, predictor, 2), 0).seconds
    (design,), report = search(plan, predictor, SearchOptions(2, SearchLimits(target_ms=2 * alone), best_effort=True))
    assert design.meeting_points == 0
    assert design.predicted_ms == pytest.approx(alone)
    assert report.branched_ms is not None
    assert report.branched_ms > 2 * alone
    assert f"{report.branched_ms:.3f} ms" in report.unbranched_note(NAMES)
    with pytest.raises(DesignError, match="can be reached"):
        search(plan, predictor, SearchOptions(2, SearchLimits(target_ms=0.5 * alone)))


def test_a_front_has_no_design_that_the_whole_network_dominates() -> None:
    plan, predictor = tiny(), Rates(100e9, 60e9, meeting=2e-6)
    forced, _ = search(plan, predictor, SearchOptions(2, LIMITS, designs=1000, pareto=True, even_if_slower=True))
    times = sorted(design.predicted_ms or 0.0 for design in forced if design.macs <= design.original_macs)
    scheduled = 1e-3 * times[len(times) // 2]
    options = SearchOptions(2, LIMITS, designs=1000, pareto=True, placed_seconds=lambda: scheduled)
    designs, _ = search(plan, predictor, options)
    kept = [d for d in forced if d.macs > d.original_macs or (d.predicted_ms or 0.0) < 1e3 * scheduled]
    assert len(kept) < len(forced)
    assert designs == kept


@pytest.mark.parametrize("even_if_slower", [False, True])
def test_all_cores_as_one_processor_are_among_the_plans(even_if_slower: bool) -> None:
    """A pool that is faster than all designs is the answer, where it is wanted; a slower one changes nothing."""
    plan, predictor = tiny(), Rates(50e9, 45e9, meeting=1e-6)
    usual, _ = search(plan, predictor, SearchOptions(2, LIMITS, even_if_slower=even_if_slower))
    best = usual[0].predicted_ms or 0.0
    for rate, is_ahead in ((400e9, True), (60e9, False)):
        pool = Pool("cpu:0-1", Rates(rate), {0: 0.1, 1: 0.1})
        options = SearchOptions(2, LIMITS, even_if_slower=even_if_slower, pool=pool)
        designs, report = search(plan, predictor, options)
        alone = 1e3 * single_processor_plan(LatencyTable(plan, pool.predictor, 1), 0).seconds
        assert report.pool_ms == pytest.approx(alone)
        assert report.alternatives(NAMES[:2])["cpu:0-1"] == report.pool_ms
        assert (alone < best) == is_ahead
        if not is_ahead or even_if_slower:
            assert designs == usual
            assert report.places(designs[0], NAMES) == NAMES
        else:
            (whole,) = designs
            assert whole.meeting_points == 0
            assert whole.predicted_ms == pytest.approx(alone)
            assert (
                f"on all cores as one processor (cpu:0-1), is predicted to take {alone:.3f} ms"
                in report.unbranched_note(NAMES)
            )
            assert report.gain(whole) == pytest.approx(1.0)
            assert report.places(whole, NAMES) == ("cpu:0-1",)
            assert whole.pool
            assert report.unbranched is not None
            assert report.unbranched.processors(NAMES) == "cpu:0-1"
            table = branches_table(designs, NAMES, report)
            assert [column.header for column in table.columns] == ["#", "segment", "blocks", "cpu:0-1"]
            assert [*table.columns[1].cells] == [str(number) for number in range(len(whole.segments))]
            assert [*table.columns[3].cells] == ["whole"] * len(whole.segments)
            assert table.caption == "no branches: the original network, on all cores as one processor (cpu:0-1)"


def test_a_pool_that_is_predicted_to_be_slower_than_its_cores_is_estimated_by_them() -> None:
    """Costs of many threads may be learned from layers of other kinds; then the pool has its optimistic seconds, and runs."""
    plan, predictor = tiny(), Rates(50e9, 45e9, meeting=1e-6)
    latencies = LatencyTable(plan, predictor, 2)
    alone = single_processor_plan(latencies, 0).seconds
    for rate in (49e9, 51e9):
        pooled = LatencyTable(plan, Rates(rate), 1)
        pool = Pool("cpu:0-1", pooled.predictor, {0: 0.5, 1: 0.6})
        seconds = single_processor_plan(pooled, 0).seconds
        assert (seconds < alone) == (rate > 50e9)
        assert pool_plan(latencies, pooled, pool).seconds == pytest.approx(seconds if seconds < alone else 0.5 * alone)


def test_the_gain_is_over_the_best_alternative_at_equal_macs() -> None:
    plan, predictor = tiny(), Rates(50e9, 45e9, meeting=1e-6)
    pool = Pool("cpu:0-1", Rates(80e9), {0: 0.5, 1: 0.5})
    designs, report = search(plan, predictor, SearchOptions(2, LIMITS, pool=pool))
    others = report.alternatives(("a", "b"))
    assert set(others) == {"a", "b", "split", "cpu:0-1"}
    assert others["split"] <= min(others["a"], others["b"]) * (1 + 1e-9)
    for design in designs:
        share = report.control_shares[design.id]
        assert 0 < share <= 1
        assert report.gain(design) == pytest.approx(share * min(others.values()) / (design.predicted_ms or 0.0))
    note = report.gain_note(designs[0], ("a", "b"))
    assert note.startswith(f"{report.gain(designs[0]):.2f}× as fast")
    assert f"{report.control_shares[designs[0].id] * min(others.values()):.3f} ms" in note


def test_where_the_network_runs_without_branches_if_no_design_pays() -> None:
    (design, *_), report = search(tiny(), Rates(100e9, 90e9, meeting=1e-6), SearchOptions(2, LIMITS))
    gain = report.gain(design)
    assert design.meeting_points
    assert gain is not None
    assert gain > 1
    assert report.faster_unbranched(design, NAMES[:2]) is None
    slow = replace(design, predicted_ms=1e3)
    for split, pool, place in ((1.0, None, ",".join(NAMES[:2])), (5e3, 1.0, "cpu:0-1"), (5e3, None, NAMES[0])):
        known = replace(report, original_ms=(1e3, 2e3), split_ms=split, pool="cpu:0-1", pool_ms=pool, unbranched=None)
        assert known.faster_unbranched(slow, NAMES[:2]) == place


def test_what_is_slower_is_returned_where_it_is_wanted() -> None:
    predictor, limits = Rates(100e9, 90e9, meeting=1e-3), SearchLimits(alpha=1e3, beta=2.0)
    (design, *_), report = search(tiny(), predictor, SearchOptions(2, limits, even_if_slower=True))
    assert design.meeting_points
    assert (design.predicted_ms or 0.0) > min(report.original_ms)
    assert not report.stays_unbranched
    assert f"the fastest branched design {report.branched_ms:.3f} ms" in report.unbranched_note(NAMES)
    assert report.faster_unbranched(design, NAMES[:2]) is not None
    pool = Pool("cpu:0-1", Rates(400e9), {0: 0.1, 1: 0.1})
    _, report = search(tiny(), predictor, SearchOptions(2, limits, even_if_slower=True, pool=pool))
    assert (
        f"on all cores as one processor (cpu:0-1), is predicted to take {report.pool_ms:.3f} ms"
        in report.unbranched_note(NAMES)
    )


def test_limits_that_the_whole_network_breaks_are_refused() -> None:
    with pytest.raises(DesignError, match="min_macs = 3 "):
        search(tiny(), Rates(1e11, 1e11), SearchOptions(2, SearchLimits(min_macs=3.0)))


def test_a_design_without_branches_is_the_original_network() -> None:
    network = small(1)
    (result,) = stretch(blueprint(network, IMAGES, 16), Rates(1e11, 1e11, meeting=1.0), SearchOptions(2))
    assert torch.allclose(result.module(IMAGES), network(IMAGES), atol=1e-6)
    saved = Design.from_json(result.design.to_json())
    assert saved == result.design
    assert torch.equal(rebuild(network, IMAGES, saved)(IMAGES), result.module(IMAGES))
    assert result.prediction.seconds == pytest.approx(1e-3 * (result.design.predicted_ms or 0.0))
    # The scheduler places and splits its layers, as those of any other network without branches.
    assert result.module.placement == {}
    assert not any(PLACEMENT_KEY in node.metadata_props for node in export_branched(result.module, IMAGES).graph)


def test_processors_that_compute_different_layers_share_a_plan() -> None:
    class Halves(Rates):
        """Processor 1 alone is fast at blocks that read small maps."""

        def layer_seconds(self, layer: Layer, processor: int) -> float:
            is_late = layer.type_of(0).shape[-1] <= 16
            return super().layer_seconds(layer, processor) * (1.0 if is_late == bool(processor) else 20.0)

    plan, predictor = blueprint(small(2), IMAGES, 16), Halves(100e9, 100e9, meeting=1e-6)
    found = unbranched_plan(LatencyTable(plan, predictor, 2), None)
    assert found is not None
    assert found.processor is None
    assert {choice.branches[0].processor for choice in found.choices} == {0, 1}
    assert found.seconds == pytest.approx(min(whole_plans(plan, predictor, 2)))


def test_a_network_that_no_processor_can_compute_is_refused() -> None:
    class Apart(Rates):
        """One processor has no routine for strided convolutions, the other none for the rest."""

        def layer_seconds(self, layer: Layer, processor: int) -> float:
            is_strided = layer.type_of(0).shape[2:] != layer.outputs[0].shape[2:]
            can = layer.op != "Conv" or is_strided == bool(processor)
            return super().layer_seconds(layer, processor) if can else math.inf

    with pytest.raises(DesignError, match="no segment can be branched"):
        search(tiny(), Apart(1e11, 1e11), SearchOptions(2))


def test_segments_of_one_processor_are_predicted_as_one() -> None:
    plan, predictor = tiny(), Rates(80e9, 90e9)
    latencies, count = LatencyTable(plan, predictor, 2), len(plan.traced.blocks)
    for processor in (0, 1):
        found = single_processor_plan(latencies, processor)
        segment = Segment(0, count)
        assert found.choices == (SegmentChoice(segment, (BranchChoice.whole(segment, processor),)),)
        assert found.seconds == pytest.approx(latencies.original(segment)[processor] + latencies.head(processor))
