"""The report of a search: statistics, the original network's cost, and reasons for an infeasible search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.accounting import all_macs
from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import segment_cost
from nnstretch.branching.latency.prediction import BlockCost, FrontPoint, Prediction
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.candidates import STEPS, PruningStatistics
from nnstretch.branching.search.limits import Family, SearchLimits
from nnstretch.branching.search.unbranched import UnbranchedPlan
from nnstretch.branching.tracing.operators import Role, macs_of, role_of, title_of
from nnstretch.branching.tracing.trace import Block, Segment


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
        limits: in effect; alpha and beta are infinite if they were lifted.
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
        cut_short: whether the time limit kept the search from running further designs.
        recalled: whether the designs ran in the same search before, and not again.
        lifted: why no design is within alpha and beta, where the search went on without them; else "".
        unbranched: the fastest plan without branches; None if all such plans are predicted to be clearly slower than the
            designs.
        branched_ms: predicted latency of the fastest branched design that was found; None if none is within the limits.
        stays_unbranched: whether the network without branches was returned, because no branched design is ahead of it.
        infeasible: why no branched design is within the limits; else "".
        head_parts: independent parts of the head, which may run on several processors; 0 if it stays whole.
        split_ms: predicted latency of the original with its layers split over the processors; None if not predicted.
        pool: name of the processor that is made of all cores; "" if the processors make none.
        pool_ms: predicted latency of the original on it; None without one.
        unbranched_ms: milliseconds of the plans without branches that ran, as in `PlanRuns`.
        product_macs: MACs of the original's products of run-time matrices, which MACs of designs and blocks leave out.
        control_shares: predicted latency of each branched design's equal-MACs control over the original's, by its id.
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
    cut_short: bool = False
    recalled: bool = False
    lifted: str = ""
    unbranched: UnbranchedPlan | None = None
    branched_ms: float | None = None
    stays_unbranched: bool = False
    infeasible: str = ""
    head_parts: int = 0
    split_ms: float | None = None
    pool: str = ""
    pool_ms: float | None = None
    product_macs: int = 0
    unbranched_ms: Mapping[str, float] = field(default_factory=dict)
    control_shares: Mapping[str, float] = field(default_factory=dict)

    def alternatives(self, names: Sequence[str]) -> dict[str, float]:
        """Milliseconds of the original without branches, by where it runs: one processor, "split", or all cores.

        They are predicted, or measured if they ran.
        """
        split = [ms for ms in (self.split_ms, self._placed_ms) if ms is not None]
        found = dict(zip(names, self.original_ms, strict=True))
        if split:
            found["split"] = min(split)
        if self.pool_ms is not None:
            found[self.pool] = self.pool_ms
        places = {f"processor {number}": name for number, name in enumerate(names)} | {"several": "split"}
        measured = {places.get(place, place): ms for place, ms in self.unbranched_ms.items() if math.isfinite(ms)}
        return found | {where: ms for where, ms in measured.items() if where in found}

    def is_unbranched_plan(self, design: Design) -> bool:
        """Whether a design is the fastest plan without branches, which was returned."""
        plan = self.unbranched
        return plan is not None and self.predictions.get(design.id) == plan.prediction

    def places(self, design: Design, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the processors of a design, in the order of its indices.

        They are those of the search, `names`, but for the network without branches on all cores, which are one processor.
        """
        return (self.pool,) if design.pool else tuple(names)

    @property
    def _placed_ms(self) -> float | None:
        """Predicted milliseconds of the best plan of several processors that was compared."""
        plan = self.unbranched
        return plan.ms if plan is not None and plan.processor is None and not plan.pool else None

    def gain_note(self, design: Design, names: Sequence[str]) -> str:
        """One line for people: what a branched design gains over the best alternative; "" for others."""
        gain, others = self.gain(design), self.alternatives(names)
        if gain is None or not design.meeting_points:
            return ""
        where = min(others, key=lambda place: others[place])
        how = "split layer by layer over the processors" if where == "split" else f"on {where}"
        share = self.control_shares.get(design.id, 1.0)
        network = "the control of equal MACs" if share < 1.0 else "the original network"
        is_said = gain > 1 or self.unbranched_note(names)
        return (
            f"{gain:.2f}× as fast as the best alternative without branches is predicted for {design.id}: {network}, {how}, "
            f"would take {share * others[where]:.3f} ms{'' if is_said else '; retraining the design is not predicted to pay'}"
        )

    def gain(self, design: Design) -> float | None:
        """Predicted latency of the best alternative to a design, over the design's; None if unknown.

        Alternatives are the original and its equal-MACs control, whose share of the original's time is taken to be the same
        wherever they run.
        """
        others = self.alternatives([f"processor {number}" for number in range(len(self.original_ms))]).values()
        share = self.control_shares.get(design.id, 1.0)
        ms = self.measured_ms.get(design.id, design.predicted_ms) if self.unbranched_ms else design.predicted_ms
        return share * min(others) / ms if ms else None

    def faster_unbranched(self, design: Design, names: Sequence[str]) -> str | None:
        """Where the network without branches is predicted to run best, as `--processors` takes it.

        None if a design is predicted to pay, or the gain is not known.

        Args:
            design: one of the search, the original if it has no branches.
            names: of the processors.
        """
        if self.stays_unbranched and self.unbranched is not None:
            return self.unbranched.processors(names)
        gain = self.gain(design)
        if gain is None or gain > 1:
            return None
        others = self.alternatives(names)
        where = min(others, key=lambda place: others[place])
        return ",".join(names) if where == "split" else where

    def unbranched_note(self, names: Sequence[str]) -> str:
        """One line for people if the network without branches was returned or is predicted to be ahead; else "".

        Args:
            names: of the processors.
        """
        plan, branched = self.unbranched, self.branched_ms
        if plan is None or not (self.stays_unbranched or plan.is_ahead_of(branched)):
            return ""
        if branched is None:
            other = f"no branched design is within the limits ({self.infeasible})"
        elif plan.is_ahead_of(branched):
            other = f"the fastest branched design {branched:.3f} ms"
        else:
            other = "the branched designs within the target have fewer MACs"
        verb = "takes" if plan.is_measured else "is predicted to take"
        whole = f"the network without branches, {plan.where(names)}, {verb} {plan.ms:.3f} ms"
        return f"branching does not pay here: {whole}; {other}"

    @property
    def lifted_note(self) -> str:
        """One line for people if alpha and beta were lifted; else ""."""
        return self.lifted and (
            "little or no gain is predicted on these processors: no design is within the limits alpha and beta, so the "
            f"search went on without them ({self.lifted})"
        )


