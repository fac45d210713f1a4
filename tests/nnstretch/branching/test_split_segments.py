"""Segments without branches whose layers are split over processors: against brute force, and beside whole and branched ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.branching.channels.scaling import ORIGINAL, TensorChannels
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import choices_of, make_design
from nnstretch.branching.latency.split_layers import Home, SplitCost, SplitLayers, processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.latency.workloads import LayerRow
from nnstretch.branching.search.dynamic_programming import merged_choices
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import branch_seconds, network_prediction, placed
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.branching.search.unbranched import split_seconds
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.compile import simulate_model
from nnstretch.compiler.costs import latency_predictor
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.simulated.profile import load_profile, save_profile
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.graph.slices import bounds, even_shares, layer_share
from tests.kits.hypothesis_examples import examples
from tests.kits.networks.searched_networks import IMAGES, Rates, every_design, tiny, within

LIMITS = SearchLimits(min_width=0.5, min_depth=0.5, beta=0.9, min_macs=0.7, max_segment=1.0)


class Pairs(Rates):
    """Every pair of processors has its own time to meet, for each element and besides."""

    def __init__(self, *rates: float, meeting: dict[frozenset[int], float], together: float = 1.0) -> None:
        super().__init__(*rates, together=together)
        self.pairs = meeting

    def meeting_seconds(self, tensor: TensorType, /, *ends: Collection[int]) -> float:
        crossing = [frozenset(pair) for pair in itertools.product(*ends) if pair[0] != pair[1]]
        return max((self.pairs[pair] * (1 + 1e-4 * tensor.elements) for pair in crossing), default=0.0)


def conv(name: str, reads: int, writes: int, size: int = 8, window: int = 1) -> Layer:
    tensors = TensorType((1, reads, size, size)), TensorType((writes, reads, window, window))
    pads = (window // 2,) * 4
    attributes: dict[str, Attribute] = {"groups": 1, "strides": (1, 1), "pads": pads, "dilations": (1, 1)}
    weight = np.zeros(tensors[1].shape, np.float32)
    return Layer(name, "Conv", tensors, (TensorType((1, writes, size, size)),), attributes, constants={1: weight})


def brute_force(
    predictor: Rates, row: LayerRow, group: Home, home: Home, least: float
) -> tuple[float, dict[Home, float]]:
    """The least seconds of all ways to compute a row of layers, and the same for every home of the result."""
    homes = [*((p,) for p in group), *processor_groups(group)]
    found: dict[Home, float] = {}
    for places in itertools.product(homes, repeat=len(row.layers)):
        seconds, held = 0.0, home
        for number, (layer, place) in enumerate(zip(row.layers, places, strict=True)):
            whole = {p: predictor.layer_seconds(layer, p) for p in place}
            shares = even_shares(layer.outputs[0].shape[1], whole) if len(place) > 1 else {place[0]: 0}
            fastest = min(predictor.layer_seconds(layer, p) for p in group)
            if shares is None or (len(place) > 1 and fastest < least):
                seconds = math.inf
                break
            if not (place == held and number in row.rereads) and {*place, *held} != {place[0]}:
                seconds += predictor.meeting_seconds(layer.type_of(0), held, place)
            parts = (
                [layer] if len(place) == 1 else [layer_share(layer, *bound) for bound in bounds(list(shares.values()))]
            )
            seconds += max(
                predictor.layer_seconds(part, p) * predictor.contention_factor(p, frozenset(place) - {p})
                for p, part in zip(place, parts, strict=True)
            )
            held = place
        found[held] = min(found.get(held, math.inf), seconds)
    return min(found.values()), found


@settings(max_examples=examples(60), deadline=None)
@given(
    rates=st.lists(st.sampled_from([1e9, 3e9, 10e9]), min_size=2, max_size=3),
    widths=st.lists(st.sampled_from([16, 32, 48, 100]), min_size=2, max_size=4),
    costs=st.lists(st.sampled_from([0.0, 1e-6, 1e-5, 1e-4]), min_size=3, max_size=3),
    rereads=st.sets(st.integers(1, 3)),
    together=st.sampled_from([1.0, 1.4]),
    least=st.sampled_from([1e-9, 5e-5]),
    data=st.data(),
)
def test_the_least_seconds_are_those_of_brute_force(
    rates: list[float],
    widths: list[int],
    costs: list[float],
    rereads: set[int],
    together: float,
    least: float,
    data: st.DataObject,
) -> None:
    pairs = [frozenset(pair) for pair in ((0, 1), (0, 2), (1, 2))]
    predictor = Pairs(*rates, meeting=dict(zip(pairs, costs, strict=True)), together=together)
    # Too few rows for bands.
    layers = [conv(f"c{n}", a, b, size=7) for n, (a, b) in enumerate(itertools.pairwise(widths))]
    row = LayerRow(tuple(layers), rereads=frozenset(n for n in rereads if n < len(layers)))
    group = data.draw(st.sampled_from(list(processor_groups(range(len(rates))))))
    home = data.draw(st.sampled_from([(p,) for p in range(len(rates))] + [group]))

    def meeting(tensor: TensorType, writers: Home, readers: Home) -> float:
        return predictor.meeting_seconds(tensor, writers, readers)

    asked: set[tuple[int, str]] = set()
    split = SplitLayers(predictor, meeting, least, asked)
    found = split.cost(row, group, home)
    seconds, ends = brute_force(predictor, row, group, home, least)
    assert found.seconds == pytest.approx(seconds)
    assert ends[found.home] == pytest.approx(seconds)
    assert len(asked) >= len({layer.workload for layer in layers})
    last = split.cost(row, group, home, is_last=True)
    gathered = [s + meeting(layers[-1].outputs[0], held, (p,)) for held, s in ends.items() for p in group]
    assert last.seconds == pytest.approx(min(gathered))


@pytest.mark.parametrize(("meeting", "together"), [(0.0, 1.0), (1e-4, 1.1)])
def test_layers_of_one_vector_are_computed_in_bands(meeting: float, together: float) -> None:
    """A row above the cut and one below it are computed twice for each layer; cuts and joins take a little."""
    predictor = Rates(1e9, 3e9, together=together)
    row = LayerRow(tuple(conv(f"c{n}", 16, 16, 64, 3) for n in range(4)))
    split = SplitLayers(predictor, lambda _, writers, readers: meeting * (writers != readers), 0.0, set())
    alone = sum(predictor.layer_seconds(layer, 1) for layer in row.layers)
    found = split.cost(row, (0, 1), (1,))
    assert found.home == (0, 1)
    assert found.seconds == pytest.approx(together * alone * 0.75 * (1 + 4 * 2 / 64) + 2 * meeting, rel=0.02)
    with_pool = LayerRow((*row.layers, replace(conv("p", 16, 16, 64), op="GlobalPool")))
    assert split.cost(with_pool, (0, 1), (1,)).home != (0, 1)


@pytest.mark.parametrize("meeting", [0.0, 1e-4])
def test_a_network_of_one_vector_is_predicted_in_bands(meeting: float) -> None:
    """Its four blocks meet once."""
    convolutions = [torch.nn.Conv2d(16 if n else 3, 16, 3, padding=1) for n in range(4)]
    network = torch.nn.Sequential(
        *convolutions, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)
    )
    plan, predictor = blueprint(network.eval(), IMAGES, 16), Rates(10e9, 10e9, meeting=meeting)
    alone = LatencyTable(plan, predictor, 2).original(Segment(0, len(plan.traced.blocks)))[0]
    seconds = split_seconds(LatencyTable(plan, predictor, 2, splits=True))
    assert seconds < 0.62 * alone + 2 * meeting
    choices = [SegmentChoice.split_over(Segment(0, 3), (0, 1)), SegmentChoice.split_over(Segment(3, 4), (0, 1))]
    assert merged_choices(plan.traced, choices) == tuple(choices)


def test_layers_that_take_no_time_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Rates(1e9, 1e9)
    monkeypatch.setattr(predictor, "layer_seconds", lambda *_: 0.0)
    row = LayerRow((conv("c0", 32, 32), conv("c1", 32, 32)))
    split = SplitLayers(predictor, lambda *_: 1.0, 0.0, set())
    assert split.cost(row, (0, 1), (0,)) == SplitCost(0.0, (0,))
    assert split.shares(row, (0, 1)) == {0: [], 1: []}


@settings(max_examples=examples(4), deadline=None)
@given(
    other=st.sampled_from([0.3, 0.7, 1.0]),
    meeting=st.sampled_from([0.0, 2e-6, 1e-5, 5e-5]),
    width=st.sampled_from([0.5, 0.75]),
    best_effort=st.booleans(),
)
def test_no_mixture_of_branched_split_and_whole_segments_is_ahead(
    other: float, meeting: float, width: float, best_effort: bool
) -> None:
    plan, predictor = tiny(), Rates(50e9, 50e9 * other, meeting=meeting)
    latencies = LatencyTable(plan, predictor, 2, splits=True)
    designs, report = search(plan, predictor, SearchOptions(2, LIMITS, designs=3, best_effort=best_effort))
    best = (designs[0].predicted_ms or 0.0) * 1e-3
    for choices in every_design(plan, (width,), LIMITS):
        if not any(len(choice.branches) > 1 for choice in choices) or not within(plan, latencies, choices, LIMITS):
            continue
        alone = [n for n, choice in enumerate(choices) if len(choice.branches) == 1]
        for kept in itertools.product((False, True), repeat=len(alone)):
            split = {n for n, is_split in zip(alone, kept, strict=True) if is_split}
            mixed = [replace(choice, split=(0, 1) if n in split else ()) for n, choice in enumerate(choices)]
            assert best <= network_prediction(latencies, mixed, branch_seconds(latencies, mixed)).seconds * (1 + 1e-9)
    whole, _ = search(plan, predictor, SearchOptions(2, LIMITS, designs=3, best_effort=best_effort, splits=False))
    assert best <= 1e-3 * (whole[0].predicted_ms or 0.0) * (1 + 1e-9)
    assert report.stays_unbranched == (designs[0].meeting_points == 0)


@settings(max_examples=examples(4), deadline=None)
@given(other=st.sampled_from([0.3, 0.7, 1.0]), meeting=st.sampled_from([0.0, 2e-6, 1e-5, 5e-5]))
def test_segments_without_branches_run_where_the_network_takes_least(other: float, meeting: float) -> None:
    plan, predictor = tiny(), Rates(50e9, 50e9 * other, meeting=meeting)
    for splits in (True, False):
        latencies = LatencyTable(plan, predictor, 2, splits=splits)

        def seconds(choices: Sequence[SegmentChoice], latencies: LatencyTable = latencies) -> float:
            return network_prediction(latencies, choices, branch_seconds(latencies, choices)).seconds

        for choices in itertools.islice(every_design(plan, (0.75,), LIMITS), 40):
            places = [
                [choice]
                if len(choice.branches) > 1
                else [SegmentChoice(choice.segment, (BranchChoice.whole(choice.segment, p),)) for p in (0, 1)]
                + [SegmentChoice.split_over(choice.segment, (0, 1))] * splits
                for choice in choices
            ]
            assert seconds(placed(latencies, choices)) == pytest.approx(
                min(map(seconds, itertools.product(*places))), rel=1e-9
            )


def split_design(plan: Blueprint) -> Design:
    count = len(plan.traced.blocks)
    first, rest = Segment(0, 2), Segment(2, count)
    branches = tuple(BranchChoice(p, tuple(rest.blocks), 0.75) for p in (0, 1))
    whole = BranchChoice.whole(first, 1)
    return make_design(plan, [SegmentChoice(first, (whole,), (0, 1)), SegmentChoice(rest, branches)])


def test_a_design_says_which_segments_are_split() -> None:
    plan = tiny()
    design = split_design(plan)
    assert [segment.split for segment in design.segments] == [(0, 1), ()]
    saved = Design.from_json(design.to_json())
    assert saved == design
    assert [choice.split for choice in choices_of(saved)] == [(0, 1), ()]
    whole = make_design(plan, [replace(choice, split=()) for choice in choices_of(design)])
    assert whole.id != design.id
    assert '"split"' not in whole.to_json()
    for wrong in ("[0]", "[1, 0]", '["cpu"]', "[0, 0]", "3"):
        text = design.to_json().replace('"split": [\n    0,\n    1\n   ]', f'"split": {wrong}')
        assert text != design.to_json()
        with pytest.raises(DesignError, match="split"):
            Design.from_json(text)


def test_a_pair_of_processors_pays_its_own_transfers() -> None:
    """The processors that meet cheaply share segments, although a third one is as fast."""
    dear, cheap = 1e-1, 1e-7
    meeting = {frozenset({0, 1}): cheap, frozenset({0, 2}): dear, frozenset({1, 2}): dear}
    predictor = Pairs(1e9, 1e9, 1e9, meeting=meeting)
    plan = tiny()
    designs, _ = search(plan, predictor, SearchOptions(3, LIMITS))
    shared = [{branch.processor for branch in s.branches} | {*s.split} for s in designs[0].segments]
    assert {0, 1} in shared
    assert all(2 not in some for some in shared)
    slowest, _ = search(plan, Pairs(1e9, 1e9, 1e9, meeting=dict.fromkeys(meeting, dear)), SearchOptions(3, LIMITS))
    assert (designs[0].predicted_ms or 0.0) < 0.9 * (slowest[0].predicted_ms or 0.0)


def test_split_segments_take_what_the_simulated_plan_takes(tmp_path: Path) -> None:
    """Prediction and placement agree where a block is split before the branches, and on the head."""
    soc = load_profile("phone")
    cpu = soc.processors["cpu"]
    pairs = tuple(replace(pair, sync_us=5.0, gb_per_s=20.0) for pair in soc.pairs)
    path = tmp_path / "equal.json"
    save_profile(replace(soc, processors=dict.fromkeys(soc.processors, cpu), pairs=pairs), path)
    opened = build_processors(f"sim:{path}/cpu,sim:{path}/gpu")
    plan, predictor = tiny(), latency_predictor(opened)
    design = split_design(plan)
    _, timeline = simulate_model(export_branched(build(plan, design), IMAGES), opened)
    latencies, choices = LatencyTable(plan, predictor, 2, splits=True), choices_of(design)
    predicted = network_prediction(latencies, choices, branch_seconds(latencies, choices))
    assert predicted.segments[0].split == (0, 1)
    assert predicted.to_json(("a", "b"))["segments"][0]["split"] == ["a", "b"]
    whole = [replace(choice, split=()) for choice in choices]
    assert predicted.seconds < 0.98 * network_prediction(latencies, whole, branch_seconds(latencies, whole)).seconds
    assert timeline.total * 1e-9 == pytest.approx(predicted.seconds, rel=0.05)


def test_an_input_of_other_channels_costs_no_less_than_its_own() -> None:
    plan = tiny()
    latencies = LatencyTable(plan, Rates(1e9, 1e9), 2, splits=True)
    block = plan.whole(Segment(2, 3))
    full = plan.channels_before(2)
    exact = latencies.split(block, (0, 1), (0, 1), ORIGINAL)
    near = latencies.split_near(block, (0, 1), (0, 1), TensorChannels(full, exact=True))
    assert near == exact
    fewer = latencies.split_near(block, (0, 1), (0, 1), TensorChannels(full - 1, exact=False))
    assert fewer.seconds >= exact.seconds * (1 - 1e-9)
