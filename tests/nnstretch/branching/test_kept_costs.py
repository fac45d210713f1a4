"""What a search prices once and combines many times: fronts of branches, costs of branches, and ways without branches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.branching.channels.scaling import TensorChannels
from nnstretch.branching.design.blueprint import BranchChoice
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import SegmentOptions, _front
from nnstretch.branching.search.network_latency import State
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment
from nnstretch.graph.bands import rows_of
from nnstretch.graph.layer import Layer
from tests.kits.networks.searched_networks import Rates, tiny


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 5)), max_size=40))
def test_a_front_holds_for_each_number_of_channels_what_no_other_beats(found: list[tuple[int, int, int]]) -> None:
    channels, seconds, macs = np.array(found, np.float64).reshape(-1, 3).T
    kept = _front(channels, seconds, macs).tolist()
    assert len(set(kept)) == len(kept)
    for place, (width, time, work) in enumerate(found):
        better = [
            other
            for number, (other_width, other_time, other_work) in enumerate(found)
            if other_width == width and number != place and other_time <= time and other_work >= work
            for other in [(other_time, -other_work)]
        ]
        if (time, -work) > min(better, default=(math.inf, 0)):
            assert place not in kept
        elif not better:
            assert place in kept
    on_front = {found[place] for place in kept}
    for width, time, work in found:
        assert any(w == width and t <= time and m >= work for w, t, m in on_front)


def test_branches_and_blocks_are_priced_again_after_new_measurements() -> None:
    plan, predictor = tiny(), Rates(1e9, 2e9)
    latencies = LatencyTable(plan, predictor, 2, splits=True)
    segment, state = Segment(1, 2), State(plan.channels_before(1), exact=True, home=(0,))
    options = SegmentOptions([[BranchChoice(p, (1,), 0.5)] for p in (0, 1)])
    ways = WholeBlockWays(latencies)

    def priced() -> tuple[list[float], list[float]]:
        costs = options.costs(latencies, segment, (0, 1), state.channels, exact=True)
        return [float(cost.seconds[0]) for cost in costs], [way.seconds for way in ways.of(1, state)]

    before = priced()
    predictor.rates = (0.5e9, 1e9)
    assert priced() == before
    latencies.forget()
    branches, blocks = priced()
    assert all(new > 1.5 * old for new, old in zip(branches, before[0], strict=True))
    assert all(new > 1.2 * old for new, old in zip(blocks, before[1], strict=True))


class Copies(Rates):
    """Notes the copies of rows that it is asked for."""

    def __init__(self, *rates: float) -> None:
        super().__init__(*rates)
        self.cut: set[tuple[str, int]] = set()

    def seconds(self, found: list[Layer], processor: int, /) -> float:
        self.cut.update((str(one.type_of(0)), rows_of(one.outputs[0])) for one in found if one.op == "Slice")
        return super().seconds(found, processor)


def test_one_copy_of_rows_of_each_image_is_predicted() -> None:
    """Bands of all sizes are priced from it."""
    plan, predictor = tiny(), Copies(1e9, 1.3e9)
    latencies = LatencyTable(plan, predictor, 2, splits=True)
    ways = WholeBlockWays(latencies)
    for block in range(len(plan.traced.blocks)):
        for home in ((0,), (1,)):
            found = ways.of(block, State(plan.channels_before(block), exact=True, home=home))
            assert any(way.choice.split for way in found)
    images = [image for image, _ in predictor.cut]
    assert images
    assert len(images) == len(set(images))


def test_bands_cost_more_with_a_larger_share_of_the_rows() -> None:
    plan = tiny()
    latencies = LatencyTable(plan, Rates(1e9, 1e9), 2, splits=True)
    part = latencies.block_in_bands(0, TensorChannels(plan.channels_before(0), exact=True))
    assert part is not None
    layers = latencies._split_layers
    half, whole = (layers._cut_seconds(part.source, share, 0) for share in (0.5, 1.0))
    assert whole == pytest.approx(2 * half)
