"""From a traced network and a design to the branched network, and from chosen ratios to a design."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor, nn

from nnstretch.branching.channels import ChannelPlan, Indices, plan_channels
from nnstretch.branching.counting import Cost, part_cost
from nnstretch.branching.design import BranchDesign, Design, SegmentDesign, design_id
from nnstretch.branching.inherit import scaled_copy
from nnstretch.branching.network import Branch, BranchedNetwork, BranchedSegment
from nnstretch.branching.operators import channels_of
from nnstretch.branching.scaling import (
    DEFAULT_MULTIPLE,
    Scores,
    bundle_scores,
    choose,
    deal,
    full_selection,
    kept_counts,
    output_channels,
)
from nnstretch.branching.tracing import Segment, TracedNetwork, trace
from nnstretch.errors import DesignError


@dataclass(frozen=True)
class BranchChoice:
    """What decides one branch: its processor, the blocks of the segment that it keeps, and its width ratio (0 to 1]."""

    processor: int
    blocks: tuple[int, ...]
    width: float


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A traced network with the channel plans of its parts, each worked out once.

    Attributes:
        traced: the network.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
    """

    traced: TracedNetwork
    multiple: int = DEFAULT_MULTIPLE
    _plans: dict[tuple[int, tuple[int, ...]], ChannelPlan] = field(default_factory=dict)
    _scores: dict[tuple[int, tuple[int, ...]], tuple[Scores, ...]] = field(default_factory=dict)

    @cached_property
    def stem(self) -> ChannelPlan | None:
        """The blocks before the first segment, if any. They are not scaled."""
        blocks = self.traced.stem
        return plan_channels(blocks, range(len(blocks)), allow_entry=False) if blocks else None

    @cached_property
    def head(self) -> ChannelPlan:
        """What follows the last segment. It is not scaled."""
        return plan_channels([self.traced.head], [0], lock_output=True)

    def branch(self, segment: int, blocks: tuple[int, ...]) -> ChannelPlan:
        """Those of the segment's blocks that are kept."""
        key = (segment, blocks)
        if key not in self._plans:
            self._plans[key] = plan_channels(self.traced.segments[segment].blocks, blocks)
        return self._plans[key]

    def scores(self, segment: int, blocks: tuple[int, ...]) -> tuple[Scores, ...]:
        """How much each bundle of a branch's spaces matters."""
        key = (segment, blocks)
        if key not in self._scores:
            self._scores[key] = bundle_scores(self.branch(segment, blocks))
        return self._scores[key]

    def all_blocks(self, segment: int) -> tuple[int, ...]:
        """The blocks of a branch of full depth."""
        return tuple(range(len(self.traced.segments[segment].blocks)))

    def branchable(self, segment: int) -> bool:
        """Whether the segment's output can be shared out among branches."""
        return self.branch(segment, self.all_blocks(segment)).branchable

    def depth_options(self, segment: int) -> list[tuple[int, ...]]:
        """Kept blocks for every depth, from all of them down; those that change their input least go first.

        Depths whose output is put together in another way than the whole segment's are left out: their channels could
        not be shared out with those of other branches.
        """
        blocks = self.traced.segments[segment].blocks
        by_change = sorted(
            (i for i, block in enumerate(blocks) if block.droppable), key=lambda i: (blocks[i].change, -i)
        )
        options = []
        for dropped in range(len(by_change) + 1):
            kept = tuple(i for i in range(len(blocks)) if i not in by_change[:dropped])
            if any(blocks[i].heavy for i in kept) and self.same_output(segment, kept):
                options.append(kept)
        return options

    def same_output(self, segment: int, blocks: tuple[int, ...]) -> bool:
        """Whether a branch of these blocks writes channels in the same arrangement as the whole segment."""
        whole, part = self.branch(segment, self.all_blocks(segment)), self.branch(segment, blocks)
        return [(space.bundles, space.bundle_channels, space.locked) for space in whole.output_spaces] == [
            (space.bundles, space.bundle_channels, space.locked) for space in part.output_spaces
        ]

    def depth_ratio(self, segment: int, blocks: Sequence[int]) -> float:
        """Share of the segment's blocks with a convolution or dense layer that are kept."""
        part = self.traced.segments[segment]
        return sum(part.blocks[i].heavy for i in blocks) / part.depth

    def part_cost(self, plan: ChannelPlan, width: float, in_channels: int, *, exact: bool) -> Cost:
        """MACs and parameters of a copy of `plan` at a width ratio."""
        return part_cost(plan, kept_counts(plan, width, self.multiple), in_channels, exact=exact)

    def width_of(self, plan: ChannelPlan, width: float, in_channels: int) -> int:
        """Channels that a copy of `plan` writes at a width ratio."""
        return output_channels(plan, kept_counts(plan, width, self.multiple), in_channels)


