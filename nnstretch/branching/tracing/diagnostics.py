"""Diagnostics: which parts of a network cannot be branched, and why."""

from __future__ import annotations

import itertools

from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.design.design import Merge
from nnstretch.branching.design.from_choices import original_cost, segment_cost
from nnstretch.branching.tracing.operators import Role, macs_of, role_of, title_of
from nnstretch.branching.tracing.trace import Block, Segment

_REPORTED_HEAD_SHARE = 0.05
"""Minimum MAC share at which a head without skip inputs is reported."""
_NAMES = 3
_LAYOUT = frozenset({"flatten", "view", "reshape", "permute", "transpose", "chunk", "getitem", "split", "unflatten"})
"""Operators that only rearrange a tensor; they are named in a diagnostic if there is nothing else to name."""


def diagnose(blueprint: Blueprint) -> list[str]:
    """One line per group of adjacent blocks that cannot be branched for one reason, and one for a large head.

    Args:
        blueprint: the network.

    Returns:
        Lines for people; empty if every block with work can be branched and the head is small.
    """
    blocks = blueprint.traced.blocks
    reasons = [_reason(blueprint, number) for number in range(len(blocks))]
    lines, start = [], 0
    for reason, run in itertools.groupby(reasons):
        stop = start + len(list(run))
        if reason:
            place = f"block {start}" if stop - start == 1 else f"blocks {start} to {stop - 1}"
            lines.append(f"{place}, {blueprint.traced.name_of(Segment(start, stop))}: {reason}")
        start = stop
    return [*lines, *_head(blueprint)]


def _reason(blueprint: Blueprint, number: int) -> str:
    """Why a block cannot be branched by itself; empty if it can, or if it has no work."""
    block, alone = blueprint.traced.blocks[number], Segment(number, number + 1)
    unknown = _unknown(block)
    if not block.has_weights:
        return f"all its work is in {unknown}, whose width cannot be scaled" if any(map(macs_of, block.nodes)) else ""
    if blueprint.branchable(alone):
        return ""
    locked = blueprint.merge is Merge.CONCAT and any(group.locked for group in blueprint.whole(alone).output_groups)
    if any(node.meta.get("shared") for node in block.nodes):
        return "its layers share weights, so all channels must stay"
    if locked and unknown:
        return f"all channels that it writes must stay together, because of {unknown}"
    if None in blueprint.whole(alone).output_parts:
        return "it passes channels through from its input, which cannot be divided among branches"
    return "all channels that it writes must stay together"


def _unknown(block: Block) -> str:
    """Names of the block's operators whose effect on channels is unknown, the first few."""
    found = [title_of(node) for node in block.nodes if role_of(node) is Role.OPAQUE]
    names = list(dict.fromkeys(name for name in found if name not in _LAYOUT)) or list(dict.fromkeys(found))
    return ", ".join(names[:_NAMES]) + (" and others" if len(names) > _NAMES else "")


def _head(blueprint: Blueprint) -> list[str]:
    traced = blueprint.traced
    body = segment_cost(blueprint, Segment(0, len(traced.blocks))).macs
    whole = original_cost(blueprint).macs
    share = (whole - body) / max(whole, 1)
    names = {block.output: block.name for block in traced.blocks} | {traced.source: "the input"}
    skips = [names[skip] for skip in traced.head.skips]
    if not skips and share < _REPORTED_HEAD_SHARE:
        return []
    reads = f"it reads {traced.blocks[-1].name}" + (f" and, before it, {', '.join(skips)}" if skips else "")
    unknown = _unknown(traced.head)
    return [f"the head, {share:.0%} of the MACs: {reads}" + (f", and has {unknown}" if unknown else "")]
