"""Results of the search: ranking, optimality on small networks, targets, fronts and reports."""

import math

import pytest
import torch
from torch import nn

from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.latency.prediction import MeasuredDesign
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import Family, SearchLimits
from nnstretch.branching.search.network_latency import branch_seconds, network_prediction
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.stretch import rebuild, stretch
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Layer
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import classifier, conv_bn
from tests.kits.networks.searched_networks import (
    IMAGES,
    Rates,
    basic,
    every_design,
    prepared,
    prepared_small,
    resnet,
    small,
    tiny,
    within,
)


def test_designs_are_within_the_limits_and_ranked() -> None:
    network, predictor = resnet(), Rates(100e9, 70e9)
    designs, report = search(blueprint(network, IMAGES), predictor, SearchOptions(2, designs=4))
    assert 1 <= len(designs) <= 4
    times = [design.predicted_ms for design in designs]
    assert times == sorted(times, key=lambda ms: ms or 0.0)
    assert len({design.id for design in designs}) == len(designs)
    fastest = min(report.original_ms)
    for design in designs:
        assert design.predicted_ms is not None
        assert design.predicted_ms < 0.65 * fastest
        assert 0.75 * design.original_macs <= design.macs
        assert design.meeting_points >= 1
        assert [segment.first for segment in design.segments[1:]] == [segment.stop for segment in design.segments[:-1]]
        for segment in design.segments:
            if len(segment.branches) > 1:
                assert [branch.processor for branch in segment.branches] == [0, 1]
                assert all(branch.depth >= 0.5 and branch.width >= 0.25 for branch in segment.branches)
    assert design.original_macs == count_macs(network, IMAGES)
    assert design.original_params == count_parameters(network)


def test_the_report_counts_designs_after_every_step() -> None:
    _, report = search(prepared("resnet18"), Rates(100e9, 70e9), SearchOptions(2))
    assert report.family is Family.RESIDUAL
    assert (report.limits.min_depth, report.limits.min_width) == (Family.RESIDUAL.depth, Family.RESIDUAL.width)
    assert report.boundaries == tuple(range(1, report.cut_points + 1))
    counts = [step.designs_log10 for step in report.pruning]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 10.0 > counts[-1] > 0.0
    assert report.transitions > 0


@pytest.mark.parametrize(
    ("rates", "widths"), [((100e9, 60e9), (0.75, 1.0)), ((100e9, 35e9), (0.5, 1.0))], ids=["0.6", "0.35"]
)
def test_no_design_is_faster_with_as_many_macs(rates: tuple[float, float], widths: tuple[float, ...]) -> None:
    """Against brute force over all meeting points, depths and widths of a small network."""
    plan, predictor = tiny(), Rates(*rates)
    limits = SearchLimits(min_width=0.5, min_depth=0.5, beta=0.9, min_macs=0.7, max_segment=1.0)
    latencies = LatencyTable(plan, predictor, 2)
    best: dict[int, float] = {}
    for choices in every_design(plan, widths, limits):
        if within(plan, latencies, choices, limits):
            macs = make_design(plan, choices).macs
            seconds = network_prediction(latencies, choices, branch_seconds(latencies, choices)).seconds
            best[macs] = min(best.get(macs, math.inf), seconds)
    designs, _ = search(plan, predictor, SearchOptions(2, limits, designs=1000, pareto=True))
    unit = designs[0].original_macs / 1000
    found = {design.macs: (design.predicted_ms or 0.0) / 1e3 for design in designs}
    assert min(found.values()) <= min(best.values()) * (1 + 1e-9)
    for macs, seconds in best.items():
        # MACs are counted in thousandths of the original's, rounded once per segment.
        baselines = [s for m, s in found.items() if m >= macs - 4 * unit]
        assert min(baselines, default=math.inf) <= seconds * (1 + 1e-9)


def test_a_target_gives_the_most_macs_within_it() -> None:
    plan, predictor = prepared_small(), Rates(100e9, 80e9)
    (fastest, *_), report = search(plan, predictor, SearchOptions(2))
    target = ((fastest.predicted_ms or 0.0) + min(report.original_ms)) / 2
    designs, _ = search(plan, predictor, SearchOptions(2, SearchLimits(target_ms=target), designs=3))
    assert all(design.predicted_ms is not None and design.predicted_ms <= target for design in designs)
    assert designs[0].macs > fastest.macs
    assert [design.macs for design in designs] == sorted((design.macs for design in designs), reverse=True)
    with pytest.raises(DesignError, match=r"at most 0\.001 ms; the fastest takes \d"):
        search(plan, predictor, SearchOptions(2, SearchLimits(target_ms=1e-3)))


