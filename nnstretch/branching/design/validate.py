"""Validates that a design fits the network it is for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from nnstretch.branching.channels.union_find import Indices
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.design import BranchDesign, Merge, SegmentDesign
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.errors import DesignError


def check_choices(blueprint: Blueprint, choices: Sequence[SegmentChoice]) -> None:
    """Checks that the choices are for this network.

    Raises:
        DesignError: they are not; the message names the cause.
    """
    count = len(blueprint.traced.blocks)
    places = [choice.segment for choice in choices]
    borders = [0, *(place.stop for place in places)]
    if [place.first for place in places] != borders[:-1] or borders[-1] != count or not _ascending(borders):
        raise DesignError(
            f"the design's segments end at blocks {borders[1:]}, the network has {count}; "
            "use the network that the design was made for"
        )
    for number, choice in enumerate(choices):
        if not blueprint.traced.is_self_contained(choice.segment):
            raise DesignError(
                f"segment {number} ({blueprint.traced.name_of(choice.segment)}) has an inner tensor that is read behind "
                "it; end a segment there"
            )
        if not choice.branches:
            raise DesignError(f"segment {number} has no branch; give one or more")
        for branch in choice.branches:
            _check_branch(blueprint, number, choice.segment, branch)
        if len(choice.branches) > 1:
            _check_meeting(blueprint, number, choice)


def _ascending(borders: Sequence[int]) -> bool:
    return all(before < after for before, after in itertools.pairwise(borders))


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


def check_pieces(number: int, segment: SegmentDesign, pieces: Sequence[Indices]) -> None:
    """Checks that branches write as many channels as the design says.

    Args:
        number: of the segment, for messages.
        segment: the design.
        pieces: original channels that each branch writes.

    Raises:
        DesignError: a number differs.
    """
    for branch, piece in zip(segment.branches, pieces, strict=True):
        if len(piece) != branch.channels:
            raise DesignError(
                f"segment {number} of the design writes {branch.channels} channels in a branch, this "
                f"network's {len(piece)}; use the network that the design was made for"
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
