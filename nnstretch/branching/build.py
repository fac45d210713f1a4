"""From a traced network and a design to the branched network, and from chosen ratios to a design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor, fx, nn

from nnstretch.branching.channels import ChannelPlan, plan_channels
from nnstretch.branching.counting import Cost, part_cost
from nnstretch.branching.design import BranchDesign, Design, Entry, Merge, SegmentDesign, design_id
from nnstretch.branching.fitting import check_choices, check_pieces, check_written
from nnstretch.branching.inherit import Inherited, is_exact, scaled_copy
from nnstretch.branching.meeting import (
    Statistics,
    fill_ends,
    fill_exits,
    first_scores,
    merged_channels,
    shares,
    statistics,
)
from nnstretch.branching.network import Branch, BranchedNetwork, BranchedSegment
from nnstretch.branching.operators import channels_of
from nnstretch.branching.scaling import (
    AS_THEY_WERE,
    DEFAULT_MULTIPLE,
    Read,
    Scores,
    Taps,
    bundle_scores,
    full_selection,
    kept_counts,
    output_channels,
)
from nnstretch.branching.selecting import explicit_counts, selections
from nnstretch.branching.ties import Indices
from nnstretch.branching.tracing import Segment, TracedNetwork, trace
from nnstretch.branching.variants import FIRST, PLAIN, Ends, branch_plan
from nnstretch.errors import DesignError


@dataclass(frozen=True)
class BranchChoice:
    """What decides one branch.

    Attributes:
        processor: who runs it.
        blocks: of the segment, ascending; those that are named again run again.
        width: ratio to which all layers are scaled; up to 1, or more if `spaces` says what that means.
        ends: what it has at its ends.
        spaces: channels of the spaces of its plan, if they are not those that `width` gives.
    """

    processor: int
    blocks: tuple[int, ...]
    width: float
    ends: Ends = PLAIN
    spaces: tuple[int, ...] | None = None

    @staticmethod
    def whole(segment: Segment, processor: int) -> BranchChoice:
        """The segment as it was."""
        return BranchChoice(processor, tuple(segment.blocks), 1.0)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A traced network with the channel plans of its parts, each worked out once.

    Attributes:
        traced: the network.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
        merge: how branches meet.
    """

    traced: TracedNetwork
    multiple: int = DEFAULT_MULTIPLE
    merge: Merge = Merge.CONCAT
    _plans: dict[tuple[Segment, tuple[int, ...], Ends], ChannelPlan] = field(default_factory=dict)
    _scores: dict[tuple[Segment, tuple[int, ...], Ends], tuple[Scores, ...]] = field(default_factory=dict)

    @cached_property
    def head(self) -> ChannelPlan:
        """What follows the last block. It is not scaled."""
        return plan_channels([self.traced.head], [0], lock_output=True)

    @cached_property
    def statistics(self) -> Statistics:
        """Mean and variance of every channel between blocks, on the example input."""
        return statistics(self.traced)

    def branch(self, segment: Segment, blocks: tuple[int, ...], ends: Ends = PLAIN) -> ChannelPlan:
        """Those of the segment's blocks that are kept, and what is at their ends."""
        key = (segment, blocks, ends)
        if key not in self._plans:
            self._plans[key] = branch_plan(self.traced, segment, blocks, ends)
        return self._plans[key]

    def plan(self, segment: Segment, choice: BranchChoice) -> ChannelPlan:
        """The channel plan of a branch."""
        return self.branch(segment, choice.blocks, choice.ends)

    def counts(self, segment: Segment, choice: BranchChoice) -> tuple[int, ...]:
        """Bundles that a branch keeps of every space of its plan.

        Raises:
            DesignError: the channels that the choice names are not those of its spaces.
        """
        plan = self.plan(segment, choice)
        if choice.spaces is None:
            return kept_counts(plan, choice.width, self.multiple)
        return explicit_counts(plan, choice.spaces, self.traced.name_of(segment))

    def whole(self, segment: Segment) -> ChannelPlan:
        """All of the segment's blocks."""
        return self.branch(segment, tuple(segment.blocks))

    def scores(self, segment: Segment, blocks: tuple[int, ...], ends: Ends = PLAIN) -> tuple[Scores, ...]:
        """How much each bundle of a branch's spaces matters."""
        key = (segment, blocks, ends)
        if key not in self._scores:
            plan = self.branch(segment, blocks, ends)
            found = list(bundle_scores(plan))
            first = first_scores(plan)
            if first is not None:
                index, bundles = next(made for node, made in plan.made.items() if node.target == f"{FIRST}.conv")
                found[index] = found[index] + np.bincount(bundles, weights=first, minlength=len(found[index]))
            self._scores[key] = tuple(found)
        return self._scores[key]

    def meeting(self, segment: Segment, branches: Sequence[BranchChoice]) -> tuple[BranchChoice, ...]:
        """The branches with what this way of merging has at their ends; one alone meets nobody."""
        if self.merge is Merge.CONCAT or len(branches) == 1:
            return tuple(branches)
        channels = self.channels_before(segment.stop)
        alike = self.merge is Merge.ADD
        places = [(0, channels)] * len(branches) if alike else shares(channels, len(branches))
        return tuple(
            replace(branch, ends=replace(branch.ends, exit=place))
            for branch, place in zip(branches, places, strict=True)
        )

    def channels_before(self, block: int) -> int:
        """Channels of the tensor that the block of that number reads; past the last one, the head."""
        return channels_of(self.boundary(block))

    def branchable(self, segment: Segment) -> bool:
        """Whether the segment's output can be shared out among branches, or made anew at their ends."""
        heavy = any(block.heavy for block in self.traced.blocks_of(segment)) and self.traced.is_whole(segment)
        return heavy and (self.merge is not Merge.CONCAT or self.whole(segment).branchable)

    def depth_options(self, segment: Segment, least: float = 0.0) -> list[tuple[int, ...]]:
        """Kept blocks for every depth, from all of them down; those that change their input least go first.

        Depths whose output is put together in another way than the whole segment's are left out: their channels could
        not be shared out with those of other branches. So are such as keep less than `least` of the segment's blocks with a
        convolution or dense layer.
        """
        blocks = self.traced.blocks
        by_change = sorted((i for i in segment.blocks if blocks[i].droppable), key=lambda i: (blocks[i].change, -i))
        options = []
        for dropped in range(len(by_change) + 1):
            kept = tuple(i for i in segment.blocks if i not in by_change[:dropped])
            if any(blocks[i].heavy for i in kept) and self.depth_ratio(segment, kept) >= least:
                options.append(kept)
        return [kept for kept in options if self.merge is not Merge.CONCAT or self.same_output(segment, kept)]

    def same_output(self, segment: Segment, blocks: tuple[int, ...]) -> bool:
        """Whether a branch of these blocks writes channels in the same arrangement as the whole segment."""
        whole, part = self.whole(segment), self.branch(segment, blocks)
        return [(space.bundles, space.bundle_channels, space.locked) for space in whole.output_spaces] == [
            (space.bundles, space.bundle_channels, space.locked) for space in part.output_spaces
        ]

    def depth_ratio(self, segment: Segment, blocks: Sequence[int]) -> float:
        """Share of the segment's blocks with a convolution or dense layer that are kept; 1 if it has none."""
        there = sum(block.heavy for block in self.traced.blocks_of(segment))
        return sum(self.traced.blocks[i].heavy for i in blocks) / there if there else 1.0

    def cost(
        self, segment: Segment, choice: BranchChoice, in_channels: int, *, exact: bool, taps: Taps = AS_THEY_WERE
    ) -> Cost:
        """MACs and parameters of a branch that reads so many channels."""
        return part_cost(self.plan(segment, choice), self.counts(segment, choice), in_channels, exact=exact, taps=taps)

    def written(self, segment: Segment, choice: BranchChoice, in_channels: int, taps: Taps = AS_THEY_WERE) -> int:
        """Channels that a branch writes."""
        return output_channels(self.plan(segment, choice), self.counts(segment, choice), in_channels, taps)

    def boundary(self, block: int) -> fx.Node:
        """The tensor that the block of that number reads; past the last one, the head."""
        blocks = self.traced.blocks
        return blocks[block].source if block < len(blocks) else blocks[-1].output