def original_seconds(latencies: LatencyTable) -> list[float]:
    """Seconds of the original network on each processor."""
    whole = latencies.original(Segment(0, len(latencies.blueprint.traced.blocks)))
    return [seconds + head for seconds, head in zip(whole, head_seconds(latencies), strict=True)]


def product_macs(blueprint: Blueprint) -> int:
    """MACs of the original that MACs of designs leave out: products of run-time matrices, as in attention."""
    traced = blueprint.traced
    return max(0, all_macs(traced.graph, traced.example_input) - blueprint.original_cost.macs)


def head_seconds(latencies: LatencyTable) -> list[float]:
    """Seconds of the original head on each processor."""
    return [latencies.head(processor) for processor in range(latencies.processors)]


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


class Infeasibility(NamedTuple):
    """Why no segment can be branched, and what to do about it ("" if nothing can be done)."""

    reason: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.advice}" if self.advice else self.reason


def infeasibility(
    latencies: LatencyTable, limits: SearchLimits, statistics: Mapping[Segment, PruningStatistics], notes: Sequence[str]
) -> Infeasibility:
    """Why no segment can be branched, and which limit to change.

    Args:
        latencies: predictions.
        limits: in effect.
        statistics: of every segment that was a candidate.
        notes: diagnostics of segments that cannot be scaled.
    """
    if not statistics:
        listed = "; ".join(notes[:3]) or "it has no block with a convolution"
        return Infeasibility(f"no segment of the network can be branched: {listed}")
    longest = max(statistics, key=lambda segment: min(latencies.original(segment)))
    pruned = statistics[longest]
    name = f"block{'s' * (longest.stop - longest.first > 1)} {latencies.blueprint.traced.name_of(longest)}"
    if not pruned.within[1]:
        return Infeasibility(
            f"no segment can be branched: for {name}, some processor has no branch that takes at most beta = "
            f"{limits.beta:g} of what it takes on the fastest; the least that can be reached is {pruned.best_beta:.2f}",
            "raise it (--beta), lower min_width or min_depth (--min-width, --min-depth), or leave alpha and beta out where "
            "nothing is within them (--best-effort)",
        )
    if not pruned.within[2]:
        return Infeasibility(
            f"no segment can be branched: after {name}, no meeting point takes at most alpha = {limits.alpha:g} of its "
            f"latency; the least that can be reached is {pruned.best_alpha:.3f}",
            "raise it (--alpha), search while nothing else runs, or leave alpha and beta out where nothing is within them "
            "(--best-effort)",
        )
    return Infeasibility(
        f"no segment can be branched: for {name}, no branches within beta = {limits.beta:g} have min_macs = "
        f"{limits.min_macs:g} of its MACs; the most that can be reached is {pruned.best_macs:.2f}",
        "raise beta (--beta), lower min_macs (--min-macs), search while nothing else runs, or leave alpha and beta out where "
        "nothing is within them (--best-effort)",
    )


