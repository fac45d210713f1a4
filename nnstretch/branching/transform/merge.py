"""What the branches of a segment write where they meet, and the weights of the convolutions at their ends.

These begin as near as possible to picking channels, so that branches of full width and depth compute what the network computes.
Their batch norms begin with the statistics of the tensor that they pass on, and with the scale and shift that undo them: in
evaluation as in training they hand it on as it is, as far as the example input is typical. An output channel for which a
branch has none of the channels begins as the mean of the original channel, with a weight that only training opens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import Scores, assign_groups, best_groups, kept_positions
from nnstretch.branching.channels.union_find import Indices
from nnstretch.branching.design.design import Merge
from nnstretch.branching.tracing.forward_hooks import run_with_hook
from nnstretch.branching.tracing.operators import Role, module_of, role_of
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.branching.transform.variants import EXIT, FIRST, PROJECTION

ChannelStatistics = Mapping[fx.Node, tuple[Tensor, Tensor]]
"""Mean and variance of every channel of a tensor of the network as it was."""


def shares(channels: int, branches: int) -> list[tuple[int, int]]:
    """Ranges that divide `channels` among branches as evenly as possible, the first ones getting what is left over."""
    each, more = divmod(channels, branches)
    ends = itertools.accumulate((each + (i < more) for i in range(branches)), initial=0)
    return list(itertools.pairwise(ends))


def merged_channels(merge: Merge, written: Sequence[int]) -> int:
    """Channels of the meeting point's tensor where branches write so many each."""
    return written[0] if merge is Merge.ADD else sum(written)


def statistics(traced: TracedNetwork) -> ChannelStatistics:
    """Those of the tensors that blocks read or write, on the example input."""
    wanted = {traced.source, *(block.output for block in traced.blocks)}
    found: dict[fx.Node, tuple[Tensor, Tensor]] = {}

    def note(node: fx.Node, value: object) -> None:
        if node in wanted and isinstance(value, Tensor) and value.dim() == 4:
            variance, mean = torch.var_mean(value.double(), dim=(0, 2, 3), correction=0)
            found[node] = mean, variance

    run_with_hook(traced.graph, traced.example_input, note)
    return found


def assign_output_groups(
    groups: Sequence[Indices],
    scores: Sequence[Scores],
    counts: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]] | None,
) -> list[list[Indices]]:
    """ChannelGroups of the groups that are written, for every branch, so that together they have as much as possible.

    Args:
        groups: for every group the channel group of each of its channels.
        scores: how much the channel groups of every group matter.
        counts: for every branch how many channel groups it keeps of each group.
        places: for every branch the range of channels that it makes; None if it may be any.
    """
    assigned: list[list[Indices]] = [[] for _ in counts]
    for number, (channel_groups, importance) in enumerate(zip(groups, scores, strict=True)):
        kept = [count[number] for count in counts]
        if places is not None and len(groups) == 1:
            found = [
                _prefer(importance, count, np.unique(channel_groups[first:stop]))
                for count, (first, stop) in zip(kept, places, strict=True)
            ]
        else:
            found = _assign_with_repeats(importance, kept)
        for branch, selection in zip(assigned, found, strict=True):
            branch.append(selection)
    return assigned


