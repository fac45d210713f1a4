"""Converts choices of branches to a design with exact MACs and parameters, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import fx

from nnstretch.branching.channels.scaling import ORIGINAL, ReadChannels, TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, HeadChoice, SegmentChoice
from nnstretch.branching.design.cost import Cost, part_cost
from nnstretch.branching.design.design import BranchDesign, Design, HeadBranch, Merge, SegmentDesign, design_id
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.branching.transform.variants import Ends
from nnstretch.errors import DesignError
from nnstretch.support.image_size import size_of


def make_design(
    blueprint: Blueprint,
    choices: Sequence[SegmentChoice],
    branch_ms: Sequence[Sequence[float]] | None = None,
    predicted_ms: float | None = None,
    head: Sequence[HeadChoice] = (),
    head_ms: Sequence[float] | None = None,
    *,
    pool: bool = False,
) -> Design:
    """The design with the given branches.

    Args:
        blueprint: the network.
        choices: consecutive segments that cover the network.
        branch_ms: predicted milliseconds of every branch, if known.
        predicted_ms: predicted milliseconds of the network, if known.
        head: branches of the head; empty: it is not branched.
        head_ms: predicted milliseconds of these, if known.
        pool: whether all CPU cores work as one processor.

    Raises:
        DesignError: a choice does not fit the network.
    """
    check_choices(blueprint, choices)
    check_head(blueprint, head)
    total = Cost(0, 0)
    reads = dict[fx.Node, TensorChannels]()
    segments = []
    for number, choice in enumerate(choices):
        costs = [blueprint.cost(choice.segment, branch, reads) for branch in choice.branches]
        total = sum(costs, total)
        times = [None] * len(costs) if branch_ms is None else branch_ms[number]
        made = [
            _branch_design(blueprint, choice.segment, branch, reads, cost, ms)
            for branch, cost, ms in zip(choice.branches, costs, times, strict=True)
        ]
        check_written(blueprint, number, choice.segment, made)
        segments.append(SegmentDesign(choice.segment.first, choice.segment.stop, tuple(made), choice.split))
        written = [branch.channels for branch in made]
        reads[blueprint.boundary(choice.segment.stop)] = TensorChannels(
            merged_channels(blueprint.merge, written), stays_exact(blueprint, choice.segment, written)
        )
    costs = [blueprint.head_cost(branch, reads) for branch in head]
    total += sum(costs, _tail_cost(blueprint, reads)) if head else _head_cost(blueprint, reads)
    made_head = tuple(
        HeadBranch(branch.processor, branch.towers, branch.width, cost.macs, None if head_ms is None else head_ms[i])
        for i, (branch, cost) in enumerate(zip(head, costs, strict=True))
    )
    original = blueprint.original_cost
    return Design(
        id=design_id(segments, blueprint.multiple, blueprint.merge, made_head, pool=pool),
        segments=tuple(segments),
        multiple=blueprint.multiple,
        original_macs=original.macs,
        original_params=original.params,
        macs=total.macs,
        params=total.params,
        predicted_ms=predicted_ms,
        merge=blueprint.merge,
        image_size=size_of(*blueprint.traced.example_input.shape[2:]),
        head=made_head,
        pool=pool,
    )


def _branch_design(
    blueprint: Blueprint, segment: Segment, branch: BranchChoice, reads: ReadChannels, cost: Cost, ms: float | None
) -> BranchDesign:
    """A branch that reads tensors with these channels, with its cost and its predicted milliseconds."""
    return BranchDesign(
        processor=branch.processor,
        blocks=branch.blocks,
        depth=blueprint.depth_ratio(segment, branch.blocks),
        width=branch.width,
        channels=blueprint.written(segment, branch, reads),
        macs=cost.macs,
        predicted_ms=ms,
        entry=branch.ends.entry,
        has_exit=branch.ends.exit is not None,
        explicit_channels=branch.explicit_channels,
    )


def segment_cost(blueprint: Blueprint, segment: Segment) -> Cost:
    """MACs and parameters of an original segment."""
    return blueprint.cost(segment, BranchChoice.whole(segment, 0))


def _head_cost(blueprint: Blueprint, reads: ReadChannels = ORIGINAL) -> Cost:
    return part_cost(blueprint.head, kept_counts(blueprint.head, 1.0), reads)


def _tail_cost(blueprint: Blueprint, reads: ReadChannels) -> Cost:
    return part_cost(blueprint.tail, kept_counts(blueprint.tail, 1.0), reads)


def head_of(design: Design) -> tuple[HeadChoice, ...]:
    """The choices that determine the branches of a design's head."""
    return tuple(HeadChoice(branch.processor, branch.towers, branch.width) for branch in design.head)


def check_head(blueprint: Blueprint, head: Sequence[HeadChoice]) -> None:
    """Checks that branches of the head have each of its towers once.

    Raises:
        DesignError: they do not.
    """
    found = sorted(tower for branch in head for tower in branch.towers)
    if head and (found != list(range(blueprint.tower_count)) or not all(branch.towers for branch in head)):
        raise DesignError(
            f"the branches of the design's head have parts {found}, the network's head has {blueprint.tower_count}; "
            "use the network that the design was made for"
        )
    for branch in head:
        if not 0.0 < branch.width <= 1.0 or branch.processor < 0:
            raise DesignError(
                f"a branch of the head has width {branch.width} and processor {branch.processor}; "
                "a width is above 0 and up to 1, a processor 0 or more"
            )