def blueprint(
    module: nn.Module, example_input: Tensor, multiple: int = DEFAULT_MULTIPLE, merge: Merge = Merge.CONCAT
) -> Blueprint:
    """Traces `module` and prepares it for scaling.

    Raises:
        DesignError: it cannot be traced or has nothing to branch, or `multiple` is below 1.
    """
    if multiple < 1:
        raise DesignError(f"channels cannot be multiples of {multiple}; give 1 or more")
    return Blueprint(trace(module, example_input), multiple, merge)


@dataclass(frozen=True)
class SegmentChoice:
    """What decides a segment: where it lies, and its branches in the order in which they are merged."""

    segment: Segment
    branches: tuple[BranchChoice, ...]


def make_design(
    blueprint: Blueprint,
    choices: Sequence[SegmentChoice],
    branch_ms: Sequence[Sequence[float]] | None = None,
    predicted_ms: float | None = None,
) -> Design:
    """The design with the given branches, its MACs and parameters counted exactly.

    Args:
        blueprint: the network.
        choices: segments that follow one another and cover the network.
        branch_ms: predicted latency of every branch, if known.
        predicted_ms: predicted latency of the whole, if known.

    Raises:
        DesignError: a choice does not fit the network.
    """
    check_choices(blueprint, choices)
    total = Cost(0, 0)
    channels, exact = blueprint.channels_before(0), True
    reads = {blueprint.boundary(0): Read(channels, exact)}
    segments = []
    for number, choice in enumerate(choices):
        made = []
        for i, branch in enumerate(choice.branches):
            cost = blueprint.cost(choice.segment, branch, channels, exact=exact, taps=reads)
            total += cost
            made.append(
                BranchDesign(
                    processor=branch.processor,
                    blocks=branch.blocks,
                    depth=blueprint.depth_ratio(choice.segment, branch.blocks),
                    width=branch.width,
                    channels=blueprint.written(choice.segment, branch, channels, reads),
                    macs=cost.macs,
                    predicted_ms=None if branch_ms is None else branch_ms[number][i],
                    entry=branch.ends.entry,
                    has_exit=branch.ends.exit is not None,
                    spaces=branch.spaces,
                )
            )
        check_written(blueprint, number, choice.segment, made)
        segments.append(SegmentDesign(choice.segment.first, choice.segment.stop, tuple(made)))
        written = [branch.channels for branch in made]
        channels, exact = merged_channels(blueprint.merge, written), stays_exact(blueprint, choice.segment, written)
        reads[blueprint.boundary(choice.segment.stop)] = Read(channels, exact)
    total += _head_cost(blueprint, channels, exact=exact, taps=reads)
    original = original_cost(blueprint)
    return Design(
        id=design_id(segments, blueprint.multiple, blueprint.merge),
        segments=tuple(segments),
        multiple=blueprint.multiple,
        original_macs=original.macs,
        original_params=original.params,
        macs=total.macs,
        params=total.params,
        predicted_ms=predicted_ms,
        merge=blueprint.merge,
    )


