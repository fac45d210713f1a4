"""Width scaling: how many channels a width ratio keeps, and the importance of each channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, DependencyGroup, Indices, network_input
from nnstretch.branching.tracing.modules import ChannelSlice, HeadSlice
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
)
from nnstretch.branching.tracing.tokens import Attention
from nnstretch.errors import DesignError

DEFAULT_MULTIPLE = 8
"""Scaled layers have a multiple of this many channels, unless the layer is narrower."""

Scores = npt.NDArray[np.float64]


def kept_count(group: DependencyGroup, ratio: float, multiple: int = DEFAULT_MULTIPLE) -> int:
    """Channel groups of `group` that a width of `ratio` keeps, rounded to a multiple of `multiple` channels.

    All of them at ratio 1, at least one rounding step, and always all of a locked group. Ratios above 1
    repeat groups.
    """
    if group.locked or ratio == 1.0:
        return group.channel_groups
    step = max(1, -(-multiple // group.group_channels))
    # Halves are rounded up, not to even, so that the count is monotonic in the ratio.
    rounded = int(ratio * group.channel_groups / step + 0.5) * step
    smallest = min(step, group.channel_groups)
    return max(smallest, rounded) if ratio > 1.0 else min(max(smallest, rounded), group.channel_groups)


def kept_counts(plan: ChannelPlan, ratio: float, multiple: int = DEFAULT_MULTIPLE) -> tuple[int, ...]:
    """`kept_count` of every dependency group of `plan`."""
    return tuple(kept_count(group, ratio, multiple) for group in plan.groups)


def explicit_counts(plan: ChannelPlan, channels: Sequence[int], name: str) -> tuple[int, ...]:
    """Channel groups of every dependency group that make the given numbers of channels.

    Args:
        plan: the dependency groups.
        channels: channels of every dependency group.
        name: of the segment, for messages.

    Raises:
        DesignError: the numbers do not fit these groups.
    """
    if len(channels) != len(plan.groups):
        raise DesignError(
            f"the design has channels of {len(channels)} groups for a branch of {name}, whose plan has {len(plan.groups)}; "
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
    """Channels of a tensor that a copy reads.

    Attributes:
        channels: their number.
        exact: they are the original channels, each once and in order.
    """

    channels: int
    exact: bool


ReadChannels = Mapping[fx.Node, TensorChannels]
"""Channels of tensors of the original network, as copies read them; those left out have their original channels."""
ORIGINAL: ReadChannels = MappingProxyType({})
NodeWidths = dict[fx.Node, int]
"""Channels of every tensor of a copy."""


def inputs_of(plan: ChannelPlan, reads: ReadChannels) -> dict[fx.Node, TensorChannels]:
    """Channels of every input of `plan`, by the plan's own nodes."""
    return {
        tensor: reads.get(network_input(tensor)) or TensorChannels(channels_of(tensor), exact=True)
        for tensor in plan.sources
    }


def needed_entries(plan: ChannelPlan, counts: Sequence[int], inputs: ReadChannels) -> list[fx.Node]:
    """The inputs at which a copy of `plan` begins with a 1x1 convolution.

    A copy that keeps everything needs none at an input that has its original channels.

    Args:
        plan: blocks and dependency groups.
        counts: channel groups kept of every dependency group.
        inputs: channels of every input.
    """
    complete = list(counts) == [group.channel_groups for group in plan.groups]
    return [tensor for tensor in plan.sources if tensor in plan.entries and not (complete and inputs[tensor].exact)]


def node_widths(plan: ChannelPlan, counts: Sequence[int], reads: ReadChannels = ORIGINAL) -> NodeWidths:
    """Channels of every tensor of a copy of `plan`.

    Args:
        plan: blocks and dependency groups.
        counts: channel groups kept of every dependency group.
        reads: channels of the tensors that the copy reads.

    Returns:
        Channels by node; a flattened map counts its channels, not its pixels. An input with an entry has the
        entry's.
    """
    widths = {tensor: read.channels for tensor, read in inputs_of(plan, reads).items()}
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
        elif role is Role.ATTENTION:
            attention = module_of(node)
            assert isinstance(attention, Attention)
            heads = widths[plan.read(node.all_input_nodes[0])] // attention.query_width
            widths[node] = heads * attention.value_width
        elif role is Role.PIXELS:
            widths[node] = (
                widths[plan.read(node.all_input_nodes[0])] * channels_of(node) // channels_of(node.all_input_nodes[0])
            )
        elif role is Role.SLICE:
            widths[node] = _sliced(module_of(node), widths[plan.read(node.all_input_nodes[0])])
        else:
            widths[node] = widths[plan.read(node.all_input_nodes[0])]
    return widths