def blueprint(module: nn.Module, example_input: Tensor, multiple: int = DEFAULT_MULTIPLE) -> Blueprint:
    """Traces `module` and prepares it for scaling.

    Raises:
        DesignError: it cannot be traced or has nothing to branch, or `multiple` is below 1.
    """
    if multiple < 1:
        raise DesignError(f"channels cannot be multiples of {multiple}; give 1 or more")
    return Blueprint(trace(module, example_input), multiple)


def make_design(
    blueprint: Blueprint,
    choices: Sequence[Sequence[BranchChoice]],
    branch_ms: Sequence[Sequence[float]] | None = None,
    predicted_ms: float | None = None,
) -> Design:
    """The design with the given branches, its MACs and parameters counted exactly.

    Args:
        blueprint: the network.
        choices: for every segment its branches, in the order of concatenation.
        branch_ms: predicted latency of every branch, if known.
        predicted_ms: predicted latency of the whole, if known.

    Raises:
        DesignError: a choice does not fit the network.
    """
    _check(blueprint, choices)
    traced = blueprint.traced
    total = Cost(0, 0)
    channels, exact = channels_of(traced.segments[0].source), True
    if blueprint.stem is not None:
        total += blueprint.part_cost(blueprint.stem, 1.0, channels_of(blueprint.stem.source), exact=True)
    segments = []
    for index, branches in enumerate(choices):
        made = []
        for i, choice in enumerate(branches):
            plan = blueprint.branch(index, choice.blocks)
            cost = blueprint.part_cost(plan, choice.width, channels, exact=exact)
            total += cost
            made.append(
                BranchDesign(
                    processor=choice.processor,
                    blocks=choice.blocks,
                    depth=blueprint.depth_ratio(index, choice.blocks),
                    width=choice.width,
                    channels=blueprint.width_of(plan, choice.width, channels),
                    macs=cost.macs,
                    predicted_ms=None if branch_ms is None else branch_ms[index][i],
                )
            )
        segments.append(SegmentDesign(index, tuple(made)))
        channels = sum(branch.channels for branch in made)
        exact = _stays_exact(blueprint, segments[-1])
    total += blueprint.part_cost(blueprint.head, 1.0, channels, exact=exact)
    original = original_cost(blueprint)
    return Design(
        id=design_id(segments, blueprint.multiple),
        segments=tuple(segments),
        multiple=blueprint.multiple,
        original_macs=original.macs,
        original_params=original.params,
        macs=total.macs,
        params=total.params,
        predicted_ms=predicted_ms,
    )


def original_cost(blueprint: Blueprint) -> Cost:
    """MACs and parameters of the network as it was."""
    total = blueprint.part_cost(blueprint.head, 1.0, channels_of(blueprint.head.source), exact=True)
    if blueprint.stem is not None:
        total += blueprint.part_cost(blueprint.stem, 1.0, channels_of(blueprint.stem.source), exact=True)
    for segment in blueprint.traced.segments:
        total += segment_cost(blueprint, segment)
    return total


def segment_cost(blueprint: Blueprint, segment: Segment) -> Cost:
    """MACs and parameters of a segment as it was."""
    plan = blueprint.branch(segment.index, blueprint.all_blocks(segment.index))
    return blueprint.part_cost(plan, 1.0, channels_of(segment.source), exact=True)


