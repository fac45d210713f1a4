"""Widths at which a network that is not branched has the MACs of a branched one, scaled uniformly."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import kept_counts
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.errors import DesignError

TOLERANCE = 0.01
"""Maximum relative deviation of a network's MACs from the target."""
_GOOD_ENOUGH = 0.001
_WIDEST = 4.0
_HALVINGS = 24


def whole_plan(traced: TracedNetwork) -> ChannelPlan:
    """The dependency groups of a whole network, its head among them, which reads its input and writes its outputs unchanged."""
    return plan_channels(traced.chain, range(len(traced.chain)), lock_output=True, allow_entry=False)


def equal_macs_counts(plan: ChannelPlan, target: int, multiple: int) -> list[int]:
    """Channel groups kept of every dependency group so that the copy has `target` MACs.

    Args:
        plan: the network's, by `whole_plan`.
        target: multiply-accumulates for one sample.
        multiple: channels are rounded to multiples of this; it is halved until the target is met.

    Raises:
        DesignError: no width has MACs within 1 % of the target.
    """
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
