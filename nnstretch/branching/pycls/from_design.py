"""Converts designs to published networks; `to_design` verifies the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import produced_channels
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice
from nnstretch.branching.design.design import Design, Entry, Merge
from nnstretch.branching.design.from_choices import choices_of
from nnstretch.branching.pycls.backbone import Backbone, BackboneStage, backbone_of, squeeze_of
from nnstretch.branching.pycls.files import BASIC, BOTTLENECK, INVERTED, PublishedNetwork, PublishedStage
from nnstretch.branching.pycls.to_design import design_of
from nnstretch.branching.tracing.operators import Role, channels_of, role_of
from nnstretch.branching.tracing.trace import Block, Segment
from nnstretch.branching.transform.variants import EXIT, FIRST, Ends
from nnstretch.errors import DesignError


def published_of(
    design: Design, blueprint: Blueprint, devices: Sequence[str], sections: Mapping[str, Any] | None = None
) -> PublishedNetwork:
    """The published network equivalent to a design.

    Args:
        design: of the blueprint's network. The result keeps the number of blocks of a stage, not which ones.
        blueprint: prepared with the design's settings.
        devices: names of the design's processors.
        sections: further sections of the file.

    Raises:
        DesignError: pycls files cannot express the design; the message says what.
    """
    backbone = backbone_of(blueprint)
    if design.merge is Merge.ADD:
        raise _not_expressible("its branches are summed, and a file's are concatenated")
    read, stages = blueprint.channels_before(backbone.stem.stop), list[PublishedStage]()
    for number, place in enumerate(backbone.stages, 1):
        stages.append(_stage(design, blueprint, backbone, number, place, read))
        read = stages[-1].original_width
    network = PublishedNetwork(
        stem="res_stem_in" if backbone.stem_pools else "simple_stem_in",
        stem_width=blueprint.channels_before(backbone.stem.stop),
        stem_kernel=backbone.stem_kernel,
        block=backbone.block,
        stages=tuple(stages),
        devices=tuple(devices[: max(len(stage.depths) for stage in stages)]),
        stem_device=devices[_processor(design, backbone.stem.first)],
        head_device=devices[_processor(design, len(blueprint.traced.blocks) - 1)],
        merge_device=devices[0],
        head_width=backbone.head_width,
        squeeze=_squeeze_ratio(blueprint, backbone),
        version=1 if design.merge is Merge.CONCAT_1X1 else 2,
        sections=dict(sections or {}),
    )
    if design.head:
        raise _not_expressible("its head has branches")
    try:
        again = design_of(network, blueprint)
    except DesignError as error:
        raise _not_expressible(str(error)) from error
    _check_same(design, again)
    return network


def _not_expressible(why: str) -> DesignError:
    return DesignError(f"NN-Stretch's files cannot express this design: {why}; use its JSON file")


def _processor(design: Design, block: int) -> int:
    """The processor of an unbranched block, or of its segment's first branch."""
    segment = next(segment for segment in design.segments if segment.first <= block < segment.stop)
    return segment.branches[0].processor


def _stage(
    design: Design, blueprint: Blueprint, backbone: Backbone, number: int, place: BackboneStage, read: int
) -> PublishedStage:
    """A stage of the design as a file expresses it."""
    blocks, own = blueprint.traced.blocks, set(place.segment.blocks)
    found = [choice for choice in choices_of(design) if own & set(choice.segment.blocks)]
    branches = found[0].branches
    if len(found) > 1 or any(i not in own and blocks[i].has_weights for i in found[0].segment.blocks):
        if any(len(choice.branches) > 1 for choice in found):
            raise _not_expressible(f"branches do not meet where stage {number} begins and ends")
        kept = tuple(i for choice in found for i in choice.branches[0].blocks if i in own)
        branches = (BranchChoice(branches[0].processor, kept, 1.0),)
    if [branch.processor for branch in branches] != list(range(len(branches))):
        raise _not_expressible(f"stage {number} is not on the first processors in their order")
    segment = found[0].segment if len(found) == 1 and found[0].branches is branches else place.segment
    described = [_branch(blueprint, backbone, segment, branch, read) for branch in branches]
    widths = tuple(width for width, _, _ in described)
    return PublishedStage(
        depths=tuple(sum(blocks[i].has_weights for i in branch.blocks) for branch in branches),
        widths=widths,
        stride=place.stride,
        bottlenecks=tuple(ratio for _, ratio, _ in described),
        group_widths=tuple(place.group_width or inner for _, _, inner in described)
        if backbone.block != INVERTED
        else (),
        kernel=place.kernel if backbone.block == INVERTED else None,
        original_width=place.width if design.merge is Merge.CONCAT_1X1 else sum(widths),
    )