def _sliced(module: nn.Module, channels: int) -> int:
    """Channels of a slice of a tensor with `channels` channels."""
    if isinstance(module, HeadSlice):
        return channels // module.width * module.length
    assert isinstance(module, ChannelSlice)
    first, stop = module.bounds(channels)
    return stop - first


def produced_channels(plan: ChannelPlan, node: fx.Node, counts: Sequence[int]) -> int:
    """Channels that a layer writes when `counts` channel groups of every dependency group are kept."""
    index, channel_groups = plan.produced[node]
    whole = plan.groups[index].channel_groups
    # A locked group may have channel groups of several sizes, and a layer may write some of them only.
    return len(channel_groups) if counts[index] == whole else len(channel_groups) // whole * counts[index]


def output_channels(
    plan: ChannelPlan, counts: Sequence[int], reads: ReadChannels = ORIGINAL, widths: NodeWidths | None = None
) -> int:
    """Channels of the output when `counts` channel groups are kept; the sum over several outputs."""
    widths = widths or node_widths(plan, counts, reads)
    return sum(widths[plan.read(result)] for result in plan.results)


def importance_scores(plan: ChannelPlan) -> tuple[Scores, ...]:
    """Importance of every channel group of every dependency group; larger is more important.

    The L2 norm of the filters that write it, times the scale of a following batch norm; relative to the
    layer's mean and averaged over the layers of the dependency group, so that no layer dominates by
    magnitude.
    """
    return tuple(_scores_of(group, plan.sources) for group in plan.groups)


def _scores_of(group: DependencyGroup, read: Sequence[fx.Node]) -> Scores:
    total = np.zeros(group.channel_groups)
    for node, channel_groups in group.producers:
        if node.op != "call_module" or node in read or role_of(node) is Role.OPAQUE:
            continue
        layer = module_of(node)
        if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            continue
        with torch.no_grad():
            weight = layer.weight.detach().double()
            weight = weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose2d) else weight
            norms = weight.flatten(1).norm(dim=1).cpu().numpy()
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
    """The `count` most important channel groups, ascending; beyond their number, the best ones are repeated."""
    order = np.argsort(-scores, kind="stable")
    rounds, rest = divmod(count, len(order))
    return np.sort(np.concatenate([*([order] * rounds), order[:rest]])).astype(np.int64)


def assign_groups(scores: Scores, counts: Sequence[int]) -> list[Indices]:
    """Assigns channel groups to several branches in order of importance.

    If the counts add up to the number of channel groups or more, every channel group is assigned, the most
    important ones to several branches; else the most important ones are assigned once. Important and
    unimportant channel groups are spread evenly, so that no branch gets only the rest.

    Args:
        scores: importance of every channel group.
        counts: channel groups per branch; at most all of them.

    Returns:
        Ascending channel groups per branch, each at most once in a branch.
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

    The rest can be assigned as long as no branch needs more than `left` and the branches together need at
    least `left`, or no coverage is required any more.
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
    """All channel groups of every dependency group."""
    return {group.index: np.arange(group.channel_groups, dtype=np.int64) for group in plan.groups}


def kept_positions(plan: ChannelPlan, node: fx.Node, selection: Mapping[int, Indices]) -> Indices:
    """Positions, in a layer's output, of the channels that are kept; those of one channel group stay adjacent.

    All producers of a dependency group keep the same channels in the same order, on which sums rely.
    """
    index, channel_groups = plan.produced[node]
    times = np.bincount(selection[index], minlength=plan.groups[index].channel_groups)[channel_groups]
    if times.max(initial=0) <= 1:
        return np.flatnonzero(times).astype(np.int64)
    starts = np.flatnonzero(np.diff(channel_groups, prepend=-1))
    runs = zip(starts, [*starts[1:], len(channel_groups)], strict=True)
    return np.concatenate([np.tile(np.arange(first, stop), times[first]) for first, stop in runs]).astype(np.int64)
