"""Selects the channels that every branch of a segment keeps."""

from __future__ import annotations

from nnstretch.branching.channels.groups import DependencyGroup
from nnstretch.branching.channels.scaling import best_groups
from nnstretch.branching.channels.union_find import Indices
from nnstretch.branching.design.blueprint import Blueprint, SegmentChoice
from nnstretch.branching.design.design import Merge
from nnstretch.branching.transform.merge import assign_output_groups
from nnstretch.branching.transform.variants import Ends


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
        channels = blueprint.written(choice.segment, branch, blueprint.channels_before(choice.segment.first))
        places.append(branch.ends.exit or (stop, stop + channels))
        stop = places[-1][1]
    return places


def _widest_output(group: DependencyGroup) -> Indices:
    """The channel group of every channel in the widest layer that writes a dependency group."""
    return max((channel_groups for _, channel_groups in group.producers), key=len)