def test_a_front_spreads_over_latency_and_macs() -> None:
    designs, _ = search(prepared_small(), Rates(100e9, 80e9), SearchOptions(2, designs=4, pareto=True))
    assert len(designs) == 4
    assert [design.macs for design in designs] == sorted(design.macs for design in designs)
    assert designs[-1].macs > 1.1 * designs[0].macs


class NoFives(Rates):
    """No processor has a routine for convolutions of 5x5."""

    def layer_seconds(self, layer: Layer, processor: int) -> float:
        fives = any(tensor is not None and tensor.shape[2:] == (5, 5) for tensor in layer.inputs)
        return math.inf if fives else super().layer_seconds(layer, processor)


def test_segments_without_predictions_stay_whole() -> None:
    fives = [nn.Conv2d(32, 32, 5, padding=2) for _ in range(2)]
    body = [conv_bn(3, 32, 3, stride=2), *fives, basic(32, 48, 2), basic(48, 48, 1)]
    network = nn.Sequential(*body, *classifier(48, 10))
    weights.initialise(network, 3, 0)
    plan = blueprint(network.eval(), IMAGES)

    def runner(network: BranchedNetwork, /, *, tuned: bool) -> MeasuredDesign:
        branches = tuple(
            tuple(1e-3 * (1 + b.processor) for b in segment.branches) for segment in network.design.segments
        )
        return MeasuredDesign(1e-3, branches)

    designs, report = search(plan, NoFives(100e9, 100e9), SearchOptions(2, runner=runner))
    assert report.unpredicted == ("Conv",)
    assert report.blocks[1].ms == report.blocks[2].ms == (0.0, 0.0)
    for segment in designs[0].segments:
        assert len(segment.branches) == 1 or not {segment.first, segment.stop - 1} <= {1, 2}


def test_three_processors_and_any_two_of_them() -> None:
    designs, _ = search(prepared_small(), Rates(100e9, 80e9, 60e9), SearchOptions(3))
    assert designs[0].processors == (0, 1, 2)
    designs, _ = search(prepared_small(), Rates(100e9, 1e9, 90e9), SearchOptions(3))
    assert {branch.processor for segment in designs[0].segments for branch in segment.branches} == {0, 2}


def test_contention_reduces_the_work_in_branches() -> None:
    free, _ = search(prepared_small(), Rates(100e9, 100e9), SearchOptions())
    bound, _ = search(prepared_small(), Rates(100e9, 100e9, together=1.3), SearchOptions())
    assert (bound[0].predicted_ms or 0.0) > 1.05 * (free[0].predicted_ms or 0.0)


def test_equal_searches_give_equal_designs() -> None:
    def run() -> tuple[list[str], SearchReport]:
        designs, report = search(blueprint(small(), IMAGES), Rates(100e9, 70e9), SearchOptions(2))
        return [design.to_json() for design in designs], report

    assert run() == run()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"processors": 1}, "has 1 processor,"), ({"designs": 0}, "0 designs"), ({"time_limit": 0}, "time limit of 0")],
)
def test_options_out_of_range_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(DesignError, match=words) as caught:
        search(prepared_small(), Rates(1e11, 1e11), SearchOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_progress_ends_complete() -> None:
    reports: list[tuple[int, int, str]] = []
    search(prepared_small(), Rates(1e11, 1e11), SearchOptions(progress=lambda *now: reports.append(now)))
    assert reports[-1][0] == reports[-1][1]
    assert all(0 <= done <= total for done, total, _ in reports)


def test_stretch_builds_what_the_designs_say() -> None:
    network = small().train()
    results = stretch(blueprint(network, IMAGES), Rates(100e9, 70e9), SearchOptions(designs=2))
    assert [result.design.predicted_ms for result in results] == sorted(
        result.design.predicted_ms or 0.0 for result in results
    )
    for result in results:
        assert result.module.training
        assert count_macs(result.module, IMAGES) == result.design.macs
        assert count_parameters(result.module) == result.design.params
        again = rebuild(network, IMAGES, result.design).state_dict()
        assert all(torch.equal(value, again[name]) for name, value in result.module.state_dict().items())


def test_channels_in_multiples_of_nothing_are_refused() -> None:
    with pytest.raises(DesignError, match="multiples of 0; give 1 or more"):
        blueprint(small(), IMAGES, 0)