_REPORTED_HEAD_SHARE = 0.05
"""Minimum MAC share at which a head without skip inputs is reported."""
_NAMES = 3
_LAYOUT = frozenset(
    {
        *("flatten", "view", "reshape", "permute", "transpose", "chunk", "getitem", "split", "unflatten", "unbind"),
        *("Rearranged", "ToMap"),
    }
)
"""Operators that only rearrange a tensor; they are named in a diagnostic if there is nothing else to name."""


def diagnose(blueprint: Blueprint) -> list[str]:
    """One line per group of adjacent blocks that cannot be branched for one reason, and one for a large head.

    Args:
        blueprint: the network.

    Returns:
        Lines for people; empty if every block with work can be branched and the head is small.
    """
    blocks = blueprint.traced.blocks
    reasons = [_reason(blueprint, number) for number in range(len(blocks))]
    lines, start = [], 0
    for reason, run in itertools.groupby(reasons):
        stop = start + len(list(run))
        if reason:
            place = f"block {start}" if stop - start == 1 else f"blocks {start} to {stop - 1}"
            lines.append(f"{place}, {blueprint.traced.name_of(Segment(start, stop))}: {reason}")
        start = stop
    return [*lines, *_head(blueprint)]


def _reason(blueprint: Blueprint, number: int) -> str:
    """Why a block cannot be branched by itself; empty if it can, or if it has no work."""
    block, alone = blueprint.traced.blocks[number], Segment(number, number + 1)
    unknown = _unknown(block)
    if not block.has_weights:
        return f"all its work is in {unknown}, whose width cannot be scaled" if any(map(macs_of, block.nodes)) else ""
    if blueprint.branchable(alone):
        return ""
    locked = blueprint.merge is Merge.CONCAT and any(group.locked for group in blueprint.whole(alone).output_groups)
    if any(node.meta.get("shared") for node in block.nodes):
        return "its layers share weights, so all channels must stay"
    if locked and unknown:
        return f"all channels that it writes must stay together, because of {unknown}"
    if None in blueprint.whole(alone).output_parts:
        return "it passes channels through from its input, which cannot be divided among branches"
    return "all channels that it writes must stay together"


def _unknown(block: Block) -> str:
    """Names of the block's operators whose effect on channels is unknown, the first few."""
    found = [title_of(node) for node in block.nodes if role_of(node) is Role.OPAQUE]
    names = list(dict.fromkeys(name for name in found if name not in _LAYOUT)) or list(dict.fromkeys(found))
    return ", ".join(names[:_NAMES]) + (" and others" if len(names) > _NAMES else "")


def _head(blueprint: Blueprint) -> list[str]:
    traced = blueprint.traced
    body = segment_cost(blueprint, Segment(0, len(traced.blocks))).macs
    whole = blueprint.original_cost.macs
    share = (whole - body) / max(whole, 1)
    names = {block.output: block.name for block in traced.blocks} | {traced.source: "the input"}
    skips = [names[skip] for skip in traced.head.skips]
    if not skips and share < _REPORTED_HEAD_SHARE:
        return []
    reads = f"it reads {traced.blocks[-1].name}" + (f" and, before it, {', '.join(skips)}" if skips else "")
    parts = blueprint.head_parts
    if parts is None:
        unknown = _unknown(traced.head)
        return [f"the head, {share:.0%} of the MACs: {reads}" + (f", and has {unknown}" if unknown else "")]
    rest = part_cost(blueprint.tail, kept_counts(blueprint.tail, 1.0)).macs / max(whole, 1)
    if rest < _REPORTED_HEAD_SHARE:
        return []
    unknown = _unknown(parts.tail)
    reads = f"it reads what the {len(parts.towers)} branchable parts of the head compute"
    return [f"the rest of the head, {rest:.0%} of the MACs: {reads}" + (f", and has {unknown}" if unknown else "")]
