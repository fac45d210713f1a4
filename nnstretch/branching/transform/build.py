"""Builds the branched network of a design, with inherited weights, from a traced network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, DependencyGroup, Indices, network_input
from nnstretch.branching.channels.scaling import best_groups, full_selection, importance_scores, kept_counts
from nnstretch.branching.design.blueprint import Blueprint, HeadChoice, SegmentChoice
from nnstretch.branching.design.design import Design, Entry, Merge, SegmentDesign
from nnstretch.branching.design.from_choices import check_choices, check_head, choices_of, head_of, stays_exact
from nnstretch.branching.transform.inherit import ChannelOrigins, is_exact, scaled_copy
from nnstretch.branching.transform.merge import assign_output_groups, initialise_entries, initialise_exits
from nnstretch.branching.transform.network import Branch, BranchedNetwork, BranchedSegment, Head, HeadBranches
from nnstretch.branching.transform.variants import Ends
from nnstretch.errors import DesignError

_KEPT = 2


@dataclass(eq=False)
class BuiltNetworks:
    """Branched networks of a traced network. The last ones are kept: a search runs a design untuned, tuned, and returns it.

    Attributes:
        blueprint: the traced network.
    """

    blueprint: Blueprint
    _kept: dict[str, BranchedNetwork] = field(default_factory=dict, init=False)

    def of(self, design: Design) -> BranchedNetwork:
        """The network of a design as `build` makes it, or the one that was returned for this structure before."""
        kept = self._kept
        network = kept.pop(design.id) if design.id in kept else build(self.blueprint, design)
        network.design = design  # its predictions may be newer
        self._kept[design.id] = network
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return network


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
    check_head(blueprint, head_of(design))
    start = ChannelOrigins(np.arange(blueprint.channels_before(0), dtype=np.int64), exact=True)
    written = {blueprint.boundary(0): start}
    segments, skips = [], []
    for number, (segment, choice) in enumerate(zip(design.segments, choices, strict=True)):
        copies, pieces = _branches(blueprint, choice, written)
        _check_pieces(number, segment, pieces)
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
    head = _head(blueprint, head_of(design), written)
    stands_for = [tuple(tensor.origins.tolist()) for tensor in written.values()]
    name = str(blueprint.traced.source.target)
    return BranchedNetwork(segments, head, design, skips, stands_for, name).train(blueprint.traced.training)


def _head(blueprint: Blueprint, choices: Sequence[HeadChoice], written: Mapping[fx.Node, ChannelOrigins]) -> Head:
    """The head, whole or with branches; `written` holds the tensors at meeting points."""
    numbers = {tensor: number for number, tensor in enumerate(written)}
    if not choices:
        plan = blueprint.head
        whole, _ = scaled_copy(plan, full_selection(plan), written)
        return Head(whole, [numbers[network_input(tensor)] for tensor in plan.sources])
    copies, reads = [], []
    for choice in choices:
        plan = blueprint.towers(choice.towers)
        counts = kept_counts(plan, choice.width, blueprint.multiple)
        selection = {
            index: best_groups(scores, count)
            for index, (scores, count) in enumerate(zip(importance_scores(plan), counts, strict=True))
        }
        copies.append(Branch(scaled_copy(plan, selection, written)[0]))
        reads.append([numbers[network_input(tensor)] for tensor in plan.sources])
        numbers |= {tensor: number for number, tensor in enumerate(plan.results, len(numbers))}
    plan = blueprint.tail
    tail, _ = scaled_copy(plan, full_selection(plan), written)
    return Head(tail, [numbers[network_input(tensor)] for tensor in plan.sources], HeadBranches(copies, reads))


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
    copies: list[nn.Module] = []
    pieces: list[Indices] = []
    for branch, selection in zip(choice.branches, selections(blueprint, choice), strict=True):
        plan = blueprint.plan(place, branch)
        copy, piece = scaled_copy(plan, selection, written)
        if branch.ends.entry is not Entry.AS_NEEDED:
            initialise_entries(plan, selection, copy, blueprint.statistics, tensors[0])
        copies.append(copy)
        pieces.append(piece if branch.ends.exit is None else np.arange(*branch.ends.exit, dtype=np.int64))
    exits = [branch.ends.exit for branch in choice.branches]
    if any(exits):
        initialise_exits(blueprint.merge, copies, exits, blueprint.statistics, tensors[1])
    return copies, pieces


def selections(blueprint: Blueprint, choice: SegmentChoice) -> list[dict[int, Indices]]:
    """Channel groups that every branch keeps: the most important inner ones, and a share of those of the output.

    Returns:
        For every branch, dependency group -> ascending channel groups.
    """
    place, branches = choice.segment, choice.branches
    counts = [blueprint.counts(place, branch) for branch in branches]
    selections = [
        {index: best_groups(scores, kept) for index, (scores, kept) in enumerate(zip(found, count, strict=True))}
        for found, count in zip((blueprint.scores(place, b.blocks, b.ends) for b in branches), counts, strict=True)
    ]
    # The output before an exit convolution: that one is planned last, so the numbers of other groups do not change.
    bodies = [blueprint.branch(place, branch.blocks, Ends(branch.ends.entry)) for branch in branches]
    reference = blueprint.whole(place)
    alike = all(blueprint.same_output(place, branch.blocks) for branch in branches)
    # An input that reaches the output has an entry, unless an exit convolution comes last.
    plans = [blueprint.plan(place, branch) for branch in branches]
    alike = alike and all(plan.entries == body.entries for plan, body in zip(plans, bodies, strict=True))
    if len(branches) == 1 or not reference.branchable or not alike:
        return selections
    # Branches of different depths number their groups differently, but write the same ones in the same order.
    own = [[group.index for group in body.output_groups] for body in bodies]
    scores = blueprint.scores(place, tuple(place.blocks))
    assigned = assign_output_groups(
        [_widest_output(group) for group in reference.output_groups],
        [scores[group.index] for group in reference.output_groups],
        [[kept[i] for i in indices] for kept, indices in zip(counts, own, strict=True)],
        _output_ranges(blueprint, choice) if blueprint.merge is Merge.CONCAT_1X1 else None,
    )
    for selection, indices, found in zip(selections, own, assigned, strict=True):
        selection.update(zip(indices, found, strict=True))
    return selections


def _output_ranges(blueprint: Blueprint, choice: SegmentChoice) -> list[tuple[int, int]]:
    """Range of original channels that every branch makes; without an exit convolution, ranges follow one another."""
    places, stop = [], 0
    for branch in choice.branches:
        channels = blueprint.written(choice.segment, branch)
        places.append(branch.ends.exit or (stop, stop + channels))
        stop = places[-1][1]
    return places


def _widest_output(group: DependencyGroup) -> Indices:
    """The channel group of every channel in the widest layer that writes a dependency group."""
    return max((channel_groups for _, channel_groups in group.producers), key=len)


def _check_pieces(number: int, segment: SegmentDesign, pieces: Sequence[Indices]) -> None:
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
