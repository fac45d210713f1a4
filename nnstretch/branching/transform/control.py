"""The single-branch control: the original, scaled in width alone, with as many MACs as a branched network.

What a branched network gains over its control comes from running branches at the same time; what the control gains over
the original comes from computing less. Reporting both keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE, best_groups, importance_scores, kept_counts
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.branching.tracing.trace import TracedNetwork, trace
from nnstretch.branching.transform.inherit import scaled_copy
from nnstretch.errors import DesignError

TOLERANCE = 0.01
"""Share by which a control's MACs may miss those asked for."""
_GOOD_ENOUGH = 0.001
_WIDEST = 4.0
_HALVINGS = 24


def single_branch_control(
    module: nn.Module, example_input: Tensor, target_macs: int, multiple: int = DEFAULT_MULTIPLE
) -> nn.Module:
    """`module` scaled uniformly in width to `target_macs`, with inherited weights and in the mode that `module` is in.

    Above the original's MACs the best channels are there several times, which does not change what is computed.

    Args:
        module: a network that can be branched; left alone.
        example_input: a batch that it accepts.
        target_macs: multiply-accumulates for one sample.
        multiple: channels are rounded to multiples of this; halved as long as that misses the target.

    Raises:
        DesignError: the network cannot be traced, or no width has MACs within 1 % of the target.
    """
    return control_of(trace(module, example_input), target_macs, multiple)


def control_of(traced: TracedNetwork, target_macs: int, multiple: int = DEFAULT_MULTIPLE) -> nn.Module:
    """As `single_branch_control`, for a network that is traced already."""
    blocks = traced.chain
    plan = plan_channels(blocks, range(len(blocks)), lock_output=True, allow_entry=False)
    counts = _fit(plan, target_macs, multiple)
    selection = {
        group.index: best_groups(scores, count)
        for group, scores, count in zip(plan.groups, importance_scores(plan), counts, strict=True)
    }
    control, _ = scaled_copy(plan, selection, np.arange(channels_of(plan.source), dtype=np.int64), exact=True)
    return control.train(traced.training)


def _fit(plan: ChannelPlan, target: int, multiple: int) -> list[int]:
    """ChannelGroups kept of every group."""
    best: list[int] = []
    miss = float("inf")
    while True:
        counts = _nudge(plan, _uniform(plan, target, multiple), target, multiple)
        found = abs(_macs(plan, counts) - target) / max(target, 1)
        if found < miss:
            best, miss = counts, found
        if miss <= TOLERANCE:
            return best
        if multiple == 1:
            raise DesignError(
                f"no width of the network has {target} MACs; the nearest has {_macs(plan, best)}, "
                f"the network itself {_macs(plan, [group.channel_groups for group in plan.groups])}"
            )
        multiple //= 2


def _macs(plan: ChannelPlan, counts: Sequence[int]) -> int:
    return part_cost(plan, counts, channels_of(plan.source), exact=True).macs


def _uniform(plan: ChannelPlan, target: int, multiple: int) -> list[int]:
    """The width ratio, by bisection, whose MACs come nearest from below."""
    full = [group.channel_groups for group in plan.groups]
    if target == _macs(plan, full):
        return full
    low, high = 0.0, _WIDEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _macs(plan, kept_counts(plan, middle, multiple)) <= target:
            low = middle
        else:
            high = middle
    return list(kept_counts(plan, low, multiple))


def _nudge(plan: ChannelPlan, counts: list[int], target: int, multiple: int) -> list[int]:
    """Moves single groups by one step of rounding as long as that brings the MACs nearer to the target."""
    miss = abs(_macs(plan, counts) - target)
    while miss > _GOOD_ENOUGH * target:
        moves = []
        for group in plan.groups:
            step = max(1, -(-multiple // group.group_channels))
            for change in (step, -step):
                moved = list(counts)
                moved[group.index] += change
                if not group.locked and moved[group.index] >= min(step, group.channel_groups):
                    moves.append((abs(_macs(plan, moved) - target), moved))
        nearest = min(moves, default=(miss, counts), key=lambda move: move[0])
        if nearest[0] >= miss:
            break
        miss, counts = nearest
    return counts
