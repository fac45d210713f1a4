"""Predictions of the search: layers, fused pairs and transfers; agreement with the exported graph."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.branching.channels.scaling import TensorChannels, kept_counts
from nnstretch.branching.design.accounting import count_macs
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.latency.workloads import LayerRow, layer_family, part_layers
from nnstretch.branching.search.network_latency import branch_seconds, network_prediction
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.branching.tracing.operators import shape_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.control import single_branch_control
from nnstretch.branching.transform.network import export_branched
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.layers import layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from tests.kits.networks.searched_networks import (
    IMAGES,
    Rates,
    prepared,
    prepared_small,
    tiny,
)


def test_few_distinct_layers_are_predicted() -> None:
    predictor = Rates(100e9, 70e9)
    _, report = search(prepared("resnet18"), predictor, SearchOptions(2))
    assert report.predicted_workloads == len(predictor.asked)
    assert report.predicted_workloads <= 2200  # all of them could be measured in minutes


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


@pytest.mark.parametrize("share", [0.4, 0.75, 1.0, 1.5])
def test_the_share_of_the_control_is_that_of_its_exported_graph(share: float) -> None:
    class Slow(Rates):
        """A fixed time per layer makes narrower networks less efficient."""

        def layer_seconds(self, layer: Layer, processor: int) -> float:
            return super().layer_seconds(layer, processor) + 1e-5

    plan, predictor = prepared_small(), Slow(60e9, 100e9)
    original = plan.traced.graph
    macs = round(share * count_macs(original, IMAGES))
    control = original if share >= 1 else single_branch_control(original, IMAGES, macs, plan.multiple)
    times = [
        sum(predictor.layer_seconds(node.layer, 1) for node in layers(optimize(export(module, IMAGES))))
        for module in (control, original)
    ]
    found = LatencyTable(plan, predictor, 2).control_share(macs)
    assert found == pytest.approx(times[0] / times[1])
    assert found > share or share >= 1


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
    assert latencies.rows.seconds(LayerRow(layers, frozenset(transitions)), 0) == pytest.approx(best)


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