def _branch(
    blueprint: Blueprint, backbone: Backbone, segment: Segment, choice: BranchChoice, read: int
) -> tuple[int, float, int]:
    """Channels that a branch's blocks write, the ratio of the inner channels to them, and the inner channels."""
    plan, counts = blueprint.plan(segment, choice), blueprint.counts(segment, choice)
    written = blueprint.branch(segment, choice.blocks, Ends(choice.ends.entry)).output_groups
    width = sum(counts[group.index] * group.group_channels for group in written)
    bodies = [
        block for block in plan.blocks if block.has_weights and any(node not in _ends(plan) for node in block.nodes)
    ]
    if choice.ends.entry is Entry.FIRST:
        entry = next(node for node in plan.nodes if node.target == f"{FIRST}.conv")
        read = produced_channels(plan, entry, counts)
    inner = _inner(plan, counts, bodies[-1], {group.index for group in written})
    if backbone.block == BASIC or inner is None:
        return width, 1.0, width
    base = width if backbone.block == BOTTLENECK or len(bodies) > 1 else read
    return width, _ratio(inner, base), inner


def _ends(plan: ChannelPlan) -> set[fx.Node]:
    """The nodes of a branch's entry and exit."""
    own = {f"{end}.{layer}" for end in (FIRST, EXIT) for layer in ("conv", "norm")}
    return {node for node in plan.nodes if str(node.target) in own}


def _inner(plan: ChannelPlan, counts: Sequence[int], block: Block, written: set[int]) -> int | None:
    """Inner channels of a block; None if it has none besides its input's and output's."""
    squeeze = squeeze_of(block)
    for node in block.nodes:
        if (
            node in plan.produced
            and role_of(node) is Role.CONV
            and node is not squeeze
            and plan.produced[node][0] not in written
        ):
            return produced_channels(plan, node, counts)
    return None


def _ratio(inner: int, base: int) -> float:
    """A ratio that gives `inner` when multiplied by `base` and rounded down."""
    ratio = inner / base
    return ratio if int(base * ratio) == inner else (inner + 0.5) / base


def _squeeze_ratio(blueprint: Blueprint, backbone: Backbone) -> float:
    """Squeezed channels over the block's input channels."""
    if not backbone.squeeze:
        return 0.0
    block = blueprint.traced.blocks[backbone.stages[-1].segment.first]
    squeeze = squeeze_of(block)
    assert squeeze is not None
    return channels_of(squeeze) / channels_of(block.source)


def _check_same(design: Design, again: Design) -> None:
    """Checks that the file is equivalent to the design."""
    branched, found = ([s for s in d.segments if len(s.branches) > 1] for d in (design, again))
    for number, (segment, other) in enumerate(zip(branched, found, strict=True), 1):
        for branch, copy in zip(segment.branches, other.branches, strict=True):
            if (branch.macs, branch.channels) != (copy.macs, copy.channels):
                raise _not_expressible(
                    f"in meeting point {number} a branch with {branch.macs} MACs would become one with {copy.macs}, since all "
                    "blocks of a file's branch have one width and begin as its version has it"
                )
    if (design.macs, design.params) != (again.macs, again.params):
        raise _not_expressible(
            f"it has {design.macs} MACs and {design.params} parameters, the closest file {again.macs} and {again.params}"
        )
