"""A traced network prepared for scaling, and the choices that determine the branches of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor, fx, nn

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import (
    DEFAULT_MULTIPLE,
    ORIGINAL,
    ReadChannels,
    Scores,
    explicit_counts,
    importance_scores,
    kept_counts,
    output_channels,
)
from nnstretch.branching.design.cost import Cost, part_cost
from nnstretch.branching.design.design import Merge
from nnstretch.branching.tracing.head_parts import HeadParts, head_parts
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.branching.tracing.trace import Segment, TracedNetwork, trace
from nnstretch.branching.transform.merge import ChannelStatistics, channel_statistics, entry_scores, even_ranges
from nnstretch.branching.transform.variants import FIRST, PLAIN, Ends, branch_plan
from nnstretch.errors import DesignError


@dataclass(frozen=True)
class BranchChoice:
    """What determines one branch.

    Attributes:
        processor: index of the processor that runs it.
        blocks: numbers of the kept blocks, ascending; a repeated number runs again.
        width: width ratio of all layers; up to 1, or more with `explicit_channels`.
        ends: convolutions at its ends.
        explicit_channels: channels of every dependency group of its plan; None: those that `width` gives.
    """

    processor: int
    blocks: tuple[int, ...]
    width: float
    ends: Ends = PLAIN
    explicit_channels: tuple[int, ...] | None = None

    @staticmethod
    def whole(segment: Segment, processor: int) -> BranchChoice:
        """The original segment as one branch."""
        return BranchChoice(processor, tuple(segment.blocks), 1.0)


@dataclass(frozen=True)
class SegmentChoice:
    """What determines a segment: its place in the chain, and its branches in merge order.

    Attributes:
        segment: its place.
        branches: a single one means that it is not branched.
        split: indices of the processors on which the scheduler places and splits the layers of a single branch; empty if
            all layers are the branch's processor's.
    """

    segment: Segment
    branches: tuple[BranchChoice, ...]
    split: tuple[int, ...] = ()

    @staticmethod
    def split_over(segment: Segment, group: tuple[int, ...]) -> SegmentChoice:
        """The original segment with its layers split over a group of processors; its branch names the first of these."""
        return SegmentChoice(segment, (BranchChoice.whole(segment, group[0]),), group)


@dataclass(frozen=True)
class HeadChoice:
    """What determines one branch of a head: its processor, the towers that it computes, and their width ratio."""

    processor: int
    towers: tuple[int, ...]
    width: float


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A traced network with cached channel plans of its parts.

    Attributes:
        traced: the network.
        multiple: scaled layers have multiples of this many channels, unless the layer is narrower.
        merge: how branches are merged.
    """

    traced: TracedNetwork
    multiple: int = DEFAULT_MULTIPLE
    merge: Merge = Merge.CONCAT
    _plans: dict[tuple[Segment, tuple[int, ...], Ends], ChannelPlan] = field(default_factory=dict)
    _scores: dict[tuple[Segment, tuple[int, ...], Ends], tuple[Scores, ...]] = field(default_factory=dict)
    _towers: dict[tuple[int, ...], ChannelPlan] = field(default_factory=dict)

    @cached_property
    def head(self) -> ChannelPlan:
        """Channel plan of the whole head, where it has no branches."""
        return plan_channels([self.traced.head], [0], lock_output=True)

    @cached_property
    def head_parts(self) -> HeadParts | None:
        """The parts of the head that can be branches; None if there are none."""
        return head_parts(self.traced.head)

    @property
    def tower_count(self) -> int:
        """Number of towers of the head; 0 if it cannot be branched."""
        return len(self.head_parts.towers) if self.head_parts else 0

    @cached_property
    def tail(self) -> ChannelPlan:
        """Channel plan of what is left of the head when its towers are branches."""
        assert self.head_parts is not None
        return plan_channels([self.head_parts.tail], [0], lock_output=True)

    def towers(self, numbers: tuple[int, ...]) -> ChannelPlan:
        """Channel plan of a branch with these towers of the head; its results keep all channels."""
        if numbers not in self._towers:
            assert self.head_parts is not None
            self._towers[numbers] = plan_channels([self.head_parts.branch(numbers)], [0], lock_output=True)
        return self._towers[numbers]

    def head_cost(self, choice: HeadChoice, reads: ReadChannels = ORIGINAL) -> Cost:
        """MACs and parameters of a branch of the head that reads tensors with these channels."""
        plan = self.towers(choice.towers)
        return part_cost(plan, kept_counts(plan, choice.width, self.multiple), reads)

    @cached_property
    def statistics(self) -> ChannelStatistics:
        """Mean and variance of every channel between blocks, on the example input."""
        return channel_statistics(self.traced)

    def branch(self, segment: Segment, blocks: tuple[int, ...], ends: Ends = PLAIN) -> ChannelPlan:
        """Channel plan of a branch that keeps `blocks` of a segment and has `ends`."""
        key = (segment, blocks, ends)
        if key not in self._plans:
            self._plans[key] = branch_plan(self.traced, segment, blocks, ends)
        return self._plans[key]

    def plan(self, segment: Segment, choice: BranchChoice) -> ChannelPlan:
        """Channel plan of a branch."""
        return self.branch(segment, choice.blocks, choice.ends)

    def counts(self, segment: Segment, choice: BranchChoice) -> tuple[int, ...]:
        """Channel groups that a branch keeps of every dependency group.

        Raises:
            DesignError: `explicit_channels` do not fit the dependency groups.
        """
        plan = self.plan(segment, choice)
        if choice.explicit_channels is None:
            return kept_counts(plan, choice.width, self.multiple)
        return explicit_counts(plan, choice.explicit_channels, self.traced.name_of(segment))

    def whole(self, segment: Segment) -> ChannelPlan:
        """Channel plan of the whole segment."""
        return self.branch(segment, tuple(segment.blocks))

    def scores(self, segment: Segment, blocks: tuple[int, ...], ends: Ends = PLAIN) -> tuple[Scores, ...]:
        """Importance of each channel group of a branch's dependency groups."""
        key = (segment, blocks, ends)
        if key not in self._scores:
            plan = self.branch(segment, blocks, ends)
            found = list(importance_scores(plan))
            first = entry_scores(plan)
            if first is not None:
                index, channel_groups = next(
                    made for node, made in plan.produced.items() if node.target == f"{FIRST}.conv"
                )
                found[index] = found[index] + np.bincount(channel_groups, weights=first, minlength=len(found[index]))
            self._scores[key] = tuple(found)
        return self._scores[key]

    def meeting(self, segment: Segment, branches: Sequence[BranchChoice]) -> tuple[BranchChoice, ...]:
        """The branches with the exit convolutions that the merge mode needs; a single branch gets none."""
        if self.merge is Merge.CONCAT or len(branches) == 1:
            return tuple(branches)
        channels = self.channels_before(segment.stop)
        alike = self.merge is Merge.ADD
        places = [(0, channels)] * len(branches) if alike else even_ranges(channels, len(branches))
        return tuple(
            replace(branch, ends=replace(branch.ends, exit=place))
            for branch, place in zip(branches, places, strict=True)
        )

    def channels_before(self, block: int) -> int:
        """Channels of the input of block `block`; past the last block, of the head."""
        return channels_of(self.boundary(block))

    def branchable(self, segment: Segment) -> bool:
        """Whether the segment's output can be divided among branches, or be made by their exit convolutions."""
        heavy = any(block.has_weights for block in self.traced.blocks_of(segment)) and self.traced.is_self_contained(
            segment
        )
        return heavy and (self.merge is not Merge.CONCAT or self.whole(segment).branchable)

    def depth_candidates(self, segment: Segment, least: float = 0.0) -> list[tuple[int, ...]]:
        """Kept blocks for every depth, deepest first; blocks that change their input least are dropped first.

        Left out are depths below `least` and, for concatenation, depths whose output is arranged differently
        from the whole segment's, since their channels could not be divided among branches.

        Args:
            segment: where the branch lies.
            least: minimum share of blocks with weight layers.
        """
        blocks = self.traced.blocks
        by_change = sorted((i for i in segment.blocks if blocks[i].droppable), key=lambda i: (blocks[i].change, -i))
        options = []
        for dropped in range(len(by_change) + 1):
            kept = tuple(i for i in segment.blocks if i not in by_change[:dropped])
            if any(blocks[i].has_weights for i in kept) and self.depth_ratio(segment, kept) >= least:
                options.append(kept)
        return [kept for kept in options if self.merge is not Merge.CONCAT or self.same_output(segment, kept)]

    def same_output(self, segment: Segment, blocks: tuple[int, ...]) -> bool:
        """Whether a branch with these blocks arranges its output channels as the whole segment does."""
        whole, part = self.whole(segment), self.branch(segment, blocks)
        return [(group.channel_groups, group.group_channels, group.locked) for group in whole.output_groups] == [
            (group.channel_groups, group.group_channels, group.locked) for group in part.output_groups
        ]

    def depth_ratio(self, segment: Segment, blocks: Sequence[int]) -> float:
        """Share of the segment's blocks with weight layers that are kept; 1 if it has none."""
        there = sum(block.has_weights for block in self.traced.blocks_of(segment))
        return sum(self.traced.blocks[i].has_weights for i in blocks) / there if there else 1.0

    def cost(self, segment: Segment, choice: BranchChoice, reads: ReadChannels = ORIGINAL) -> Cost:
        """MACs and parameters of a branch that reads tensors with these channels."""
        return part_cost(self.plan(segment, choice), self.counts(segment, choice), reads)

    def written(self, segment: Segment, choice: BranchChoice, reads: ReadChannels = ORIGINAL) -> int:
        """Channels that a branch writes."""
        return output_channels(self.plan(segment, choice), self.counts(segment, choice), reads)

    @cached_property
    def original_cost(self) -> Cost:
        """MACs and parameters of the original network."""
        whole = Segment(0, len(self.traced.blocks))
        return part_cost(self.head, kept_counts(self.head, 1.0)) + self.cost(whole, BranchChoice.whole(whole, 0))

    def boundary(self, block: int) -> fx.Node:
        """The input of block `block`; past the last block, of the head."""
        blocks = self.traced.blocks
        return blocks[block].source if block < len(blocks) else blocks[-1].output


def blueprint(
    module: nn.Module, example_input: Tensor, multiple: int = DEFAULT_MULTIPLE, merge: Merge = Merge.CONCAT
) -> Blueprint:
    """Traces `module` and prepares it for scaling.

    Args:
        module: a network; it is not changed.
        example_input: an `N,C,H,W` batch that it accepts.
        multiple: scaled layers have multiples of this many channels, unless the layer is narrower.
        merge: how branches are merged.

    Raises:
        DesignError: the module cannot be traced or has nothing to branch, or `multiple` is below 1.
    """
    if multiple < 1:
        raise DesignError(f"channels cannot be multiples of {multiple}; give 1 or more")
    if hasattr(module, "int8_graph"):
        raise DesignError(
            "the network rounds to int8; branch the one in float32, then train the branched one with the recipe qat"
        )
    return Blueprint(trace(module, example_input), multiple, merge)
