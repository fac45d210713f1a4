"""The search space: its widths, depths and boundaries, and the order of what dynamic programming finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import nn

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import (
    SearchSpace,
    SegmentCandidate,
    candidate_boundaries,
    coarse_search_space,
    fine_search_space,
    segment_candidates,
)
from nnstretch.branching.search.dynamic_programming import DynamicProgram, NetworkCandidate, merged_choices
from nnstretch.branching.search.head_candidates import HeadCandidate, head_candidates
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import State
from nnstretch.branching.search.whole_blocks import WholeBlockWays
from nnstretch.branching.tracing.trace import Segment
from nnstretch.support.progress import silent
from tests.kits.networks.searched_networks import Rates, prepared_small, tiny

Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Blocks of a branch, and channels of its dependency groups."""


def table(plan: Blueprint, *rates: float) -> LatencyTable:
    return LatencyTable(plan, Rates(*(rates or (100e9, 70e9))), len(rates) or 2)


def shapes(plan: Blueprint, segment: Segment, widths: Sequence[float], least_depth: float) -> Mapping[Shape, float]:
    """All branches of some widths, and the least width that makes each."""
    made: dict[Shape, float] = {}
    for blocks in plan.depth_candidates(segment, least_depth):
        for width in widths:
            shape = blocks, kept_counts(plan.branch(segment, blocks), width, plan.multiple)
            made[shape] = min(width, made.get(shape, math.inf))
    return made


def as_shapes(plan: Blueprint, segment: Segment, branches: Sequence[BranchChoice]) -> list[tuple[Shape, float]]:
    return [
        ((b.blocks, kept_counts(plan.branch(segment, b.blocks), b.width, plan.multiple)), b.width) for b in branches
    ]


@pytest.mark.parametrize("least", [0.25, 0.3, 1.0])
def test_the_coarse_space_has_all_eighths_of_widths(least: float) -> None:
    """And the least width, each shape of layers once, on every processor; segments are all that can be branched."""
    plan, limits = prepared_small(), SearchLimits(min_width=least, min_depth=0.5, max_segment=1.0)
    blocks = range(len(plan.traced.blocks))
    space = coarse_search_space(table(plan), limits, [*blocks, len(blocks)], silent)
    segments = [Segment(a, b) for a in blocks for b in range(a + 1, len(blocks) + 1)]
    assert set(space) == {segment for segment in segments if plan.branchable(segment)}
    widths = [least, *(eighths / 8 for eighths in range(1, 9) if eighths / 8 > least)]
    for segment, options in space.items():
        by_processor = options.branches
        assert [{branch.processor for branch in branches} for branches in by_processor] == [{0}, {1}]
        for branches in by_processor:
            found = as_shapes(plan, segment, branches)
            assert dict(found) == shapes(plan, segment, widths, 0.5)
            assert len(found) == len(dict(found))


def test_long_segments_are_left_out_of_the_coarse_space() -> None:
    plan, blocks = prepared_small(), range(len(prepared_small().traced.blocks) + 1)
    latencies, limits = table(plan), SearchLimits(min_width=0.5, min_depth=0.5, max_segment=0.5)
    whole = latencies.original_macs(Segment(0, blocks[-1]))
    space = coarse_search_space(latencies, limits, blocks, silent)
    candidates = [segment for pair in itertools.combinations(blocks, 2) if plan.branchable(segment := Segment(*pair))]
    shares = {segment: latencies.original_macs(segment) / whole for segment in candidates}
    assert set(space) == {one for one in candidates if shares[one] <= 0.5 or len(one.blocks) == 1}
    assert max(shares.values()) > 0.5


@pytest.mark.parametrize("centre", [0.5, 0.75, 1.0, 0.28125])
def test_the_fine_space_surrounds_a_design(centre: float) -> None:
    """By an eighth to either side, in thirty-seconds, and by one block; where it has no branch, there is nothing."""
    plan, limits = prepared_small(), SearchLimits(min_width=0.25, min_depth=0.5)
    first, rest = Segment(1, 3), Segment(3, len(plan.traced.blocks))
    assert plan.branchable(first)
    own = [BranchChoice(0, tuple(first.blocks), centre), BranchChoice(2, tuple(first.blocks), 0.5)]
    choices = [SegmentChoice(first, tuple(own)), SegmentChoice(rest, (BranchChoice.whole(rest, 1),))]
    space = fine_search_space(table(plan, 1e11, 1e11, 1e11), limits, choices, {})
    assert list(space) == [first]
    on_first, on_second, on_third = space[first].branches
    assert not on_second
    for branches, width in ((on_first, centre), (on_third, 0.5)):
        steps = [width + step / 32 for step in range(-4, 5)]
        wanted = shapes(plan, first, [w for w in steps if 0.25 <= w <= 1], 0.5)
        near = {shape: w for shape, w in wanted.items() if len(first.blocks) - len(shape[0]) <= 1}
        assert dict(as_shapes(plan, first, branches)) == near


def test_every_fine_width_is_near_a_coarse_one() -> None:
    """So that no width in steps of 1/32 is left out wherever the coarse search ends."""
    plan, limits = tiny(), SearchLimits(min_width=0.25, min_depth=1.0, max_segment=1.0)
    latencies, segment = table(plan), Segment(1, 2)
    coarse = coarse_search_space(latencies, limits, [1, 2], silent)[segment].branches[0]
    found: set[Shape] = set()
    for branch in coarse:
        pair = SegmentChoice(segment, (branch, BranchChoice(1, branch.blocks, branch.width)))
        found.update(
            shape
            for shape, _ in as_shapes(
                plan, segment, fine_search_space(latencies, limits, [pair], {})[segment].branches[0]
            )
        )
    assert found == set(shapes(plan, segment, [step / 32 for step in range(8, 33)], 1.0))


