"""Converts choices of branches to a design with exact MACs and parameters, and back."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.cost import Cost, part_cost
from nnstretch.branching.design.design import BranchDesign, Design, Merge, SegmentDesign, design_id
from nnstretch.branching.design.validate import check_choices, check_written
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.branching.transform.variants import Ends


def make_design(
    blueprint: Blueprint,
    choices: Sequence[SegmentChoice],
    branch_ms: Sequence[Sequence[float]] | None = None,
    predicted_ms: float | None = None,
) -> Design:
    """The design with the given branches.

    Args:
        blueprint: the network.
        choices: consecutive segments that cover the network.
        branch_ms: predicted milliseconds of every branch, if known.
        predicted_ms: predicted milliseconds of the network, if known.

    Raises:
        DesignError: a choice does not fit the network.
    """
    check_choices(blueprint, choices)
    total = Cost(0, 0)
    channels, exact = blueprint.channels_before(0), True
    reads = {blueprint.boundary(0): TensorChannels(channels, exact)}
    segments = []
    for number, choice in enumerate(choices):
        made = []
        for i, branch in enumerate(choice.branches):
            cost = blueprint.cost(choice.segment, branch, channels, exact=exact, skips=reads)
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
                    explicit_channels=branch.explicit_channels,
                )
            )
        check_written(blueprint, number, choice.segment, made)
        segments.append(SegmentDesign(choice.segment.first, choice.segment.stop, tuple(made)))
        written = [branch.channels for branch in made]
        channels, exact = merged_channels(blueprint.merge, written), stays_exact(blueprint, choice.segment, written)
        reads[blueprint.boundary(choice.segment.stop)] = TensorChannels(channels, exact)
    total += _head_cost(blueprint, channels, exact=exact, skips=reads)
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
    """MACs and parameters of the original network."""
    head = _head_cost(blueprint, channels_of(blueprint.head.source), exact=True)
    return head + segment_cost(blueprint, Segment(0, len(blueprint.traced.blocks)))


def segment_cost(blueprint: Blueprint, segment: Segment) -> Cost:
    """MACs and parameters of an original segment."""
    return blueprint.cost(segment, BranchChoice.whole(segment, 0), blueprint.channels_before(segment.first), exact=True)


def _head_cost(blueprint: Blueprint, channels: int, *, exact: bool, skips: SkipInputs = UNSCALED) -> Cost:
    return part_cost(blueprint.head, kept_counts(blueprint.head, 1.0), channels, exact=exact, skips=skips)


def choices_of(design: Design) -> list[SegmentChoice]:
    """The choices that determine `design`."""
    return [SegmentChoice(_place(segment), _branch_choices(design.merge, segment)) for segment in design.segments]


def _branch_choices(merge: Merge, segment: SegmentDesign) -> tuple[BranchChoice, ...]:
    choices, first = [], 0
    for branch in segment.branches:
        place = (first, first + branch.channels) if branch.has_exit else None
        ends = Ends(branch.entry, place)
        choices.append(BranchChoice(branch.processor, branch.blocks, branch.width, ends, branch.explicit_channels))
        # Concatenated branches write consecutive ranges of channels; summed branches write the same ones.
        first += 0 if merge is Merge.ADD else branch.channels
    return tuple(choices)


def _place(segment: SegmentDesign) -> Segment:
    return Segment(segment.first, segment.stop)


def stays_exact(blueprint: Blueprint, segment: Segment, written: Sequence[int]) -> bool:
    """Whether a segment whose branches write `written` channels writes the original channels, each once and in order.

    That holds for a single branch that keeps them all, and for branches with exit convolutions.
    """
    has_exits = len(written) > 1 and blueprint.merge is not Merge.CONCAT
    return has_exits or list(written) == [blueprint.channels_before(segment.stop)]