def original_cost(blueprint: Blueprint) -> Cost:
    """MACs and parameters of the network as it was."""
    head = _head_cost(blueprint, channels_of(blueprint.head.source), exact=True)
    return head + segment_cost(blueprint, Segment(0, len(blueprint.traced.blocks)))


def segment_cost(blueprint: Blueprint, segment: Segment) -> Cost:
    """MACs and parameters of a segment as it was."""
    return blueprint.cost(segment, BranchChoice.whole(segment, 0), blueprint.channels_before(segment.first), exact=True)


def _head_cost(blueprint: Blueprint, channels: int, *, exact: bool, taps: Taps = AS_THEY_WERE) -> Cost:
    return part_cost(blueprint.head, kept_counts(blueprint.head, 1.0), channels, exact=exact, taps=taps)


def build(blueprint: Blueprint, design: Design) -> BranchedNetwork:
    """The branched network of `design` with weights inherited from the traced network, in the mode that one was in.

    Raises:
        DesignError: the design is for another network.
    """
    if (design.multiple, design.merge) != (blueprint.multiple, blueprint.merge):
        raise DesignError(
            f"the design has layers of multiples of {design.multiple} channels and merges by {design.merge.value}, the network "
            f"was prepared for {blueprint.multiple} and {blueprint.merge.value}; prepare it with the design's"
        )
    choices = choices_of(design)
    check_choices(blueprint, choices)
    start = Inherited(np.arange(blueprint.channels_before(0), dtype=np.int64), exact=True)
    written = {blueprint.boundary(0): start}
    segments, taps = [], []
    for number, (segment, choice) in enumerate(zip(design.segments, choices, strict=True)):
        copies, pieces = _branches(blueprint, choice, written)
        check_pieces(number, segment, pieces)
        taps.append(_taps(blueprint.whole(choice.segment), written))
        segments.append(BranchedSegment([Branch(copy) for copy in copies], design.merge))
        origins = pieces[0] if design.merge is Merge.ADD else np.concatenate(pieces)
        exact = stays_exact(blueprint, choice.segment, [branch.channels for branch in segment.branches])
        if exact and not is_exact(origins, blueprint.channels_before(segment.stop)):
            raise DesignError(
                f"the branches of segment {number} of the design do not make the original channels in their order; "
                "end them with convolutions (Blueprint.meeting)"
            )
        written[blueprint.boundary(segment.stop)] = Inherited(origins, exact)
    last = written[blueprint.head.source]
    head, _ = scaled_copy(blueprint.head, full_selection(blueprint.head), last.origins, exact=last.exact, taps=written)
    taps.append(_taps(blueprint.head, written))
    return BranchedNetwork(segments, head, design, taps).train(blueprint.traced.training)


