"""What a search tells: how it went, what the network took as it was, and what was in the way where nothing was found."""

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
    """How many whole designs were left after a step; the counts are so large that logarithms to base 10 are given."""

    step: str
    designs_log10: float


@dataclass(frozen=True)
class SearchReport:
    """How a search went.

    Attributes:
        family: of the network, whose usual bounds hold where no others were given.
        limits: that held.
        cut_points: places between blocks where branches could meet.
        boundaries: of these, those that were considered: numbers of the blocks that follow.
        pruning: designs that were left after each step, on the coarse grid.
        transitions: transitions between segments that were evaluated.
        predicted_workloads: different layers whose latency was asked for, counted per processor.
        original_ms: the original network's predicted latency on each processor.
        measured_ms: latency of the designs that were run, by id.
        notes: for stretches that cannot be branched, why.
        blocks: of the network as it was.
        head_ms: of what follows the last block, on each processor.
        front: the networks than which none is as fast and has as many MACs, the fastest first, as predicted in the search,
            which interpolates between layers, before any design was run.
        predictions: what the parts of each returned design take, by the design's id.
        unpredicted: operators that none of the processors has a routine for; they count as nothing.
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
    """What the network takes as it was, on each processor."""
    whole = latencies.original(Segment(0, len(latencies.blueprint.traced.blocks)))
    return [seconds + head for seconds, head in zip(whole, head_seconds(latencies), strict=True)]


def head_seconds(latencies: LatencyTable) -> list[float]:
    """What follows the last block, as it was, on each processor."""
    blueprint = latencies.blueprint
    channels = blueprint.channels_before(len(blueprint.traced.blocks))
    return [latencies.head(channels, processor, exact=True) for processor in range(latencies.processors)]


def block_costs(latencies: LatencyTable) -> tuple[BlockCost, ...]:
    """The network's blocks as they were."""
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
    """Designs made of the ways that were left after each step; what lies between two boundaries may be left whole."""
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
    """Why no stretch of a network can be branched, and which limits to change; `notes` say what cannot be scaled."""
    if not statistics:
        listed = "; ".join(notes[:3]) or "it has no block with a convolution"
        return f"no stretch of the network can be branched: {listed}"
    longest = max(statistics, key=lambda segment: min(latencies.original(segment)))
    name, pruned = latencies.blueprint.traced.name_of(longest), statistics[longest]
    if not pruned.within[1]:
        return (
            f"no stretch can be branched: for {name} some processor has no branch that takes at most beta = "
            f"{limits.beta:g} of what it takes on the fastest; the least that can be reached is {pruned.best_beta:.2f}: "
            "raise beta, or lower min_width or min_depth"
        )
    if not pruned.within[2]:
        return (
            f"no stretch can be branched: behind {name} no meeting point takes at most alpha = {limits.alpha:g} of its "
            f"latency; the least that can be reached is {pruned.best_alpha:.3f}: raise alpha"
        )
    return (
        f"no stretch can be branched: for {name} no branches within beta = {limits.beta:g} have min_macs = "
        f"{limits.min_macs:g} of its MACs; the most that can be reached is {pruned.best_macs:.2f}: raise beta, or lower "
        "min_macs"
    )
