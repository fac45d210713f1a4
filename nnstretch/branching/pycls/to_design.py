"""Converts published networks to designs on a network of their family.

Files and designs cannot express everything of each other. What cannot be converted is refused with the
reason, so the result always has exactly the same MACs and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from nnstretch.branching.channels.scaling import TensorChannels, inputs_of, needed_entries
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design, Entry
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.pycls.backbone import Backbone, BackboneStage, backbone_of, squeeze_of
from nnstretch.branching.pycls.files import BASIC, BOTTLENECK, INVERTED, PublishedNetwork, PublishedStage
from nnstretch.branching.tracing.operators import Role, channels_of, role_of
from nnstretch.branching.tracing.trace import Block, Segment
from nnstretch.branching.transform.variants import FIRST, Ends
from nnstretch.errors import DesignError

_STEP = 8


def design_of(network: PublishedNetwork, blueprint: Blueprint) -> Design:
    """The design equivalent to a published network.

    Args:
        network: read from a file. The design's processors are `network.processors`, in that order.
        blueprint: of the network that the published one was made from, prepared for its merge mode.

    Raises:
        DesignError: the network is of another family, or cannot become what the file describes.
    """
    return make_design(blueprint, published_choices(network, blueprint))


def published_choices(network: PublishedNetwork, blueprint: Blueprint) -> list[SegmentChoice]:
    """The choices that determine the design of `design_of`."""
    if blueprint.merge is not network.merge:
        raise DesignError(
            f"a file of MB_VER {network.version} merges by {network.merge.value}, the network was prepared for "
            f"{blueprint.merge.value}; prepare it for the file's"
        )
    backbone = backbone_of(blueprint)
    _check_family(network, blueprint, backbone)
    read, exact = blueprint.channels_before(backbone.stem.stop), True
    choices = [_whole(backbone.stem, network.processors.index(network.stem_device))]
    *others, last = backbone.stages
    pooled = _pooled(blueprint, backbone) if network.version == 2 else backbone.head.first
    places = [*others, replace(last, segment=Segment(last.segment.first, pooled))]
    for number, (stage, place) in enumerate(zip(network.stages, places, strict=True), 1):
        reader = _StageReader(network, blueprint, number, stage, place, read, exact)
        choices.append(SegmentChoice(place.segment, tuple(map(reader.branch, range(len(stage.depths))))))
        read = stage.original_width
        exact = network.version == 1 or stage.widths == (place.width,)
    if pooled < backbone.head.stop:
        choices.append(_whole(Segment(pooled, backbone.head.stop), network.processors.index(network.head_device)))
    return choices


def _pooled(blueprint: Blueprint, backbone: Backbone) -> int:
    """Number of the head's first block with a weight layer.

    Branches include a pool before it, channel by channel; as a segment of its own it would need the original
    channels.
    """
    blocks = blueprint.traced.blocks
    return next((number for number in backbone.head.blocks if blocks[number].has_weights), backbone.head.stop)


def _whole(segment: Segment, processor: int) -> SegmentChoice:
    return SegmentChoice(segment, (BranchChoice.whole(segment, processor),))


def _check_family(network: PublishedNetwork, blueprint: Blueprint, backbone: Backbone) -> None:
    """Checks that the file is about this network, apart from depths and widths."""
    stages = [
        (stage.stride, stage.kernel or place.kernel)
        for stage, place in zip(network.stages, backbone.stages, strict=False)
    ]
    pairs: list[tuple[str, Any, Any]] = [
        ("blocks of type", network.block, backbone.block),
        ("stages:", len(network.stages), len(backbone.stages)),
        ("strides and kernels of stages", stages, [(place.stride, place.kernel) for place in backbone.stages]),
        ("channels of the stem:", network.stem_width, blueprint.channels_before(backbone.stem.stop)),
        ("channels of the head's convolution:", network.head_width, backbone.head_width),
    ]
    if network.version == 1:
        widths = [stage.original_width for stage in network.stages]
        pairs.append(("original widths", widths, [place.width for place in backbone.stages]))
    for what, described, found in pairs:
        if described != found:
            raise DesignError(
                f"the file has {what} {described}, the network {found}; give a network of the file's family"
            )
    if bool(network.squeeze) != backbone.squeeze:
        has, hint = ("has", "SE_ON: true") if backbone.squeeze else ("has no", "SE_ON: false")
        raise DesignError(
            f"the network {has} squeeze-and-excitation, unlike the file; write {hint} in it, or give another network"
        )


def differences(network: PublishedNetwork, blueprint: Blueprint) -> list[str]:
    """Properties other than branches and layer sizes that a design keeps of the network, unlike the file."""
    backbone, notes = backbone_of(blueprint), list[str]()
    if backbone.stem_kernel != network.stem_kernel or backbone.stem_pools != (network.stem == "res_stem_in"):
        notes.append(f"the stem stays the network's own, it is not the file's {network.stem}")
    specified = {*network.activations, *_model(network).get("ACTIVATION_FUN", "").lower().split()}
    own = backbone.activations
    if specified - own:
        notes.append(
            f"activations stay the network's own ({', '.join(sorted(own))}); the file has {', '.join(sorted(specified))}"
        )
    return notes


def _model(network: PublishedNetwork) -> Mapping[str, Any]:
    model = network.sections.get("MODEL")
    return model if isinstance(model, dict) else {}


@dataclass(frozen=True)
class _StageReader:
    """Converts one stage of a file.

    Attributes:
        network: the file.
        blueprint: of the network.
        number: of the stage, from 1.
        stage: the file's stage.
        place: the network's stage.
        read: channels of the stage's input.
        exact: these are the original channels, each once and in order.
    """

    network: PublishedNetwork
    blueprint: Blueprint
    number: int
    stage: PublishedStage
    place: BackboneStage
    read: int
    exact: bool

    def branch(self, branch: int) -> BranchChoice:
        """The choice of a branch."""
        width = self.stage.widths[branch]
        blocks = self._kept(self.stage.depths[branch])
        ends, first = self._ends(branch, self.blueprint.traced.blocks[blocks[0]])
        plan = self.blueprint.branch(self.place.segment, blocks, ends)
        body = plan.blocks[ends.entry is Entry.FIRST : len(plan.blocks) - (ends.exit is not None)]
        self._check_body(branch, body, first)
        written = self.blueprint.branch(self.place.segment, blocks, Ends(ends.entry)).output_groups
        outputs = {group.index for group in written}
        groups: list[int] = []
        for group in plan.groups:
            output = width if group.index in outputs else None
            nodes = [node for node, _ in group.producers if node not in plan.sources]
            found = {self._written(node, output, branch, body, first) for node in nodes}
            if len(found) != 1:
                raise self._refusal(branch, f"layers that belong together would have {sorted(found)} channels")
            groups += found
        choice = BranchChoice(branch, blocks, width / self.place.width, ends, tuple(groups))
        counts = self.blueprint.counts(self.place.segment, choice)
        inputs = {**inputs_of(plan, {}), plan.source: TensorChannels(self.read, self.exact)}
        if plan.source in needed_entries(plan, counts, inputs):
            raise self._refusal(branch, "its input meets layers other than convolutions, which files cannot express")
        return choice

    def _refusal(self, branch: int, why: str) -> DesignError:
        return DesignError(f"stage {self.number}, branch {branch + 1} of the file cannot be made of the network: {why}")

    def _kept(self, depth: int) -> tuple[int, ...]:
        """`depth` blocks of the stage: without those that change their input least, or with the least one repeated."""
        blocks, own = self.blueprint.traced.blocks, list(self.place.segment.blocks)
        by_change = sorted((i for i in own if blocks[i].droppable), key=lambda i: (blocks[i].change, -i))
        missing = depth - sum(blocks[i].has_weights for i in own)
        if missing > 0 and not by_change:
            raise DesignError(
                f"stage {self.number} of the file is {depth} blocks deep, and the network's cannot be repeated"
            )
        if missing >= 0:
            return tuple(sorted([*own, *by_change[:1] * missing]))
        return tuple(i for i in own if i not in by_change[:-missing])

    def _ends(self, branch: int, first: Block) -> tuple[Ends, int]:
        """The ends of a branch, and the channels that its first block reads."""
        width, original = self.stage.widths[branch], self.stage.original_width
        if self.network.version == 1:
            share = original // len(self.stage.depths)
            place = (branch * share, (branch + 1) * share)
            read = _divisible(width / original * self.read)
            ends = Ends(Entry.FIRST, None if width == share else place)
        else:
            ends, read = Ends(), self.read
        keeps_shape = read == width and self.stage.stride == 1
        if keeps_shape == first.droppable:
            return ends, read
        if first.droppable and ends.entry is Entry.AS_NEEDED and self.network.block != INVERTED:
            return Ends(Entry.PROJECTION, ends.exit), read
        described, has = ("a bare", "another") if keeps_shape else ("no bare", "a bare")
        raise self._refusal(branch, f"its first block has {described} shortcut, the network's {has} one")

    def _check_body(self, branch: int, body: Sequence[Block], first: int) -> None:
        if self.network.block == BOTTLENECK and self.stage.group_widths:
            group, inner = self.stage.group_widths[branch], self.stage.inner_width(branch)
            own = self.place.group_width or inner
            if group != own:
                raise self._refusal(branch, f"it has groups of {group} channels, the network's have {own}")
        if self.network.block == INVERTED:
            for number, block in enumerate(block for block in body if block.has_weights):
                read = first if number == 0 else self.stage.widths[branch]
                if (self._expanded(branch, read) != read) != _expands(block):
                    raise self._refusal(branch, "only one of the two has a convolution that expands")

    def _expanded(self, branch: int, read: int) -> int:
        return int(read * self.stage.bottlenecks[branch])

    def _written(self, node: fx.Node, width: int | None, branch: int, body: Sequence[Block], first: int) -> int:
        """Channels that a layer writes; `width` if the blocks' outputs belong to its dependency group, else None."""
        number = next((i for i, block in enumerate(body) if node in block.nodes), None)
        if number is None:
            return first if node.target == f"{FIRST}.conv" else channels_of(node)
        read = first if number == 0 else self.stage.widths[branch]
        if node is squeeze_of(body[number]):
            inner = read * self.network.squeeze
            return int(inner) if self.network.block == INVERTED else round(inner)
        if width is not None or self.network.block == BASIC:
            return self.stage.widths[branch]
        return self._expanded(branch, read) if self.network.block == INVERTED else self.stage.inner_width(branch)


def _divisible(value: float) -> int:
    """The nearest multiple of 8, at least nine tenths of `value`: how files round the width of first convolutions."""
    rounded = max(_STEP, int(value + _STEP / 2) // _STEP * _STEP)
    return rounded + _STEP if rounded < 0.9 * value else rounded


def _expands(block: Block) -> bool:
    """Whether an inverted bottleneck begins with an expansion convolution."""
    return next(role_of(node) for node in block.nodes if role_of(node) in (Role.CONV, Role.DEPTHWISE)) is Role.CONV