def choices_of(design: Design) -> list[SegmentChoice]:
    """The choices that determine `design`."""
    return [
        SegmentChoice(Segment(segment.first, segment.stop), _branch_choices(design.merge, segment), segment.split)
        for segment in design.segments
    ]


def _branch_choices(merge: Merge, segment: SegmentDesign) -> tuple[BranchChoice, ...]:
    choices, first = [], 0
    for branch in segment.branches:
        place = (first, first + branch.channels) if branch.has_exit else None
        ends = Ends(branch.entry, place)
        choices.append(BranchChoice(branch.processor, branch.blocks, branch.width, ends, branch.explicit_channels))
        # Concatenated branches write consecutive ranges of channels; summed branches write the same ones.
        first += 0 if merge is Merge.ADD else branch.channels
    return tuple(choices)


def stays_exact(blueprint: Blueprint, segment: Segment, written: Sequence[int]) -> bool:
    """Whether a segment whose branches write `written` channels writes the original channels, each once and in order.

    That holds for a single branch that keeps them all, and for branches with exit convolutions.
    """
    has_exits = len(written) > 1 and blueprint.merge is not Merge.CONCAT
    return has_exits or list(written) == [blueprint.channels_before(segment.stop)]


def check_choices(blueprint: Blueprint, choices: Sequence[SegmentChoice]) -> None:
    """Checks that the choices are for this network.

    Raises:
        DesignError: they are not; the message names the cause.
    """
    count = len(blueprint.traced.blocks)
    places = [choice.segment for choice in choices]
    borders = [0, *(place.stop for place in places)]
    follow = [place.first for place in places] == borders[:-1] and borders == sorted(set(borders))
    if not follow or borders[-1] != count:
        raise DesignError(
            f"the design's segments end at blocks {borders[1:]}, the network has {count}; "
            "use the network that the design was made for"
        )
    for number, choice in enumerate(choices):
        if not blueprint.traced.is_self_contained(choice.segment):
            raise DesignError(
                f"segment {number} ({blueprint.traced.name_of(choice.segment)}) has an inner tensor that is read after "
                "it; end a segment there"
            )
        if not choice.branches:
            raise DesignError(f"segment {number} has no branch; give one or more")
        for branch in choice.branches:
            _check_branch(blueprint, number, choice.segment, branch)
        if len(choice.branches) > 1:
            _check_meeting(blueprint, number, choice)


def _check_meeting(blueprint: Blueprint, number: int, choice: SegmentChoice) -> None:
    if not blueprint.branchable(choice.segment):
        raise DesignError(
            f"segment {number} ({blueprint.traced.name_of(choice.segment)}) cannot be branched: "
            "all channels that it writes must stay together; give it one branch"
        )
    merged = blueprint.merge is not Merge.CONCAT
    if not merged and not all(blueprint.same_output(choice.segment, branch.blocks) for branch in choice.branches):
        raise DesignError(
            f"the branches of segment {number} would arrange their channels differently; "
            "keep its last block in all of them"
        )


def check_written(blueprint: Blueprint, number: int, segment: Segment, branches: Sequence[BranchDesign]) -> None:
    """Checks that branches with exit convolutions write the original channels.

    Raises:
        DesignError: they do not.
    """
    written, channels = [branch.channels for branch in branches], blueprint.channels_before(segment.stop)
    if blueprint.merge is Merge.CONCAT or len(branches) == 1:
        return
    total = merged_channels(blueprint.merge, written)
    if total != channels or (blueprint.merge is Merge.ADD and len(set(written)) > 1):
        raise DesignError(
            f"the branches of segment {number} write {written} channels, which {blueprint.merge.value} cannot merge "
            f"to {channels}; end them with the convolutions that this merge mode needs (Blueprint.meeting)"
        )


def _check_branch(blueprint: Blueprint, number: int, segment: Segment, choice: BranchChoice) -> None:
    blocks = blueprint.traced.blocks
    needed = {i for i in segment.blocks if not blocks[i].droppable}
    kept = set(choice.blocks)
    fits = list(choice.blocks) == sorted(choice.blocks) and needed <= kept <= set(segment.blocks)
    whole = kept == set(segment.blocks)
    if not fits or not (whole or any(blocks[i].has_weights for i in kept)):
        raise DesignError(
            f"a branch of segment {number} keeps blocks {list(choice.blocks)}; of {list(segment.blocks)} "
            f"it must keep {sorted(needed)} and at least one with a convolution"
        )
    most = 1.0 if choice.explicit_channels is None else math.inf
    if not 0.0 < choice.width <= most or choice.width == math.inf or choice.processor < 0:
        raise DesignError(
            f"a branch of segment {number} has width {choice.width} and processor {choice.processor}; "
            "a width is above 0 and up to 1, a processor 0 or more"
        )
