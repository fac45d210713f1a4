"""The ways to branch one segment, and the constraints that leave few of them.

After NN-Stretch: latency is a hard constraint (a branch may take `beta` of what the segment takes on its fastest
processor, a meeting point `alpha` of it), capacity a soft one (enough MACs where that can be reached).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from nnstretch.branching.build import Blueprint, BranchChoice, segment_cost
from nnstretch.branching.channels import ChannelPlan
from nnstretch.branching.operators import channels_of, shape_of
from nnstretch.branching.predictor import LatencyPredictor
from nnstretch.branching.scaling import kept_counts
from nnstretch.branching.workloads import concat_layer, part_layers
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Layer, TensorType

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class SearchLimits:
    """Constraints and grid of a search.

    Attributes:
        alpha: seconds of a meeting point over those of the original segment, at most.
        beta: seconds of a branch on its processor over those of the original segment on its fastest one, at most.
        min_depth: share of a segment's blocks that a branch keeps, at least.
        min_width: width ratio of a branch, at least.
        min_macs: MACs of a segment's branches over the original segment's, at least, where that can be reached.
    """

    alpha: float = 0.3
    beta: float = 0.8
    min_depth: float = 0.5
    min_width: float = 0.25
    min_macs: float = 0.8

    def check(self) -> None:
        """Refuses limits that no design can meet.

        Raises:
            DesignError: a number is out of range.
        """
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise DesignError(f"{name} is {value}; give a number above 0")
        for name in ("min_depth", "min_width"):
            value = getattr(self, name)
            if not 0.0 < value <= 1.0:
                raise DesignError(f"{name} is {value}; give a ratio above 0 and up to 1")
        if not 0.0 <= self.min_macs < math.inf:
            raise DesignError(f"min_macs is {self.min_macs}; give a ratio from 0 on")


@dataclass(frozen=True)
class Option:
    """The branches of one segment, with what they write."""

    branches: tuple[BranchChoice, ...]
    channels: tuple[int, ...]

    @property
    def width(self) -> int:
        """Channels at the meeting point."""
        return sum(self.channels)


@dataclass
class SegmentReport:
    """How many ways there were to branch a segment, after each step of pruning.

    Attributes:
        segment: its index.
        name: its first and last block.
        original_ms: the original segment's predicted latency on each processor.
        branches: branches of all depths and widths, for all processors.
        within_latency: of these, those within `beta`.
        combinations: combinations of one such branch per processor.
        within_communication: of these, those within `alpha`.
        within_capacity: of these, those with enough MACs, or nearly the most that can be reached.
        kept: of these, the fastest, which are then joined with those of other segments.
        best_beta: the least `beta` that leaves every processor a branch.
        best_alpha: the least `alpha` that leaves a combination, among those within `beta`.
        best_macs: most MACs, over the original's, of the combinations within `alpha` and `beta`.
        note: why it is not branched, or empty.
    """

    segment: int
    name: str
    original_ms: tuple[float, ...] = ()
    branches: int = 0
    within_latency: int = 0
    combinations: int = 0
    within_communication: int = 0
    within_capacity: int = 0
    kept: int = 0
    best_beta: float = math.inf
    best_alpha: float = math.inf
    best_macs: float = 0.0
    note: str = ""


@dataclass(eq=False)
class Latencies:
    """Predictions for the parts of a network, each asked for once.

    Attributes:
        blueprint: the network.
        predictor: who is asked.
        processors: number of processors.
        workloads: the different layers that were asked for, with the processor.
    """

    blueprint: Blueprint
    predictor: LatencyPredictor
    processors: int
    workloads: set[tuple[int, str]] = field(default_factory=set)
    _layers: dict[tuple[ChannelPlan, tuple[int, ...], int, bool], list[Layer]] = field(default_factory=dict)
    _seconds: dict[tuple[ChannelPlan, tuple[int, ...], int, bool, int], float] = field(default_factory=dict)
    _meetings: dict[TensorType, float] = field(default_factory=dict)

    def part(self, plan: ChannelPlan, width: float, in_channels: int, processor: int, *, exact: bool) -> float:
        """Seconds of a copy of `plan`."""
        counts = kept_counts(plan, width, self.blueprint.multiple)
        key = (plan, counts, in_channels, exact)
        if (*key, processor) not in self._seconds:
            if key not in self._layers:
                self._layers[key] = part_layers(plan, counts, in_channels, exact=exact)
            self._seconds[*key, processor] = self._ask(self._layers[key], processor)
        return self._seconds[*key, processor]

    def branch(self, segment: int, choice: BranchChoice, in_channels: int, *, exact: bool) -> float:
        """Seconds of a branch on its processor."""
        plan = self.blueprint.branch(segment, choice.blocks)
        return self.part(plan, choice.width, in_channels, choice.processor, exact=exact)

    def original(self, segment: int) -> list[float]:
        """Seconds of the original segment on every processor."""
        plan = self.blueprint.branch(segment, self.blueprint.all_blocks(segment))
        channels = channels_of(plan.source)
        return [self.part(plan, 1.0, channels, processor, exact=True) for processor in range(self.processors)]

    def concat(self, shapes: Sequence[tuple[int, ...]], processor: int) -> float:
        """Seconds of joining tensors of these shapes."""
        return self._ask([concat_layer(shapes)], processor) if len(shapes) > 1 else 0.0

    def meeting(self, shape: tuple[int, ...], sources: Iterable[int], destinations: Iterable[int]) -> float:
        """Seconds until all of `destinations` can read a tensor that `sources` have computed together.

        Nothing if one processor has computed it and the same one reads it.
        """
        if len({*sources, *destinations}) == 1:
            return 0.0
        tensor = TensorType(shape)
        if tensor not in self._meetings:
            self._meetings[tensor] = self.predictor.meeting_seconds(tensor)
        return self._meetings[tensor]

    def _ask(self, layers: list[Layer], processor: int) -> float:
        self.workloads.update((processor, layer.workload) for layer in layers)
        return self.predictor.seconds(layers, processor)


def shape_at_end(blueprint: Blueprint, segment: int) -> tuple[int, ...]:
    """Shape of the tensor that a segment writes in the original network."""
    shape = shape_of(blueprint.traced.segments[segment].output)
    assert shape is not None
    return shape


def branch_choices(
    blueprint: Blueprint, segment: int, processor: int, widths: Sequence[float], min_depth: float
) -> list[BranchChoice]:
    """Branches of all depths and widths; of widths that round to the same layers the smallest."""
    choices = []
    for blocks in blueprint.depth_options(segment):
        if blueprint.depth_ratio(segment, blocks) < min_depth:
            continue
        plan = blueprint.branch(segment, blocks)
        seen = set()
        for width in sorted(widths):
            counts = kept_counts(plan, width, blueprint.multiple)
            if counts not in seen:
                seen.add(counts)
                choices.append(BranchChoice(processor, blocks, width))
    return choices


def segment_options(
    latencies: Latencies,
    segment: int,
    choices: Sequence[Sequence[BranchChoice]],
    limits: SearchLimits,
    keep: int,
    in_channels: int | None = None,
) -> tuple[list[Option], SegmentReport]:
    """The best ways to branch a segment, one branch per processor, and how many were left at each step.

    Args:
        latencies: predictions.
        segment: index of the segment.
        choices: for every processor the branches to consider.
        limits: constraints.
        keep: how many to return at most.
        in_channels: channels that are read; by default what meeting points usually have, so that latencies and MACs are
            near those in the whole network, which joining the segments works out.
    """
    blueprint = latencies.blueprint
    blocks = blueprint.traced.segments[segment].blocks
    report = SegmentReport(segment, f"{blocks[0].name} to {blocks[-1].name}")
    original = latencies.original(segment)
    report.original_ms = tuple(seconds * 1e3 for seconds in original)
    if not blueprint.branchable(segment):
        report.note = "all channels that it writes must stay together"
        return [], report
    read = usual_width(blueprint, segment) if in_channels is None else in_channels
    candidates = [[_candidate(latencies, segment, choice, read) for choice in options] for options in choices]
    report.branches = sum(map(len, candidates))
    fastest = min(original)
    report.best_beta = max(min((c.seconds for c in some), default=math.inf) for some in candidates) / fastest
    within = [[c for c in some if c.seconds <= limits.beta * fastest] for some in candidates]
    report.within_latency = sum(map(len, within))
    shape = shape_at_end(blueprint, segment)
    combinations = [_combine(latencies, shape, branches) for branches in itertools.product(*within)]
    report.combinations = len(combinations)
    report.best_alpha = min((c.meeting for c in combinations), default=math.inf) / fastest
    near = [c for c in combinations if c.meeting <= limits.alpha * fastest]
    report.within_communication = len(near)
    macs = segment_cost(blueprint, blueprint.traced.segments[segment]).macs
    enough = _enough_capacity(near, macs, limits, report)
    enough.sort(key=lambda c: (c.seconds, -c.macs))
    best = _spread(enough, keep)
    report.kept = len(best)
    report.note = "" if best else _why_none(report, limits)
    return [c.option for c in best], report


def usual_width(blueprint: Blueprint, segment: int) -> int:
    """Channels that a segment reads if the one before it is branched as usual."""
    channels = channels_of(blueprint.traced.segments[segment].source)
    if segment == 0 or not blueprint.branchable(segment - 1):
        return channels
    return max(1, round(_USUAL * channels / blueprint.multiple)) * blueprint.multiple


# Two branches with 0.6 of the width each have 0.72 of the MACs, and a little more where they read the other's channels.
_USUAL = 1.2


@dataclass(frozen=True)
class _Candidate:
    """A branch with its latency, the channels that it writes, and its MACs."""

    choice: BranchChoice
    seconds: float
    channels: int
    macs: int


def _candidate(latencies: Latencies, segment: int, choice: BranchChoice, in_channels: int) -> _Candidate:
    blueprint = latencies.blueprint
    plan = blueprint.branch(segment, choice.blocks)
    exact = segment == 0
    return _Candidate(
        choice,
        latencies.branch(segment, choice, in_channels, exact=exact),
        blueprint.width_of(plan, choice.width, in_channels),
        blueprint.part_cost(plan, choice.width, in_channels, exact=exact).macs,
    )


@dataclass(frozen=True)
class _Combination:
    """One branch per processor: seconds until all have met, those of the meeting alone, and MACs."""

    option: Option
    seconds: float
    meeting: float
    macs: int


def _combine(latencies: Latencies, shape: tuple[int, ...], branches: tuple[_Candidate, ...]) -> _Combination:
    processors = [branch.choice.processor for branch in branches]
    option = Option(tuple(branch.choice for branch in branches), tuple(branch.channels for branch in branches))
    meeting = latencies.meeting((shape[0], option.width, *shape[2:]), processors, processors)
    return _Combination(
        option,
        max(branch.seconds for branch in branches) + meeting,
        meeting,
        sum(branch.macs for branch in branches),
    )


# Capacity is a soft constraint: this share of what is wanted, or of the most that can be reached, will do.
_NEARLY = 0.95


def _enough_capacity(
    combinations: list[_Combination], macs: int, limits: SearchLimits, report: SegmentReport
) -> list[_Combination]:
    most = max((c.macs for c in combinations), default=0)
    report.best_macs = most / macs if macs else 1.0
    wanted = _NEARLY * min(limits.min_macs * macs, most)
    enough = [c for c in combinations if c.macs >= wanted]
    report.within_capacity = len(enough)
    return enough


def _spread(combinations: Sequence[_Combination], keep: int) -> list[_Combination]:
    """The first `keep` of different widths at the meeting point, then the first others.

    What the next segment reads depends on nothing but that width, so different ones are worth more than more of one.
    """
    first: dict[int, _Combination] = {}
    for combination in combinations:
        first.setdefault(combination.option.width, combination)
    best = list(first.values())[:keep]
    others = [combination for combination in combinations if combination not in best]
    return best + others[: keep - len(best)]


def _why_none(report: SegmentReport, limits: SearchLimits) -> str:
    if report.combinations == 0:
        return (
            f"no branch on some processor takes at most beta = {limits.beta:g} of the segment's latency; "
            f"the least that can be reached is {report.best_beta:.2f}"
        )
    return (
        f"no meeting point takes at most alpha = {limits.alpha:g} of the segment's latency; "
        f"the least that can be reached is {report.best_alpha:.2f}"
    )
