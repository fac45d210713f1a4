"""Merging at meeting points: which channels branches write, and initial weights of the convolutions at their ends.

Exit convolutions start as selections of channels, so that branches of full width and depth compute the
original function. Their batch norms start with the statistics of the tensor that they pass on, and with the
scale and shift that cancel them: they pass it on unchanged in evaluation and, for inputs like the example
input, in training. An output channel that a branch lacks starts as the mean of the original channel, with
random weights after a scale of zero that training opens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, Indices
from nnstretch.branching.channels.scaling import Scores, assign_groups, best_groups, kept_positions
from nnstretch.branching.design.design import Merge
from nnstretch.branching.tracing.canonicalize import run_with_hook
from nnstretch.branching.tracing.operators import Role, module_of, role_of
from nnstretch.branching.tracing.trace import TracedNetwork
from nnstretch.branching.transform.variants import EXIT, FIRST, PROJECTION

ChannelStatistics = Mapping[fx.Node, tuple[Tensor, Tensor]]
"""Mean and variance of every channel of a tensor of the original network."""


def even_ranges(channels: int, branches: int) -> list[tuple[int, int]]:
    """Divides `channels` among branches into ranges of nearly equal size; the first ones get the remainder."""
    each, more = divmod(channels, branches)
    ends = itertools.accumulate((each + (i < more) for i in range(branches)), initial=0)
    return list(itertools.pairwise(ends))


def merged_channels(merge: Merge, written: Sequence[int]) -> int:
    """Channels of the meeting point's tensor when the branches write `written` channels."""
    return written[0] if merge is Merge.ADD else sum(written)


def channel_statistics(traced: TracedNetwork) -> ChannelStatistics:
    """Channel statistics of the tensors that blocks read or write, on the example input."""
    wanted = {traced.source, *(block.output for block in traced.blocks)}
    found: dict[fx.Node, tuple[Tensor, Tensor]] = {}

    def record(node: fx.Node, value: object) -> None:
        if node in wanted and isinstance(value, Tensor) and value.dim() == 4:
            variance, mean = torch.var_mean(value.double(), dim=(0, 2, 3), correction=0)
            found[node] = mean, variance

    run_with_hook(traced.graph, traced.example_input, record)
    return found


def assign_output_groups(
    groups: Sequence[Indices],
    scores: Sequence[Scores],
    counts: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]] | None,
) -> list[list[Indices]]:
    """Assigns channel groups of the output to branches, so that together they cover as many as possible.

    Args:
        groups: for every dependency group, the channel group of each of its channels.
        scores: importance of the channel groups of every dependency group.
        counts: for every branch, how many channel groups it keeps of each dependency group.
        places: for every branch, the range of channels that it makes; None if it is free.

    Returns:
        For every branch, ascending channel groups of each dependency group.
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
    """The `count` most important channel groups, `preferred` ones first."""
    raised = scores.copy()
    raised[preferred] += scores.max(initial=0.0) - scores.min(initial=0.0) + 1.0
    return best_groups(raised, count)


def entry_scores(plan: ChannelPlan) -> Scores | None:
    """Importance of the channels of an entry in front of everything else; None if there is none.

    The norms of the weights that read them.
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
    """Initialises the batch norms of a copy's entry convolutions.

    Args:
        plan: of the copy.
        selection: channel groups that it keeps of every dependency group.
        copy: is changed in place.
        found: channel statistics of the network.
        read: the segment's input in the original network.
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
    """Initialises weights and batch norms of the exit convolutions of a segment's branches.

    Where branches are summed, those that have a channel contribute equal parts of it.

    Args:
        merge: how branches are merged.
        copies: the branches; changed in place.
        exits: range of original channels that each makes; None without an exit.
        found: channel statistics of the network.
        output: the segment's output in the original network.
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
    """Which output channels of an end's convolution have a counterpart in its input."""
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
    # A row of zeros would have no variance to normalise, and a gradient of unsuitable size.
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
