"""Builds the branched network of a design, with inherited weights, from a traced network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import full_selection
from nnstretch.branching.channels.selection import selections
from nnstretch.branching.channels.union_find import Indices
from nnstretch.branching.design.blueprint import Blueprint, SegmentChoice
from nnstretch.branching.design.design import Design, Entry, Merge
from nnstretch.branching.design.from_choices import choices_of, stays_exact
from nnstretch.branching.design.validate import check_choices, check_pieces
from nnstretch.branching.transform.inherit import ChannelOrigins, is_exact, scaled_copy
from nnstretch.branching.transform.merge import initialise_entries, initialise_exits
from nnstretch.branching.transform.network import Branch, BranchedNetwork, BranchedSegment
from nnstretch.errors import DesignError


def build(blueprint: Blueprint, design: Design) -> BranchedNetwork:
    """The branched network of `design` with weights inherited from the traced network, in that network's training mode.

    Raises:
        DesignError: the design is for another network, or was made with other settings.
    """
    if (design.multiple, design.merge) != (blueprint.multiple, blueprint.merge):
        raise DesignError(
            f"the design has layers of multiples of {design.multiple} channels and merges by {design.merge.value}, the network "
            f"was prepared for {blueprint.multiple} and {blueprint.merge.value}; prepare it with the design's settings"
        )
    choices = choices_of(design)
    check_choices(blueprint, choices)
    start = ChannelOrigins(np.arange(blueprint.channels_before(0), dtype=np.int64), exact=True)
    written = {blueprint.boundary(0): start}
    segments, skips = [], []
    for number, (segment, choice) in enumerate(zip(design.segments, choices, strict=True)):
        copies, pieces = _branches(blueprint, choice, written)
        check_pieces(number, segment, pieces)
        skips.append(_skip_sources(blueprint.whole(choice.segment), written))
        segments.append(BranchedSegment([Branch(copy) for copy in copies], design.merge))
        origins = pieces[0] if design.merge is Merge.ADD else np.concatenate(pieces)
        exact = stays_exact(blueprint, choice.segment, [branch.channels for branch in segment.branches])
        if exact and not is_exact(origins, blueprint.channels_before(segment.stop)):
            raise DesignError(
                f"the branches of segment {number} of the design do not make the original channels in their order; "
                "end them with convolutions (Blueprint.meeting)"
            )
        written[blueprint.boundary(segment.stop)] = ChannelOrigins(origins, exact)
    last = written[blueprint.head.source]
    head, _ = scaled_copy(blueprint.head, full_selection(blueprint.head), last.origins, exact=last.exact, skips=written)
    skips.append(_skip_sources(blueprint.head, written))
    return BranchedNetwork(segments, head, design, skips).train(blueprint.traced.training)


def _skip_sources(plan: ChannelPlan, written: Mapping[fx.Node, ChannelOrigins]) -> tuple[int, ...]:
    """Meeting points, by number, that hold a plan's skip inputs; a plan reads no other tensors."""
    numbers = {tensor: number for number, tensor in enumerate(written)}
    return tuple(numbers[skip] for skip in plan.skips)


def _branches(
    blueprint: Blueprint, choice: SegmentChoice, written: Mapping[fx.Node, ChannelOrigins]
) -> tuple[list[nn.Module], list[Indices]]:
    """The branches of a segment, and the original channels that each writes; `written` holds earlier tensors."""
    place, blocks = choice.segment, blueprint.traced.blocks
    tensors = blocks[place.first].source, blocks[place.stop - 1].output
    read = written[tensors[0]]
    copies: list[nn.Module] = []
    pieces: list[Indices] = []
    for branch, selection in zip(choice.branches, selections(blueprint, choice), strict=True):
        plan = blueprint.plan(place, branch)
        copy, piece = scaled_copy(plan, selection, read.origins, exact=read.exact, skips=written)
        if branch.ends.entry is not Entry.AS_NEEDED:
            initialise_entries(plan, selection, copy, blueprint.statistics, tensors[0])
        copies.append(copy)
        pieces.append(piece if branch.ends.exit is None else np.arange(*branch.ends.exit, dtype=np.int64))
    exits = [branch.ends.exit for branch in choice.branches]
    if any(exits):
        initialise_exits(blueprint.merge, copies, exits, blueprint.statistics, tensors[1])
    return copies, pieces
