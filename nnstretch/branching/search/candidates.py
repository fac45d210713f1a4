"""The search space: where branches may meet, the branches of each segment, and the ways to combine them.

As in NN-Stretch, latency is a hard constraint: a branch may take `beta`, and a meeting point `alpha`, of the
original segment's latency on its fastest processor. Capacity is another. Of the candidates that meet both,
only those on the front of latency and MACs are kept.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.latency.table import BranchCost, LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.support.progress import Progress

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SegmentCandidate:
    """One way to compute a segment.

    Attributes:
        branches: one per participating processor; a single one computes the original segment.
        seconds: until the slowest branch has finished, contention included.
        macs: total of the branches.
        parts: channels that each branch writes.
        channels: channels of the tensor at the meeting point.
    """

    branches: tuple[BranchChoice, ...]
    seconds: float
    macs: int
    parts: tuple[int, ...]
    channels: int


STEPS = (
    "depths and widths of all branches",
    "branches within beta",
    "meeting points within alpha",
    "enough MACs",
    "on the front of latency and MACs for their width",
)
"""Pruning steps, in order."""


@dataclass
class PruningStatistics:
    """Numbers of candidates after each pruning step, and the limits that would leave one.

    Attributes:
        within: candidates after each step of `STEPS`.
        best_beta: smallest `beta` that leaves a branch on every processor.
        best_alpha: smallest `alpha` that leaves a candidate within `beta`.
        best_macs: largest MACs, over the original's, of the candidates within `alpha` and `beta`.
    """

    within: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    best_beta: float = math.inf
    best_alpha: float = math.inf
    best_macs: float = 0.0


@dataclass(frozen=True, eq=False)
class BranchCosts:
    """Costs of several branches as arrays: seconds of each on its processor alone, MACs, and channels that it writes."""

    seconds: _Numbers
    macs: _Numbers
    channels: _Numbers


@dataclass(eq=False)
class SegmentOptions:
    """The branches that a segment may have. Their costs are kept, because a search combines the same branches many times.

    Attributes:
        branches: by processor.
    """

    branches: Sequence[Sequence[BranchChoice]]
    _ends: dict[tuple[int, ...], list[list[BranchChoice]]] = field(default_factory=dict, init=False)
    _costs: dict[tuple[tuple[int, ...], int, bool], list[BranchCosts]] = field(default_factory=dict, init=False)
    _version: int = field(default=-1, init=False)

    def with_ends(self, latencies: LatencyTable, segment: Segment, group: tuple[int, ...]) -> list[list[BranchChoice]]:
        """The branches of every processor of a group, with the ends that the merge mode needs for a group of this size."""
        if group not in self._ends:
            meeting, count = latencies.blueprint.meeting, len(group)
            self._ends[group] = [
                [meeting(segment, [choice] * count)[place] for choice in self.branches[p]]
                for place, p in enumerate(group)
            ]
        return self._ends[group]

    def costs(
        self, latencies: LatencyTable, segment: Segment, group: tuple[int, ...], in_channels: int, *, exact: bool
    ) -> list[BranchCosts]:
        """Costs of the branches of every processor of a group, which read `in_channels` channels."""
        if self._version != latencies.version:
            self._costs.clear()
            self._version = latencies.version
        key = (group, in_channels, exact)
        if key not in self._costs:
            self._costs[key] = [
                _as_arrays([latencies.branch(segment, choice, in_channels, exact=exact) for choice in some])
                for some in self.with_ends(latencies, segment, group)
            ]
        return self._costs[key]


def _as_arrays(costs: Sequence[BranchCost]) -> BranchCosts:
    return BranchCosts(
        _numbers(cost.seconds for cost in costs),
        _numbers(cost.macs for cost in costs),
        _numbers(cost.channels for cost in costs),
    )


def branch_candidates(
    latencies: LatencyTable, segment: Segment, processor: int, widths: Sequence[float], min_depth: float
) -> list[BranchChoice]:
    """Branches of all depths and widths on one processor; of widths that round to the same layers, the smallest.

    Args:
        latencies: the network and its predictions.
        segment: where the branches lie.
        processor: index of their processor.
        widths: width ratios.
        min_depth: minimum share of blocks with weight layers.
    """
    blueprint = latencies.blueprint
    choices = []
    for blocks in blueprint.depth_candidates(segment, min_depth):
        plan = blueprint.branch(segment, blocks)
        seen = set()
        for width in sorted(widths):
            counts = kept_counts(plan, width, blueprint.multiple)
            if counts not in seen:
                seen.add(counts)
                choices.append(BranchChoice(processor, blocks, width))
    return choices


def segment_candidates(
    latencies: LatencyTable,
    segment: Segment,
    options: SegmentOptions,
    limits: SearchLimits,
    in_channels: int,
    *,
    exact: bool,
    statistics: PruningStatistics | None = None,
) -> list[SegmentCandidate]:
    """The ways to branch a segment that meet the limits and are on the front of latency and MACs.

    Args:
        latencies: predictions.
        segment: where the branches lie.
        options: candidate branches.
        limits: constraints; `options` respect `min_depth` and `min_width`.
        in_channels: channels of the segment's input.
        exact: these are the original channels, each once and in order.
        statistics: counts are added to it.
    """
    pruner = _Pruner(latencies, segment, limits, statistics or PruningStatistics())
    candidates: list[SegmentCandidate] = []
    for group in processor_groups(range(latencies.processors)):
        costs = options.costs(latencies, segment, group, in_channels, exact=exact)
        candidates += pruner.candidates(group, options.with_ends(latencies, segment, group), costs)
    return candidates


class _Pruner:
    """Prunes the candidates of one segment.

    All combinations of one branch per processor are evaluated as flat arrays, the last processor's branch
    varying fastest.
    """

    def __init__(
        self, latencies: LatencyTable, segment: Segment, limits: SearchLimits, statistics: PruningStatistics
    ) -> None:
        self.latencies, self.segment, self.limits, self.statistics = latencies, segment, limits, statistics
        self.fastest = min(latencies.original(segment))
        self.original_macs = latencies.original_macs(segment)

    def candidates(
        self, group: tuple[int, ...], choices: Sequence[Sequence[BranchChoice]], costs: Sequence[BranchCosts]
    ) -> list[SegmentCandidate]:
        """Candidates on a group of processors, for each of which `choices` lists the branches, and `costs` their costs."""
        factors = [self.latencies.contention_factor(self.segment, p, group) for p in group]
        seconds = [some.seconds * factor for some, factor in zip(costs, factors, strict=True)]
        kept = self._within_beta(seconds)
        if not all(map(len, kept)):
            return []
        merge = self.latencies.blueprint.merge
        total = _combined([some[k] for some, k in zip(seconds, kept, strict=True)], np.maximum)
        macs = _combined([some.macs[k] for some, k in zip(costs, kept, strict=True)], np.add)
        each = [some.channels[k] for some, k in zip(costs, kept, strict=True)]
        channels = _combined(each, np.maximum if merge is Merge.ADD else np.add)
        found = []
        for flat in self._best(group, total, macs, channels):
            places = np.unravel_index(flat, [len(k) for k in kept])
            branches = tuple(some[k[i]] for some, k, i in zip(choices, kept, places, strict=True))
            parts = tuple(int(some[i]) for some, i in zip(each, places, strict=True))
            merged = merged_channels(merge, parts)
            found.append(SegmentCandidate(branches, float(total[flat]), int(macs[flat]), parts, merged))
        return found

    def _within_beta(self, seconds: Sequence[_Numbers]) -> list[npt.NDArray[np.int64]]:
        """Positions of the branches within `beta`, by processor; empty for all if a processor has no branch."""
        statistics = self.statistics
        statistics.within[0] += math.prod(map(len, seconds))
        if not all(map(len, seconds)):
            return [np.empty(0, np.int64) for _ in seconds]
        slowest = max(float(some.min()) for some in seconds)
        statistics.best_beta = min(statistics.best_beta, slowest / self.fastest)
        kept = [np.flatnonzero(some <= self.limits.beta * self.fastest) for some in seconds]
        statistics.within[1] += math.prod(map(len, kept))
        return kept

    def _best(self, group: tuple[int, ...], total: _Numbers, macs: _Numbers, channels: _Numbers) -> list[int]:
        """Positions of the combinations within `alpha` with enough MACs that are on the front of latency and MACs."""
        limits, statistics = self.limits, self.statistics
        meeting = _meeting_seconds(self.latencies, self.segment, group, channels)
        statistics.best_alpha = min(statistics.best_alpha, float(meeting.min()) / self.fastest)
        near = meeting <= limits.alpha * self.fastest
        statistics.within[2] += int(near.sum())
        most = float(macs[near].max(initial=0.0)) / max(self.original_macs, 1)
        statistics.best_macs = max(statistics.best_macs, most)
        enough = np.flatnonzero(near & (macs >= limits.min_macs * self.original_macs))
        statistics.within[3] += len(enough)
        best = enough[_front(channels[enough], total[enough] + meeting[enough], macs[enough])]
        statistics.within[4] += len(best)
        return [int(flat) for flat in best]


def _numbers(values: Iterable[float]) -> _Numbers:
    return np.fromiter(values, dtype=np.float64)


def _combined(parts: Sequence[_Numbers], function: np.ufunc) -> _Numbers:
    """`function` over all combinations of one element per part, the last part varying fastest."""
    result = parts[0]
    for part in parts[1:]:
        result = function.outer(result, part)
    return np.asarray(result, dtype=np.float64).reshape(-1)


def _meeting_seconds(latencies: LatencyTable, segment: Segment, group: tuple[int, ...], channels: _Numbers) -> _Numbers:
    """Seconds of the meeting point of a group of processors for every number of channels."""
    widths, places = np.unique(channels, return_inverse=True)
    seconds = [latencies.meeting(segment.stop, int(width), group, group) for width in widths]
    return np.asarray(np.array(seconds)[places.reshape(-1)], dtype=np.float64)


def _front(channels: _Numbers, seconds: _Numbers, macs: _Numbers) -> npt.NDArray[np.int64]:
    """Positions on the front of latency and MACs, separately for each number of channels."""
    order = np.lexsort((-macs, seconds, channels))
    if not len(order):
        return order
    # The MACs of each number of channels are moved above those of smaller ones, so that one running maximum serves all.
    widths = np.cumsum(np.diff(channels[order], prepend=channels[order[0]]) > 0)
    raised = macs[order] + widths * (float(macs.max()) + 1.0)
    most = np.maximum.accumulate(raised)
    return order[np.flatnonzero(raised > np.concatenate([[-1.0], most[:-1]]))]


_BOUNDARIES = 24  # maximum number of candidate meeting points
_COARSE = 8  # the coarse search uses width ratios k / 8
_FINE = 32  # the fine search uses steps of 1 / 32
_REACH = 4  # fine steps to either side

SearchSpace = Mapping[Segment, SegmentOptions]
"""Candidate branches by segment."""


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
        choices[segment] = SegmentOptions(
            [
                branch_candidates(latencies, segment, processor, widths, min_depth)
                for processor in range(latencies.processors)
            ]
        )
    return choices


def fine_search_space(
    latencies: LatencyTable,
    limits: SearchLimits,
    centre: Sequence[SegmentChoice],
    known: MutableMapping[SegmentChoice, SegmentOptions],
) -> SearchSpace:
    """Branches next to those of a network, in fine width steps; for its branched segments only.

    Args:
        latencies: the network and its predictions.
        limits: constraints, with the family's defaults.
        centre: the segments of the network.
        known: the options of segments of networks that were centres before; those of this one are added.
    """
    choices = {}
    for choice in centre:
        if len(choice.branches) > 1:
            if choice not in known:
                own = {branch.processor: branch for branch in choice.branches}
                known[choice] = SegmentOptions(
                    [
                        _neighbours(latencies, limits, choice.segment, own[p]) if p in own else []
                        for p in range(latencies.processors)
                    ]
                )
            choices[choice.segment] = known[choice]
    return choices


def collect_statistics(
    latencies: LatencyTable, limits: SearchLimits, choices: SearchSpace, progress: Progress
) -> dict[Segment, PruningStatistics]:
    """Pruning statistics of every segment, as if it read what it reads in the original network."""
    statistics = {}
    for number, (segment, options) in enumerate(choices.items()):
        progress(number, len(choices), "predicting branches")
        statistics[segment] = PruningStatistics()
        channels = latencies.blueprint.channels_before(segment.first)
        segment_candidates(latencies, segment, options, limits, channels, exact=False, statistics=statistics[segment])
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