def build(blueprint: Blueprint, design: Design) -> BranchedNetwork:
    """The branched network of `design` with weights inherited from the traced network, in the mode that one was in.

    Raises:
        DesignError: the design is for another network.
    """
    if design.multiple != blueprint.multiple:
        raise DesignError(
            f"the design has layers of multiples of {design.multiple} channels, the network was prepared for "
            f"{blueprint.multiple}; prepare it with the design's"
        )
    choices = [
        [BranchChoice(branch.processor, branch.blocks, branch.width) for branch in segment.branches]
        for segment in design.segments
    ]
    _check(blueprint, choices)
    origins = np.arange(channels_of(blueprint.traced.source), dtype=np.int64)
    stem: nn.Module = nn.Identity()
    if blueprint.stem is not None:
        stem, origins = scaled_copy(blueprint.stem, full_selection(blueprint.stem), origins, exact=True)
    segments, exact = [], True
    for segment in design.segments:
        branches, pieces = [], []
        for branch, selection in zip(segment.branches, _selections(blueprint, segment), strict=True):
            plan = blueprint.branch(segment.segment, branch.blocks)
            module, piece = scaled_copy(plan, selection, origins, exact=exact)
            if len(piece) != branch.channels:
                raise DesignError(
                    f"segment {segment.segment} of the design writes {branch.channels} channels in a branch, this "
                    f"network's {len(piece)}; use the network that the design was made for"
                )
            branches.append(Branch(module))
            pieces.append(piece)
        segments.append(BranchedSegment(branches))
        origins = np.concatenate(pieces)
        exact = _stays_exact(blueprint, segment)
    head, _ = scaled_copy(blueprint.head, full_selection(blueprint.head), origins, exact=exact)
    network = BranchedNetwork(stem, segments, head, design)
    return network.train(blueprint.traced.training)


def _check(blueprint: Blueprint, choices: Sequence[Sequence[BranchChoice]]) -> None:
    """That the choices are for this network."""
    segments = blueprint.traced.segments
    if len(choices) != len(segments):
        raise DesignError(
            f"the design has {len(choices)} segments, the network {len(segments)}; "
            "use the network that the design was made for"
        )
    for segment, branches in zip(segments, choices, strict=True):
        if not branches:
            raise DesignError(f"segment {segment.index} has no branch; give one or more")
        for choice in branches:
            _check_branch(segment, choice)
        if len(branches) > 1 and not all(blueprint.same_output(segment.index, choice.blocks) for choice in branches):
            raise DesignError(
                f"the branches of segment {segment.index} would put their channels together in different ways; "
                "keep its last block in all of them"
            )
        if len(branches) > 1 and not blueprint.branchable(segment.index):
            raise DesignError(
                f"segment {segment.index} ({segment.blocks[0].name} to {segment.blocks[-1].name}) cannot be branched: "
                "all channels that it writes must stay together; give it one branch"
            )


def _check_branch(segment: Segment, choice: BranchChoice) -> None:
    needed = {i for i, block in enumerate(segment.blocks) if not block.droppable}
    kept = set(choice.blocks)
    ordered = list(choice.blocks) == sorted(kept)
    fits = ordered and needed <= kept <= set(range(len(segment.blocks)))
    if not fits or not any(segment.blocks[i].heavy for i in kept):
        raise DesignError(
            f"a branch of segment {segment.index} keeps blocks {list(choice.blocks)}; of its {len(segment.blocks)} "
            f"blocks it must keep {sorted(needed)} and at least one with a convolution"
        )
    if not 0.0 < choice.width <= 1.0 or choice.processor < 0:
        raise DesignError(
            f"a branch of segment {segment.index} has width {choice.width} and processor {choice.processor}; "
            "a width is above 0 and up to 1, a processor 0 or more"
        )


def _stays_exact(blueprint: Blueprint, segment: SegmentDesign) -> bool:
    """Whether a segment writes the original channels, each once and in order: it has one branch and keeps them all."""
    return [branch.channels for branch in segment.branches] == [blueprint.traced.segments[segment.segment].channels]


def _selections(blueprint: Blueprint, segment: SegmentDesign) -> list[dict[int, Indices]]:
    """Bundles that every branch keeps: the best of the inner spaces, and a share of those that are written."""
    index = segment.segment
    plans = [blueprint.branch(index, branch.blocks) for branch in segment.branches]
    counts = [
        kept_counts(plan, branch.width, blueprint.multiple)
        for plan, branch in zip(plans, segment.branches, strict=True)
    ]
    selections = [
        {
            space.index: choose(scores, count)
            for space, scores, count in zip(plan.spaces, blueprint.scores(index, branch.blocks), kept, strict=True)
        }
        for plan, kept, branch in zip(plans, counts, segment.branches, strict=True)
    ]
    if len(plans) > 1:
        whole = blueprint.all_blocks(index)
        scores = blueprint.scores(index, whole)
        reference = blueprint.branch(index, whole).output_spaces
        # Branches of other depths number their spaces differently, but write the same ones in the same order.
        for position, space in enumerate(reference):
            own = [plan.output_spaces[position].index for plan in plans]
            shares = deal(scores[space.index], [kept[i] for kept, i in zip(counts, own, strict=True)])
            for selection, i, share in zip(selections, own, shares, strict=True):
                selection[i] = share
    return selections
