"""The ways to branch one segment, and the constraints that leave few of them.

After NN-Stretch: latency is a hard constraint (a branch may take `beta` of what the segment takes on its fastest processor, a
meeting point `alpha` of it), and so is enough capacity; among what is left, no way is kept that is beaten by another in both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.blueprint import BranchChoice
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SegmentCandidate:
    """One way to compute a segment.

    Attributes:
        branches: one per processor that takes part; a single one computes the segment as it was.
        seconds: until the slowest branch is done, slowed down by the others.
        macs: of all branches.
        parts: channels that each of them writes.
        channels: of the meeting point's tensor.
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
    "not beaten in latency and MACs by others of the same width",
)
"""Steps of pruning."""


@dataclass
class PruningStatistics:
    """Ways to branch a segment after each step of pruning, and what the limits would have to be to leave one.

    Attributes:
        within: number of ways after each step of `STEPS`.
        best_beta: the least `beta` that leaves every processor a branch.
        best_alpha: the least `alpha` that leaves a way within `beta`.
        best_macs: most MACs, over the original's, of the ways within `alpha` and `beta`.
    """

    within: list[int] = field(default_factory=lambda: [0] * len(STEPS))
    best_beta: float = math.inf
    best_alpha: float = math.inf
    best_macs: float = 0.0


def branch_candidates(
    latencies: LatencyTable, segment: Segment, processor: int, widths: Sequence[float], min_depth: float
) -> list[BranchChoice]:
    """Branches of all depths and widths; of widths that round to the same layers the smallest."""
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


def processor_groups(processors: int) -> Iterator[tuple[int, ...]]:
    """All groups of two processors or more."""
    for size in range(2, processors + 1):
        yield from itertools.combinations(range(processors), size)


def segment_candidates(
    latencies: LatencyTable,
    segment: Segment,
    choices: Sequence[Sequence[BranchChoice]],
    limits: SearchLimits,
    in_channels: int,
    *,
    exact: bool,
    statistics: PruningStatistics | None = None,
) -> list[SegmentCandidate]:
    """The ways to branch a segment within the limits that are worth considering.

    Args:
        latencies: predictions.
        segment: where it lies.
        choices: for every processor the branches to consider.
        limits: constraints; `min_depth` and `min_width` have been applied to `choices`.
        in_channels: channels that are read.
        exact: those are the original ones, each once and in order.
        statistics: is added to.
    """
    statistics = statistics or PruningStatistics()
    fastest = min(latencies.original(segment))
    original_macs = latencies.original_macs(segment)
    options: list[SegmentCandidate] = []
    for group in processor_groups(latencies.processors):
        met = [_meeting(latencies, segment, choices[p], place, len(group)) for place, p in enumerate(group)]
        costs = [[latencies.branch(segment, choice, in_channels, exact=exact) for choice in some] for some in met]
        slow = [latencies.contention_factor(segment, p, group) for p in group]
        seconds = [_numbers(cost.seconds for cost in some) * s for some, s in zip(costs, slow, strict=True)]
        statistics.within[0] += math.prod(len(some) for some in costs)
        if not all(len(some) for some in costs):
            continue
        statistics.best_beta = min(statistics.best_beta, max(float(some.min()) for some in seconds) / fastest)
        kept = [np.flatnonzero(some <= limits.beta * fastest) for some in seconds]
        statistics.within[1] += math.prod(map(len, kept))
        if not all(map(len, kept)):
            continue
        total = _joined([some[k] for some, k in zip(seconds, kept, strict=True)], np.maximum)
        macs = _joined([_numbers(cost.macs for cost in c)[k] for c, k in zip(costs, kept, strict=True)], np.add)
        each = [_numbers(cost.channels for cost in c)[k] for c, k in zip(costs, kept, strict=True)]
        channels = _joined(each, np.maximum if latencies.blueprint.merge is Merge.ADD else np.add)
        meeting = _meetings(latencies, segment, channels)
        statistics.best_alpha = min(statistics.best_alpha, float(meeting.min()) / fastest)
        near = meeting <= limits.alpha * fastest
        statistics.within[2] += int(near.sum())
        statistics.best_macs = max(statistics.best_macs, float(macs[near].max(initial=0.0)) / max(original_macs, 1))
        enough = np.flatnonzero(near & (macs >= limits.min_macs * original_macs))
        statistics.within[3] += len(enough)
        best = enough[_unbeaten(channels[enough], total[enough] + meeting[enough], macs[enough])]
        statistics.within[4] += len(best)
        for flat in best.tolist():
            places = np.unravel_index(flat, [len(k) for k in kept])
            branches = tuple(some[k[i]] for some, k, i in zip(met, kept, places, strict=True))
            parts = tuple(c[k[i]].channels for c, k, i in zip(costs, kept, places, strict=True))
            merged = merged_channels(latencies.blueprint.merge, parts)
            options.append(SegmentCandidate(branches, float(total[flat]), int(macs[flat]), parts, merged))
    return options


def _meeting(
    latencies: LatencyTable, segment: Segment, choices: Sequence[BranchChoice], place: int, branches: int
) -> list[BranchChoice]:
    """The choices with what they have at their ends as one of so many branches."""
    return [latencies.blueprint.meeting(segment, [choice] * branches)[place] for choice in choices]


def _numbers(values: Iterable[float]) -> _Numbers:
    return np.fromiter(values, dtype=np.float64)


def _joined(parts: Sequence[_Numbers], function: np.ufunc) -> _Numbers:
    """`function` of one element of every part, for all combinations, the last part's changing fastest."""
    result = parts[0]
    for part in parts[1:]:
        result = function.outer(result, part)
    return np.asarray(result, dtype=np.float64).reshape(-1)


def _meetings(latencies: LatencyTable, segment: Segment, channels: _Numbers) -> _Numbers:
    """Seconds of meeting at tensors of so many channels."""
    widths, places = np.unique(channels, return_inverse=True)
    seconds = [latencies.meeting(segment.stop, int(width)) for width in widths]
    return np.asarray(np.array(seconds)[places.reshape(-1)], dtype=np.float64)


def _unbeaten(channels: _Numbers, seconds: _Numbers, macs: _Numbers) -> npt.NDArray[np.int64]:
    """Of those that write equally many channels the ones than which no other is as fast and has as many MACs."""
    order = np.lexsort((-macs, seconds, channels))
    kept, width, most = [], -1.0, -1.0
    for i in order.tolist():
        if channels[i] != width:
            width, most = channels[i], -1.0
        if macs[i] > most:
            most = macs[i]
            kept.append(i)
    return np.array(kept, dtype=np.int64)