def _taps(plan: ChannelPlan, written: Mapping[fx.Node, Inherited]) -> tuple[int, ...]:
    """Numbers of the meeting points at which a plan's taps are; a plan never reads what is not one."""
    numbers = {tensor: number for number, tensor in enumerate(written)}
    return tuple(numbers[tap] for tap in plan.taps)


def _branches(
    blueprint: Blueprint, choice: SegmentChoice, written: Mapping[fx.Node, Inherited]
) -> tuple[list[nn.Module], list[Indices]]:
    """The branches of a segment, and the original channels that each of them writes; `written` are all tensors before it."""
    place, blocks = choice.segment, blueprint.traced.blocks
    tensors = blocks[place.first].source, blocks[place.stop - 1].output
    read = written[tensors[0]]
    copies: list[nn.Module] = []
    pieces: list[Indices] = []
    for branch, selection in zip(choice.branches, selections(blueprint, choice), strict=True):
        plan = blueprint.plan(place, branch)
        copy, piece = scaled_copy(plan, selection, read.origins, exact=read.exact, taps=written)
        if branch.ends.entry is not Entry.AS_NEEDED:
            fill_ends(plan, selection, copy, blueprint.statistics, tensors[0])
        copies.append(copy)
        pieces.append(piece if branch.ends.exit is None else np.arange(*branch.ends.exit, dtype=np.int64))
    exits = [branch.ends.exit for branch in choice.branches]
    if any(exits):
        fill_exits(blueprint.merge, copies, exits, blueprint.statistics, tensors[1])
    return copies, pieces


def choices_of(design: Design) -> list[SegmentChoice]:
    """What decides `design`."""
    return [SegmentChoice(_place(segment), _branch_choices(design.merge, segment)) for segment in design.segments]


def _branch_choices(merge: Merge, segment: SegmentDesign) -> tuple[BranchChoice, ...]:
    choices, first = [], 0
    for branch in segment.branches:
        place = (first, first + branch.channels) if branch.has_exit else None
        ends = Ends(branch.entry, place)
        choices.append(BranchChoice(branch.processor, branch.blocks, branch.width, ends, branch.spaces))
        # Branches that are concatenated write one channel after the other, those that are summed the same ones.
        first += 0 if merge is Merge.ADD else branch.channels
    return tuple(choices)


def _place(segment: SegmentDesign) -> Segment:
    return Segment(segment.first, segment.stop)


def stays_exact(blueprint: Blueprint, segment: Segment, written: Sequence[int]) -> bool:
    """Whether a segment whose branches write so many channels writes the original ones, each once and in order.

    So does one with one branch that keeps them all, and one whose branches' last convolutions make them anew.
    """
    made_anew = len(written) > 1 and blueprint.merge is not Merge.CONCAT
    return made_anew or list(written) == [blueprint.channels_before(segment.stop)]
