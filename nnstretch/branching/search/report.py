"""The report of a search: statistics, the original network's cost, and reasons for an infeasible search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.branching.latency.prediction import BlockCost, FrontPoint, Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import STEPS, PruningStatistics
from nnstretch.branching.search.limits import Family, SearchLimits
from nnstretch.branching.tracing.trace import Segment


@dataclass(frozen=True)
class Pruning:
    """Base-10 logarithm of the number of whole designs left after a pruning step."""

    step: str
    designs_log10: float


@dataclass(frozen=True)
class SearchReport:
    """How a search went.

    Attributes:
        family: of the network; its default bounds apply where none were given.
        limits: in effect.
        cut_points: places between blocks where branches could meet.
        boundaries: those that were candidates, as numbers of the blocks that follow.
        pruning: designs left after each step, on the coarse grid of widths.
        transitions: number of transitions that the dynamic program evaluated.
        predicted_workloads: distinct layers that were predicted, counted per processor.
        original_ms: predicted latency of the original network on each processor.
        measured_ms: latency of the designs that ran, by id.
        diagnostics: for segments that cannot be branched, why.
        blocks: the original blocks.
        head_ms: latency of the original head on each processor.
        front: front of latency and MACs as predicted in the search, fastest first, with interpolation between
            layers and before any design ran.
        predictions: prediction of each returned design, by its id.
        unpredicted: operators without a routine on any processor; they count as zero seconds.
    """

    family: Family
    limits: SearchLimits
    cut_points: int
    boundaries: tuple[int, ...]
    pruning: tuple[Pruning, ...]
    transitions: int
    predicted_workloads: int
    original_ms: tuple[float, ...]
    measured_ms: Mapping[str, float]
    diagnostics: tuple[str, ...]
    blocks: tuple[BlockCost, ...] = ()
    head_ms: tuple[float, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    unpredicted: tuple[str, ...] = ()


def original_seconds(latencies: LatencyTable) -> list[float]:
    """Seconds of the original network on each processor."""
    whole = latencies.original(Segment(0, len(latencies.blueprint.traced.blocks)))
    return [seconds + head for seconds, head in zip(whole, head_seconds(latencies), strict=True)]


def head_seconds(latencies: LatencyTable) -> list[float]:
    """Seconds of the original head on each processor."""
    blueprint = latencies.blueprint
    channels = blueprint.channels_before(len(blueprint.traced.blocks))
    return [latencies.head(channels, processor, exact=True) for processor in range(latencies.processors)]


def block_costs(latencies: LatencyTable) -> tuple[BlockCost, ...]:
    """MACs and latency of the original blocks."""
    costs = []
    for number, block in enumerate(latencies.blueprint.traced.blocks):
        alone = Segment(number, number + 1)
        ms = tuple(1e3 * seconds for seconds in latencies.original(alone))
        branchable = latencies.blueprint.branchable(alone)
        costs.append(BlockCost(block.name, latencies.original_macs(alone), ms, branchable))
    return tuple(costs)


def pruning_steps(
    boundaries: Sequence[int], statistics: Mapping[Segment, PruningStatistics], processors: int
) -> tuple[Pruning, ...]:
    """Numbers of whole designs after each pruning step; a segment between two boundaries may also stay whole."""
    pruning = []
    for number, step in enumerate(STEPS):
        ways = dict.fromkeys(boundaries, 0.0)
        ways[0] = 1.0
        for first, stop in itertools.pairwise(boundaries):
            ways[stop] += ways[first] * processors
            for segment, pruned in statistics.items():
                if segment.stop == stop:
                    ways[stop] += ways[segment.first] * pruned.within[number]
        pruning.append(Pruning(step, math.log10(ways[boundaries[-1]])))
    return tuple(pruning)


def infeasibility_reason(
    latencies: LatencyTable, limits: SearchLimits, statistics: Mapping[Segment, PruningStatistics], notes: Sequence[str]
) -> str:
    """Why no segment can be branched, and which limit to change.

    Args:
        latencies: predictions.
        limits: in effect.
        statistics: of every segment that was a candidate.
        notes: diagnostics of segments that cannot be scaled.
    """
    if not statistics:
        listed = "; ".join(notes[:3]) or "it has no block with a convolution"
        return f"no segment of the network can be branched: {listed}"
    longest = max(statistics, key=lambda segment: min(latencies.original(segment)))
    name, pruned = latencies.blueprint.traced.name_of(longest), statistics[longest]
    if not pruned.within[1]:
        return (
            f"no segment can be branched: for {name} some processor has no branch that takes at most beta = "
            f"{limits.beta:g} of what it takes on the fastest; the least that can be reached is {pruned.best_beta:.2f}: "
            "raise beta, or lower min_width or min_depth"
        )
    if not pruned.within[2]:
        return (
            f"no segment can be branched: after {name} no meeting point takes at most alpha = {limits.alpha:g} of its "
            f"latency; the least that can be reached is {pruned.best_alpha:.3f}: raise alpha"
        )
    return (
        f"no segment can be branched: for {name} no branches within beta = {limits.beta:g} have min_macs = "
        f"{limits.min_macs:g} of its MACs; the most that can be reached is {pruned.best_macs:.2f}: raise beta, or lower "
        "min_macs"
    )
