"""How many channels a width ratio leaves, and which ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, DependencyGroup
from nnstretch.branching.channels.union_find import Indices
from nnstretch.branching.tracing.modules import ChannelSlice
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
)
from nnstretch.errors import DesignError

DEFAULT_MULTIPLE = 8
"""Channels of a scaled layer are a multiple of this where the layer is wide enough."""

Scores = npt.NDArray[np.float64]


def kept_count(group: DependencyGroup, ratio: float, multiple: int = DEFAULT_MULTIPLE) -> int:
    """ChannelGroups of `group` that a width of `ratio` leaves: the nearest number that makes a multiple of channels.

    All of them at ratio 1, never none, and always all of a locked group. Ratios above 1 repeat channel groups.
    """
    if group.locked or ratio == 1.0:
        return group.channel_groups
    step = max(1, -(-multiple // group.group_channels))
    # Half a step is rounded up, so that a ratio and the next larger one never change places.
    rounded = int(ratio * group.channel_groups / step + 0.5) * step
    smallest = min(step, group.channel_groups)
    return max(smallest, rounded) if ratio > 1.0 else min(max(smallest, rounded), group.channel_groups)


def kept_counts(plan: ChannelPlan, ratio: float, multiple: int = DEFAULT_MULTIPLE) -> tuple[int, ...]:
    """`kept_count` of every group of `plan`."""
    return tuple(kept_count(group, ratio, multiple) for group in plan.groups)


def explicit_counts(plan: ChannelPlan, channels: Sequence[int], name: str) -> tuple[int, ...]:
    """ChannelGroups of every group of `plan` that make so many channels.

    Raises:
        DesignError: they are not for these groups.
    """
    if len(channels) != len(plan.groups):
        raise DesignError(
            f"the design has channels of {len(channels)} groups for a branch of {name}, which has {len(plan.groups)}; "
            "use the network that the design was made for"
        )
    counts = []
    for group, wanted in zip(plan.groups, channels, strict=True):
        count, rest = divmod(wanted, group.group_channels)
        if rest or count < 1 or (group.locked and count != group.channel_groups):
            kept = (
                f"must all be kept: {group.channel_groups * group.group_channels}" if group.locked else "come together"
            )
            raise DesignError(
                f"the design has {wanted} channels in a branch of {name} where {group.group_channels} {kept}; "
                "use the network that the design was made for"
            )
        counts.append(count)
    return tuple(counts)


@dataclass(frozen=True)
class TensorChannels:
    """How a tensor is read: with so many channels, which may be the original ones, each once and in order."""

    channels: int
    exact: bool


SkipInputs = Mapping[fx.Node, TensorChannels]
"""How the tensors are read that a plan reads beside its source; those that are left out, as they were."""
UNSCALED: SkipInputs = MappingProxyType({})


def inputs_of(plan: ChannelPlan, in_channels: int, skips: SkipInputs, *, exact: bool) -> dict[fx.Node, TensorChannels]:
    """How every tensor is read that `plan` reads."""
    found = {skip: skips.get(skip, TensorChannels(channels_of(skip), exact=True)) for skip in plan.skips}
    return {plan.source: TensorChannels(in_channels, exact), **found}


def node_widths(
    plan: ChannelPlan, counts: Sequence[int], in_channels: int, skips: SkipInputs = UNSCALED
) -> dict[fx.Node, int]:
    """Channels of every tensor when `counts` channel groups of every group are kept and `in_channels` are read.

    Those of a flattened map are counted, not their pixels. Of what is read, those behind its entry if there is one.
    """
    widths = {tensor: read.channels for tensor, read in inputs_of(plan, in_channels, skips, exact=False).items()}
    for tensor in plan.entries:
        widths[tensor] = produced_channels(plan, tensor, counts)
    for node in plan.nodes:
        shape, role = shape_of(node), role_of(node)
        if shape is None or len(shape) < 2 or role is Role.CONSTANT:
            continue
        if node in plan.produced:
            widths[node] = produced_channels(plan, node, counts)
        elif role is Role.BINARY:
            widths[node] = max(widths[plan.read(tensor)] for tensor in tensor_operands(node))
        elif role is Role.CONCAT:
            widths[node] = sum(widths[plan.read(part)] for part in concat_operands(node))
        elif role is Role.SLICE:
            part = module_of(node)
            assert isinstance(part, ChannelSlice)
            first, stop = part.bounds(widths[plan.read(node.all_input_nodes[0])])
            widths[node] = stop - first
        else:
            widths[node] = widths[plan.read(node.all_input_nodes[0])]
    return widths


def produced_channels(plan: ChannelPlan, node: fx.Node, counts: Sequence[int]) -> int:
    """Channels that a layer writes when `counts` channel groups of every group are kept."""
    index, channel_groups = plan.produced[node]
    return len(channel_groups) // plan.groups[index].channel_groups * counts[index]


def output_channels(plan: ChannelPlan, counts: Sequence[int], in_channels: int, skips: SkipInputs = UNSCALED) -> int:
    """Channels of the output when `counts` channel groups of every group are kept; of several outputs together."""
    widths = node_widths(plan, counts, in_channels, skips)
    return sum(widths[plan.read(result)] for result in plan.results)


def importance_scores(plan: ChannelPlan) -> tuple[Scores, ...]:
    """How much every channel group of every group matters: larger is more.

    The L2 norm of the filters that write it, with the scale that a batch norm puts on them; relative to the mean of the
    layer, and averaged over the layers that write the group, so that no layer outvotes the others by its magnitude.
    """
    return tuple(_scores_of(group, plan.sources) for group in plan.groups)


def _scores_of(group: DependencyGroup, read: Sequence[fx.Node]) -> Scores:
    total = np.zeros(group.channel_groups)
    for node, channel_groups in group.producers:
        if node.op != "call_module" or node in read or role_of(node) is Role.OPAQUE:
            continue
        layer = module_of(node)
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        with torch.no_grad():
            norms = layer.weight.detach().double().flatten(1).norm(dim=1).cpu().numpy()
        norms = norms * _batch_norm_scale(node, len(norms))
        energy = np.sqrt(np.bincount(channel_groups, weights=norms**2, minlength=group.channel_groups))
        mean = energy.mean()
        total += energy / mean if mean > 0 else 0.0
    return total


def _batch_norm_scale(node: fx.Node, channels: int) -> Scores:
    for user in node.users:
        if user.op != "call_module":
            continue
        norm = module_of(user)
        if isinstance(norm, nn.BatchNorm2d) and norm.affine and norm.running_var is not None:
            variance = norm.running_var.detach().double().cpu().numpy()
            scale = norm.weight.detach().double().abs().cpu().numpy() / np.sqrt(variance + norm.eps)
            return np.asarray(scale, dtype=np.float64)
    return np.ones(channels)


def best_groups(scores: Scores, count: int) -> Indices:
    """The `count` best channel groups in ascending order, ties to the first; all of them, and the best again, if more."""
    order = np.argsort(-scores, kind="stable")
    rounds, rest = divmod(count, len(order))
    return np.sort(np.concatenate([*([order] * rounds), order[:rest]])).astype(np.int64)


def assign_groups(scores: Scores, counts: Sequence[int]) -> list[Indices]:
    """ChannelGroups for several branches, `counts[i]` of them for branch `i`, each at most once in a branch.

    If the counts add up to the number of channel groups or more, every channel group goes to some branch, and the
    best ones to more
    than one; else the best ones go out once. Good and bad ones are spread evenly, so that no branch gets only leftovers.
    """
    remaining = [min(count, len(scores)) for count in counts]
    wanted = list(remaining)
    assigned: list[list[int]] = [[] for _ in counts]
    left = len(scores)
    for channel_group in np.argsort(-scores, kind="stable").tolist():
        recipients = _recipients(remaining, wanted, left)
        for branch in recipients:
            assigned[branch].append(channel_group)
            remaining[branch] -= 1
        left -= 1
    return [np.array(sorted(channel_groups), dtype=np.int64) for channel_groups in assigned]


def _recipients(remaining: Sequence[int], wanted: Sequence[int], left: int) -> list[int]:
    """The branches that take the next of `left` channel groups.

    What is left can be assigned as long as no branch wants more than is left and together they want at least that many, or
    nothing needs to be covered any more.
    """
    forced = [i for i, count in enumerate(remaining) if count == left]
    recipients = forced
    by_need = sorted(
        (i for i, count in enumerate(remaining) if count and i not in forced),
        key=lambda i: (-remaining[i] / wanted[i], i),
    )
    if not recipients and by_need:
        recipients, by_need = by_need[:1], by_need[1:]
    spare = sum(remaining) - len(recipients) - (left - 1)
    return recipients + by_need[: max(0, spare)]


def full_selection(plan: ChannelPlan) -> dict[int, Indices]:
    """All channel groups of every group."""
    return {group.index: np.arange(group.channel_groups, dtype=np.int64) for group in plan.groups}


def kept_positions(plan: ChannelPlan, node: fx.Node, selection: Mapping[int, Indices]) -> Indices:
    """Which of the channels that a layer writes are kept, in their order; those of a channel group side by side stay together.

    All layers that write a group thus keep the same channels in the same order, which sums rely on.
    """
    index, channel_groups = plan.produced[node]
    times = np.bincount(selection[index], minlength=plan.groups[index].channel_groups)[channel_groups]
    if times.max(initial=0) <= 1:
        return np.flatnonzero(times).astype(np.int64)
    starts = np.flatnonzero(np.diff(channel_groups, prepend=-1))
    runs = zip(starts, [*starts[1:], len(channel_groups)], strict=True)
    return np.concatenate([np.tile(np.arange(first, stop), times[first]) for first, stop in runs]).astype(np.int64)
