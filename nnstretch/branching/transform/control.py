"""The single-branch control: the original network scaled in width to a branched network's MACs (equal-MACs control).

A branched network gains over its control by concurrency; the control gains over the original by fewer MACs.
Reporting both separates the two effects.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE, best_groups, importance_scores, kept_counts
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.tracing.trace import trace
from nnstretch.branching.transform.inherit import scaled_copy
from nnstretch.errors import DesignError

TOLERANCE = 0.01
"""Maximum relative deviation of a control's MACs from the target."""
_GOOD_ENOUGH = 0.001
_WIDEST = 4.0
_HALVINGS = 24


def single_branch_control(
    module: nn.Module, example_input: Tensor, target_macs: int, multiple: int = DEFAULT_MULTIPLE
) -> nn.Module:
    """`module` scaled uniformly in width to `target_macs`, with inherited weights and in its training mode.

    Above the original's MACs the most important channels are repeated, which does not change the function.

    Args:
        module: a network that can be branched; it is not changed.
        example_input: an `N,C,H,W` batch that it accepts.
        target_macs: multiply-accumulates for one sample.
        multiple: channels are rounded to multiples of this; it is halved until the target is met.

    Raises:
        DesignError: the network cannot be traced, or no width has MACs within 1 % of the target.
    """
    traced = trace(module, example_input)
    blocks = traced.chain
    plan = plan_channels(blocks, range(len(blocks)), lock_output=True, allow_entry=False)
    counts = _fit(plan, target_macs, multiple)
    selection = {
        group.index: best_groups(scores, count)
        for group, scores, count in zip(plan.groups, importance_scores(plan), counts, strict=True)
    }
    control, _ = scaled_copy(plan, selection)
    return control.train(traced.training)


def _fit(plan: ChannelPlan, target: int, multiple: int) -> list[int]:
    """Channel groups kept of every dependency group."""
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
    return part_cost(plan, counts).macs


def _uniform(plan: ChannelPlan, target: int, multiple: int) -> list[int]:
    """The counts of the largest width ratio, by bisection, whose MACs do not exceed the target."""
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
    """Changes single dependency groups by one rounding step while that brings the MACs closer to the target."""
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