def chain(count: int) -> Blueprint:
    """Equal convolutions in a row."""
    body = [nn.Conv2d(16 if n else 3, 16, 3, padding=1) for n in range(count)]
    network = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    return blueprint(network.eval(), torch.zeros(1, 3, 16, 16), 8)


def test_boundaries_of_a_long_chain_divide_its_work_evenly() -> None:
    plan = chain(60)
    latencies = table(plan)
    borders = candidate_boundaries(latencies, silent)
    count = len(plan.traced.blocks)
    assert (borders[0], borders[-1], len(borders)) == (0, count, 25)
    assert borders == sorted(set(borders))
    spans = [min(latencies.original(Segment(*pair))) for pair in itertools.pairwise(borders)]
    block = max(min(latencies.original(Segment(n, n + 1))) for n in range(count))
    assert max(spans) <= sum(spans) / len(spans) + 2 * block
    few = chain(20)
    assert candidate_boundaries(table(few), silent) == list(range(len(few.traced.blocks) + 1))


# ---- dynamic programming


def program(plan: Blueprint, latencies: LatencyTable, limits: SearchLimits, space: SearchSpace) -> DynamicProgram:
    by_first: dict[int, list[Segment]] = {}
    for segment in space:
        by_first.setdefault(segment.first, []).append(segment)

    def candidates(segment: Segment, state: State) -> list[SegmentCandidate]:
        return segment_candidates(latencies, segment, space[segment], limits, state.channels, exact=state.exact)

    def heads(state: State) -> list[HeadCandidate]:
        return head_candidates(latencies, limits, {plan.head.source: state})

    return DynamicProgram(latencies, by_first, candidates, heads, WholeBlockWays(latencies))


def front_of(plan: Blueprint, *rates: float) -> list[NetworkCandidate]:
    latencies, limits = table(plan, *rates), SearchLimits(min_width=0.25, min_depth=0.5, min_macs=0.5)
    space = coarse_search_space(latencies, limits, range(len(plan.traced.blocks) + 1), silent)
    return program(plan, latencies, limits, space).run(lambda *_: None)


@pytest.mark.parametrize("rates", [(100e9, 70e9), (100e9, 100e9)])
def test_a_front_ascends_in_macs_and_seconds(rates: tuple[float, ...]) -> None:
    """No network of it has both more MACs and fewer seconds, or one of these and the same of the other."""
    front = front_of(tiny(), *rates)
    assert len(front) > 3
    for one, other in itertools.pairwise(front):
        assert one.macs < other.macs
        assert one.seconds < other.seconds


def test_of_ways_that_take_equally_long_the_one_with_most_macs_is_on_the_front() -> None:
    """Heads of the same seconds make every network twice, once with more MACs."""
    plan = tiny()
    latencies, limits = table(plan), SearchLimits(min_width=0.25, min_depth=0.5, min_macs=0.5)
    space = coarse_search_space(latencies, limits, range(len(plan.traced.blocks) + 1), silent)
    more = plan.original_cost.macs // 100
    dynamic = program(plan, latencies, limits, space)

    def fronts(*macs: int) -> list[NetworkCandidate]:
        def heads(_state: State) -> list[HeadCandidate]:
            return [HeadCandidate((), 1e-3, added) for added in macs]

        return replace(dynamic, heads=heads).run(lambda *_: None)

    once, twice = fronts(more), fronts(0, more)
    assert [(one.seconds, one.macs) for one in twice] == [(one.seconds, one.macs) for one in once]


def test_segments_of_a_network_are_its_chain_in_order() -> None:
    """What lies on one processor is one segment, unless it is split over others or branches lie between."""
    plan = tiny()
    count = len(plan.traced.blocks)
    for network in front_of(plan):
        segments = [choice.segment for choice in network.choices]
        assert [s.first for s in segments] == [0, *(s.stop for s in segments[:-1])]
        assert segments[-1].stop == count
        for one, other in itertools.pairwise(network.choices):
            alone = len(one.branches) == len(other.branches) == 1
            assert not alone or (one.branches[0].processor, one.split) != (other.branches[0].processor, other.split)


def test_blocks_are_merged_with_those_before_them() -> None:
    """Each with what lies directly before it, in the order of the chain; of several in bands, none."""
    plan = chain(9)
    one = [Segment(n, n + 1) for n in range(9)]

    def on(n: int, processor: int) -> SegmentChoice:
        return SegmentChoice(one[n], (BranchChoice.whole(one[n], processor),))

    branched = SegmentChoice(one[3], (BranchChoice(0, (3,), 0.5), BranchChoice(1, (3,), 0.5)))
    banded = SegmentChoice.split_over(Segment(6, 8), (0, 1))
    ends = [SegmentChoice.split_over(one[n], (0, 1)) for n in (5, 8)]
    given = [on(0, 1), on(1, 1), on(2, 0), branched, on(4, 0), ends[0], banded, ends[1]]
    whole = SegmentChoice(Segment(0, 2), (BranchChoice.whole(Segment(0, 2), 1),))
    assert merged_choices(plan.traced, given) == (whole, *given[2:])
    split = [
        SegmentChoice.split_over(segment, group)
        for segment, group in zip(one[:3], ((0, 1), (0, 1), (0, 2)), strict=True)
    ]
    assert merged_choices(plan.traced, split) == (SegmentChoice.split_over(Segment(0, 2), (0, 1)), split[2])
