"""The search: constraints, optimality on small networks, agreement of predictions with the exported graph."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nnstretch import zoo
from nnstretch.branching.channels.scaling import TensorChannels, kept_counts
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, segment_cost
from nnstretch.branching.latency.prediction import MeasuredDesign
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.latency.workloads import LayerRow, layer_family, part_layers
from nnstretch.branching.search.limits import Family, SearchLimits, family_of
from nnstretch.branching.search.network_latency import branch_seconds, network_prediction
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import SearchOptions, search
from nnstretch.branching.stretch import rebuild, stretch
from nnstretch.branching.tracing.operators import shape_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork, export_branched
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.layers import layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import Chain, Residual, classifier, conv_bn, with_shortcut

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


class Rates:
    """Every processor has a rate for multiply-accumulates, and memory and launches cost the same everywhere."""

    def __init__(self, *rates: float, meeting: float = 5e-6, together: float = 1.0) -> None:
        self.rates, self.meeting, self.together = rates, meeting, together
        self.asked: set[tuple[int, str]] = set()

    def layer_seconds(self, layer: Layer, processor: int) -> float:
        moved = sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
        return layer.macs / self.rates[processor] + 4 * moved / 20e9 + 1e-6

    def seconds(self, found: list[Layer], processor: int, /) -> float:
        self.asked.update((processor, layer.workload) for layer in found)
        return sum(self.layer_seconds(layer, processor) for layer in found)

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        return math.inf

    def meeting_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
        return self.meeting + tensor.elements * 1e-11

    def fetch_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
        return tensor.elements * 1e-11

    def confirm(self, found: list[Layer], processor: int, /) -> bool:
        return False

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        return self.together if others else 1.0


def basic(channels: int, out: int, stride: int) -> Residual:
    body = nn.Sequential(conv_bn(channels, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    return with_shortcut(body, channels, out, stride)


def small(stages: int = 2) -> Chain:
    widths = [32, 48, 64][: stages + 1]
    parts = [
        nn.Sequential(basic(before, after, 2), basic(after, after, 1)) for before, after in itertools.pairwise(widths)
    ]
    network = Chain(nn.Sequential(*conv_bn(3, 32, 3, stride=2)), parts, nn.Sequential(*classifier(widths[-1], 10)))
    weights.initialise(network, 3, 0)
    return network.eval()


def resnet() -> nn.Module:
    return zoo.build("resnet18", num_classes=10, small_images=True)


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


def test_few_distinct_layers_are_predicted() -> None:
    predictor = Rates(100e9, 70e9)
    _, report = search(prepared("resnet18"), predictor, SearchOptions(2))
    assert report.predicted_workloads == len(predictor.asked)
    assert report.predicted_workloads <= 2200  # all of them could be measured in minutes


def test_the_report_counts_designs_after_every_step() -> None:
    _, report = search(prepared("resnet18"), Rates(100e9, 70e9), SearchOptions(2))
    assert report.family is Family.RESIDUAL
    assert (report.limits.min_depth, report.limits.min_width) == (Family.RESIDUAL.depth, Family.RESIDUAL.width)
    assert report.boundaries == tuple(range(1, report.cut_points + 1))
    counts = [step.designs_log10 for step in report.pruning]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 10.0 > counts[-1] > 0.0
    assert report.transitions > 0


def exported_ms(plan: Blueprint, design_index: int, predictor: Rates) -> tuple[float, float]:
    """Latency of a design predicted by the search, and added up from the layers of its exported graph."""
    designs, _ = search(plan, predictor, SearchOptions(2, splits=False))
    design = designs[design_index]
    graph = layers(optimize(export_branched(build(plan, design), IMAGES)))
    total, last = 0.0, "0"
    for number, segment in enumerate(design.segments):
        prefix = f"segments.{number}"
        sums = [0.0, 0.0]
        for node in graph:
            if node.path.startswith(f"{prefix}.branches"):
                processor = int(node.metadata[PLACEMENT_KEY])
                sums[processor] += predictor.layer_seconds(node.layer, processor)
            elif node.path == prefix:
                total += min(predictor.layer_seconds(node.layer, p) for p in (0, 1))
        readers = "".join(str(branch.processor) for branch in segment.branches)
        if readers != last or len(readers) > 1:
            blocks = plan.traced.blocks
            shape = shape_of(blocks[segment.first].source)
            assert shape is not None
            channels = sum(b.channels for b in design.segments[number - 1].branches) if number else shape[1]
            total += predictor.meeting_seconds(TensorType((1, channels, *shape[2:])))
        last = readers
        total += max(
            s * predictor.contention_factor(p, frozenset({1 - p} if len(readers) > 1 else ()))
            for p, s in enumerate(sums)
        )
        for branch, seconds in zip(segment.branches, (sums[b.processor] for b in segment.branches), strict=True):
            assert branch.predicted_ms == pytest.approx(seconds * 1e3)
    heads = [sum(predictor.layer_seconds(n.layer, p) for n in graph if n.path.split(".")[0] == "head") for p in (0, 1)]
    channels = sum(branch.channels for branch in design.segments[-1].branches)
    shape = shape_of(plan.traced.blocks[-1].output)
    assert shape is not None
    meeting = predictor.meeting_seconds(TensorType((1, channels, *shape[2:])))
    total += min(head + (meeting if last != str(p) else 0.0) for p, head in enumerate(heads))
    assert design.predicted_ms is not None
    return design.predicted_ms, total * 1e3


@pytest.mark.parametrize("together", [1.0, 1.25])
def test_the_predicted_latency_is_that_of_the_exported_graph(together: float) -> None:
    plan = prepared_small()
    predicted, added = exported_ms(plan, 0, Rates(100e9, 60e9, together=together))
    assert predicted == pytest.approx(added, rel=1e-6)


def every_design(plan: Blueprint, widths: Sequence[float], limits: SearchLimits) -> Iterator[list[SegmentChoice]]:
    """All ways to cut a network, and to branch what lies between for two processors, within the limits on MACs."""
    count = len(plan.traced.blocks)

    def ways(segment: Segment) -> Iterator[SegmentChoice]:
        for processor in (0, 1):
            yield SegmentChoice(segment, (BranchChoice(processor, tuple(segment.blocks), 1.0),))
        if plan.branchable(segment):
            options = [
                [BranchChoice(p, k, w) for k in plan.depth_candidates(segment, 0.5) for w in widths] for p in (0, 1)
            ]
            yield from (SegmentChoice(segment, pair) for pair in itertools.product(*options))

    for inner in itertools.chain.from_iterable(itertools.combinations(range(1, count), n) for n in range(count)):
        borders = [0, *inner, count]
        yield from map(list, itertools.product(*(list(ways(Segment(*pair))) for pair in itertools.pairwise(borders))))


def within(plan: Blueprint, latencies: LatencyTable, choices: list[SegmentChoice], limits: SearchLimits) -> bool:
    """Whether the branches of a design are within the limits."""
    design = make_design(plan, choices)
    branches = branch_seconds(latencies, choices)
    for choice, segment, seconds in zip(choices, design.segments, branches, strict=True):
        if len(choice.branches) > 1:
            fastest = min(latencies.original(choice.segment))
            width = sum(branch.channels for branch in segment.branches)
            meeting = latencies.meeting(segment.stop, width, (0, 1), (0, 1))
            macs = sum(branch.macs for branch in segment.branches)
            if max(seconds) > limits.beta * fastest or meeting > limits.alpha * fastest:
                return False
            if macs < limits.min_macs * segment_cost(plan, choice.segment).macs:
                return False
    return any(len(choice.branches) > 1 for choice in choices)


@given(data=st.data())
def test_fused_pairs_save_what_the_best_choice_of_pairs_saves(data: st.DataObject) -> None:
    """Against all choices of pairs that share no layer."""
    times = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    transitions = {
        number: data.draw(st.integers(1, 18)) for number in range(len(times) - 1) if data.draw(st.booleans())
    }
    layers = tuple(
        Layer(str(number), "Conv", (TensorType((1, 1 + number, 4, 4)),), (TensorType((1, 2 + number, 4, 4)),))
        for number in range(len(times))
    )

    class Known(Rates):
        def layer_seconds(self, layer: Layer, processor: int) -> float:
            return times[int(layer.name)]

        def fused_seconds(self, pair: Layer, processor: int, /) -> float:
            return transitions[int(pair.name.split("+")[0])]

    latencies = LatencyTable(tiny(), Known(1.0, 1.0), 2)
    best = math.inf
    for chosen in itertools.chain(
        *(itertools.combinations(transitions, count) for count in range(len(transitions) + 1))
    ):
        if all(b - a > 1 for a, b in itertools.pairwise(chosen)):
            alone = sum(t for n, t in enumerate(times) if n not in chosen and n - 1 not in chosen)
            best = min(best, alone + sum(transitions[n] for n in chosen))
    assert latencies._ask(LayerRow(layers, frozenset(transitions)), 0) == pytest.approx(best)


def test_fetching_inputs_is_part_of_the_branches() -> None:
    """Fetching is part of the meeting cost and of contended time; measured branches include it."""
    plan, predictor = tiny(), Rates(100e9, 60e9, meeting=1e-4)
    latencies = LatencyTable(plan, predictor, 2)
    segments = [Segment(0, 2), Segment(2, len(plan.traced.blocks))]
    choices = [
        SegmentChoice(segment, tuple(BranchChoice(p, tuple(segment.blocks), 0.5) for p in (0, 1)))
        for segment in segments
    ]
    alone = branch_seconds(latencies, choices)
    found = network_prediction(latencies, choices, alone)
    for part, seconds in zip(found.segments, alone, strict=True):
        fetch = {branch.contended - s for branch, s in zip(part.branches, seconds, strict=True)}
        assert all(0 < s < 1e-4 for s in fetch)
        assert max(fetch) == pytest.approx(min(fetch))
        assert part.transfer == pytest.approx(1e-4)  # of a minimal tensor; the rest is fetched
    for block in segments[1].blocks:
        latencies.corrections[block, 0] = 1.0
    again = network_prediction(latencies, choices, alone)
    assert again.segments[0] == found.segments[0]
    assert again.segments[1].branches[0].contended == pytest.approx(alone[1][0])
    assert again.seconds == pytest.approx(found.seconds)


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


def test_an_infeasible_beta_is_refused_with_the_best_one() -> None:
    with pytest.raises(DesignError) as caught:
        search(prepared("resnet18"), Rates(100e9, 2e9), SearchOptions(2, even_if_slower=True))
    message = str(caught.value)
    assert "\n" not in message
    assert "beta = 0.8" in message
    assert "the least that can be reached is" in message
    assert "--beta" in message


def test_an_infeasible_alpha_is_refused_with_the_best_one() -> None:
    predictor, options = (
        Rates(100e9, 100e9, meeting=1.0),
        SearchOptions(2, SearchLimits(alpha=0.1), even_if_slower=True),
    )
    with pytest.raises(DesignError, match=r"alpha = 0\.1 .*the least that can be reached is .*--alpha"):
        search(prepared("resnet18"), predictor, options)


def test_infeasible_min_macs_are_refused_with_the_best_ones() -> None:
    with pytest.raises(DesignError, match=r"min_macs = 3 .*the most that can be reached is 1\.\d.*--min-macs"):
        search(prepared("resnet18"), Rates(100e9, 100e9), SearchOptions(2, SearchLimits(min_macs=3.0)))


@pytest.mark.parametrize("predictor", [Rates(100e9, 100e9, together=3.0), Rates(100e9, 100e9, meeting=1.0)])
def test_a_best_effort_finds_designs_where_none_is_within_alpha_and_beta(predictor: Rates) -> None:
    """As where other programs take the time of the processors: branches, or what they exchange, seem slow."""
    plan, limits = prepared("resnet18"), SearchLimits(alpha=0.1)
    with pytest.raises(DesignError) as caught:
        search(plan, predictor, SearchOptions(2, limits, even_if_slower=True))
    forced = SearchOptions(2, limits, designs=2, best_effort=True, even_if_slower=True)
    designs, report = search(plan, predictor, forced)
    assert str(caught.value).startswith(report.lifted)
    assert "--" not in report.lifted  # the advice is taken already
    assert report.lifted in report.lifted_note
    assert (report.limits.alpha, report.limits.beta) == (math.inf, math.inf)
    for design in designs:
        assert design.meeting_points
        for segment in design.segments:
            if len(segment.branches) > 1:
                whole = segment_cost(plan, Segment(segment.first, segment.stop)).macs
                assert sum(branch.macs for branch in segment.branches) >= 0.8 * whole  # as the other limits say


def test_a_best_effort_keeps_the_limits_that_can_be_kept() -> None:
    plan, predictor = prepared_small(), Rates(100e9, 70e9)
    usual, _ = search(plan, predictor, SearchOptions(2))
    designs, report = search(plan, predictor, SearchOptions(2, best_effort=True))
    assert (report.lifted, report.lifted_note, report.limits.alpha) == ("", "", 0.3)
    assert [design.id for design in designs] == [design.id for design in usual]
    with pytest.raises(DesignError, match="min_macs = 3 "):
        search(plan, predictor, SearchOptions(2, SearchLimits(min_macs=3.0), best_effort=True))


def test_segments_are_left_whole_where_branching_would_not_be_faster() -> None:
    class Uneven(Rates):
        """Meetings at large maps are dear; the last segment reads an 8x8 map."""

        def meeting_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
            return 1.0 if 8 < tensor.shape[2] < 64 else 1e-6

    options = SearchOptions(2, SearchLimits(beta=0.99), splits=False)
    designs, _ = search(prepared("resnet18"), Uneven(100e9, 90e9), options)
    # The image can be read by all; between it and the 8x8 map there is no place to meet.
    assert all(len(segment.branches) == 1 or segment.stop >= 8 for segment in designs[0].segments)
    branched = rebuild(resnet(), IMAGES, designs[0])
    assert count_macs(branched, IMAGES) == designs[0].macs


def test_branches_meet_before_they_have_done_too_much() -> None:
    plan = prepared("resnet18")
    for share in (0.2, 0.5):
        designs, _ = search(plan, Rates(100e9, 90e9), SearchOptions(2, SearchLimits(max_segment=share)))
        for segment in designs[0].segments:
            macs = segment_cost(plan, Segment(segment.first, segment.stop)).macs
            is_one_block = segment.stop - segment.first == 1
            assert len(segment.branches) == 1 or is_one_block or macs <= share * designs[0].original_macs


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


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet18", Family.RESIDUAL),
        ("resnet50", Family.BOTTLENECK),
        ("regnet_x_1_6gf", Family.GROUPED),
        ("mobilenetv2", Family.INVERTED),
        ("vgg16", Family.PLAIN),
    ],
)
def test_families(name: str, family: Family) -> None:
    assert family_of(blueprint(zoo.build(name, num_classes=10, small_images=True), IMAGES).traced) is family


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenetv2", "squeezenet1_1"])
@settings(max_examples=10)
@given(data=st.data())
def test_a_family_gives_the_layers_for_any_number_of_channels(name: str, data: st.DataObject) -> None:
    plan = prepared(name)
    first = data.draw(st.integers(1, len(plan.traced.blocks) - 1))
    segment = Segment(first, data.draw(st.integers(first + 1, min(first + 4, len(plan.traced.blocks)))))
    part = plan.whole(segment)
    counts = kept_counts(part, data.draw(st.sampled_from([0.25, 0.5, 1.0])), 8)
    before = plan.channels_before(segment.first)
    family = layer_family(part, counts, exact=False)
    channels = 8 * data.draw(st.integers(1, before // 4))
    reads = {part.source: TensorChannels(channels, exact=False)}
    expected = Counter(layer.workload for layer in part_layers(part, counts, reads).layers)
    found = [*family.fixed.layers, *(layer.at(channels) for layer in family.varying)]
    assert Counter(layer.workload for layer in found) == expected
    assert family.macs(channels) == part_cost(part, counts, reads).macs


@cache
def prepared(name: str) -> Blueprint:
    """Traced once for all searches, which do not change it."""
    return blueprint(zoo.build(name, num_classes=10, small_images=True), IMAGES)


@cache
def prepared_small() -> Blueprint:
    """As `prepared`, of `small`."""
    return blueprint(small(), IMAGES)


@cache
def tiny() -> Blueprint:
    """As `prepared`, of a chain of four blocks and a head."""
    return blueprint(small(1), IMAGES, 16)


def test_equal_searches_give_equal_designs() -> None:
    def run() -> tuple[list[str], SearchReport]:
        designs, report = search(blueprint(small(), IMAGES), Rates(100e9, 70e9), SearchOptions(2))
        return [design.to_json() for design in designs], report

    assert run() == run()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"min_depth": 1.5}, "min_depth is 1.5"),
        ({"min_width": 0.0}, "min_width is 0.0"),
        ({"min_macs": -0.1}, "min_macs is -0.1"),
        ({"max_segment": 2.0}, "max_segment is 2.0"),
        ({"target_ms": 0.0}, "target_ms is 0.0"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, float], words: str) -> None:
    with pytest.raises(DesignError, match=re.escape(words)) as caught:
        search(prepared_small(), Rates(1e11, 1e11), SearchOptions(limits=SearchLimits(**limits)))
    assert "\n" not in str(caught.value)


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