def _assign_with_repeats(scores: Scores, counts: Sequence[int]) -> list[Indices]:
    """As `assign_groups`, for branches that may be wider than the original: these repeat channel groups."""
    rounds = [(count - 1) // len(scores) for count in counts]
    again = assign_groups(scores, [count - more * len(scores) for count, more in zip(counts, rounds, strict=True)])
    every = np.arange(len(scores), dtype=np.int64)
    return [np.sort(np.concatenate([*[every] * more, some])) for more, some in zip(rounds, again, strict=True)]


def _prefer(scores: Scores, count: int, preferred: Indices) -> Indices:
    """The `count` best channel groups, `preferred` ones before all others."""
    raised = scores.copy()
    raised[preferred] += scores.max(initial=0.0) - scores.min(initial=0.0) + 1.0
    return best_groups(raised, count)


def entry_scores(plan: ChannelPlan) -> Scores | None:
    """How much the channels matter that a convolution in front of everything else makes; None if there is none.

    That is how large the weights are of those who read them.
    """
    entry = _node(plan, f"{FIRST}.conv")
    if entry is None:
        return None
    total: npt.NDArray[np.float64] = np.zeros(len(plan.produced[entry][1]))
    written = next(node for node in plan.nodes if node.target == f"{FIRST}.norm")
    for node in plan.nodes:
        reads = [plan.read(operand) for operand in node.all_input_nodes]
        if written in reads and role_of(node) in (Role.CONV, Role.DEPTHWISE):
            weight = module_of(node).weight
            assert isinstance(weight, Tensor)
            axes = (0, 2, 3) if role_of(node) is Role.CONV else (1, 2, 3)
            norms = weight.detach().double().pow(2).sum(dim=axes).sqrt().cpu().numpy()
            total += norms / max(norms.mean(), np.finfo(np.float64).tiny)
    return total


def initialise_entries(
    plan: ChannelPlan,
    selection: Mapping[int, Indices],
    copy: nn.Module,
    found: ChannelStatistics,
    read: fx.Node,
) -> None:
    """Gives the convolutions in front of a copy's blocks their batch norms.

    Args:
        plan: of what `copy` is a copy.
        selection: channel groups that it keeps of every group.
        copy: is changed.
        found: statistics of the network's tensors.
        read: the tensor that the segment reads in the network as it was.
    """
    for name in (FIRST, PROJECTION):
        node = _node(plan, f"{name}.conv")
        if node is not None:
            channels = kept_positions(plan, node, selection)
            _initialise_identity(copy, name, [s[channels] for s in found[read]], torch.ones(len(channels)))


def initialise_exits(
    merge: Merge,
    copies: Sequence[nn.Module],
    exits: Sequence[tuple[int, int] | None],
    found: ChannelStatistics,
    output: fx.Node,
) -> None:
    """Gives the convolutions behind the copies of one segment their weights and batch norms.

    Where branches are summed, each adds an equal part of the channels that it has.
    """
    ends = [(copy, place) for copy, place in zip(copies, exits, strict=True) if place is not None]
    present = [_present(copy, EXIT) for copy, _ in ends]
    for (copy, (first, stop)), own in zip(ends, present, strict=True):
        parts = torch.ones(stop - first)
        if merge is Merge.ADD and len(ends) > 1:
            having = torch.stack(present).sum(dim=0)
            parts = torch.where(own, 1.0 / having.clamp(min=1), torch.where(having == 0, 1.0 / len(ends), 0.0))
        _initialise_identity(copy, EXIT, [s[first:stop] for s in found[output]], parts)


def _node(plan: ChannelPlan, target: str) -> fx.Node | None:
    return next((node for node in plan.nodes if node.op == "call_module" and node.target == target), None)


def _present(copy: nn.Module, name: str) -> Tensor:
    """Which of the channels that an end's convolution makes it has from what it reads."""
    weight = copy.get_submodule(f"{name}.conv").weight
    assert isinstance(weight, Tensor)
    return weight.detach().abs().sum(dim=(1, 2, 3)) > 0


def _initialise_identity(copy: nn.Module, name: str, moments: Sequence[Tensor], parts: Tensor) -> None:
    """Lets an end pass on `parts` of its channels, whose mean and variance are `moments`."""
    conv, norm = copy.get_submodule(f"{name}.conv"), copy.get_submodule(f"{name}.norm")
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    weight = conv.weight.detach()
    parts = parts.to(weight)
    mean, variance = (moment.to(weight) for moment in moments)
    missing = ~_present(copy, name)
    # Rows of nothing would have no variance to be normed by, nor a gradient of sensible size.
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).to(weight)
    filled = torch.where(missing[:, None, None, None], noise * (2.0 / weight.shape[1]) ** 0.5, 0.0)
    conv.weight = nn.Parameter(weight * parts[:, None, None, None] + filled)
    spread = variance * parts**2
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(torch.where(missing, 0.0, mean * parts))
    norm.running_var.copy_(torch.where(missing, 1.0, spread))
    norm.weight = nn.Parameter(torch.where(missing, 0.0, (spread + norm.eps).sqrt()))
    norm.bias = nn.Parameter(mean * parts)
