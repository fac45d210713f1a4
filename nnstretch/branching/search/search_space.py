"""The search space: where branches may meet, and which branches each segment may have."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from nnstretch.branching.design.blueprint import BranchChoice
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import PruningStatistics, branch_candidates, segment_candidates
from nnstretch.branching.search.dynamic_programming import NetworkCandidate
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.tracing.trace import Segment
from nnstretch.support.progress import Progress

_BOUNDARIES = 24  # maximum number of candidate meeting points
_COARSE = 8  # the coarse search uses width ratios k / 8
_FINE = 32  # the fine search uses steps of 1 / 32
_REACH = 4  # fine steps to either side

SearchSpace = Mapping[Segment, Sequence[Sequence[BranchChoice]]]
"""Candidate branches by segment and processor."""


def candidate_boundaries(latencies: LatencyTable, progress: Progress) -> list[int]:
    """Numbers of the blocks before which branches may meet.

    All block boundaries; in long chains, a subset that divides the work evenly and keeps the ends of stages.
    """
    traced = latencies.blueprint.traced
    count = len(traced.blocks)
    borders = list(range(count + 1))
    stages = {stage.first for stage in traced.stages} | traced.skip_boundaries
    cost = []
    for i in range(count):
        progress(i, count, "predicting the original blocks")
        cost.append(min(latencies.original(Segment(i, i + 1))))
    total = list(itertools.accumulate(cost, initial=0.0))
    while len(borders) > _BOUNDARIES + 1:
        inner = [b for b in borders[1:-1] if b not in stages] or borders[1:-1]
        place = {b: i for i, b in enumerate(borders)}
        # Remove the boundary whose removal creates the shortest segment; ends of stages go last.
        worst = min(inner, key=lambda b: total[borders[place[b] + 1]] - total[borders[place[b] - 1]])
        borders.remove(worst)
    return borders


def coarse_search_space(
    latencies: LatencyTable, limits: SearchLimits, boundaries: Sequence[int], progress: Progress
) -> SearchSpace:
    """Branches of all depths on a coarse grid of widths, for every segment that can be branched."""
    min_width, min_depth = _least(limits)
    grid = [i / _COARSE for i in range(1, _COARSE + 1) if i / _COARSE >= min_width]
    widths = sorted({*grid, min_width})
    choices = {}
    segments = list(itertools.starmap(Segment, itertools.combinations(boundaries, 2)))
    for number, segment in enumerate(segments):
        progress(number, len(segments), "listing depths and widths")
        if not _may_be_branched(latencies, limits, segment):
            continue
        choices[segment] = [
            branch_candidates(latencies, segment, processor, widths, min_depth)
            for processor in range(latencies.processors)
        ]
    return choices


def fine_search_space(latencies: LatencyTable, limits: SearchLimits, centre: NetworkCandidate) -> SearchSpace:
    """Branches next to those of a network candidate, in fine width steps; for its branched segments only."""
    choices = {}
    for choice in centre.choices:
        if len(choice.branches) > 1:
            own = {branch.processor: branch for branch in choice.branches}
            choices[choice.segment] = [
                _neighbours(latencies, limits, choice.segment, own[p]) if p in own else []
                for p in range(latencies.processors)
            ]
    return choices


def collect_statistics(
    latencies: LatencyTable, limits: SearchLimits, choices: SearchSpace, progress: Progress
) -> dict[Segment, PruningStatistics]:
    """Pruning statistics of every segment, as if it read what it reads in the original network."""
    statistics = {}
    for number, (segment, branches) in enumerate(choices.items()):
        progress(number, len(choices), "predicting branches")
        statistics[segment] = PruningStatistics()
        channels = latencies.blueprint.channels_before(segment.first)
        segment_candidates(latencies, segment, branches, limits, channels, exact=False, statistics=statistics[segment])
    progress(len(choices), len(choices), "predicting branches")
    return statistics


def _may_be_branched(latencies: LatencyTable, limits: SearchLimits, segment: Segment) -> bool:
    """Whether a segment's channels can be divided, its MACs are within the limit, and its latency can be predicted."""
    traced, alone = latencies.blueprint.traced, segment.stop - segment.first == 1
    if not any(block.has_weights for block in traced.blocks_of(segment)) or not min(latencies.original(segment)):
        return False
    whole = latencies.original_macs(Segment(0, len(traced.blocks)))
    if not alone and latencies.original_macs(segment) > limits.max_segment * whole:
        return False
    return latencies.blueprint.branchable(segment)


def _neighbours(
    latencies: LatencyTable, limits: SearchLimits, segment: Segment, choice: BranchChoice
) -> list[BranchChoice]:
    """Branches up to one block deeper or shallower, and up to `_REACH` fine steps wider or narrower."""
    min_width, min_depth = _least(limits)
    widths = [choice.width + step / _FINE for step in range(-_REACH, _REACH + 1)]
    allowed = [width for width in widths if min_width <= width <= 1.0]
    options = branch_candidates(latencies, segment, choice.processor, allowed, min_depth)
    return [option for option in options if abs(len(option.blocks) - len(choice.blocks)) <= 1]


def _least(limits: SearchLimits) -> tuple[float, float]:
    """Minimum width and depth of a branch."""
    assert limits.min_width is not None
    assert limits.min_depth is not None
    return limits.min_width, limits.min_depth
