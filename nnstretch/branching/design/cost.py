"""MACs and parameters of scaled copies, from shapes alone; equal to those `accounting` counts on built modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, inputs_of, node_widths
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    macs_of,
    module_of,
    parameters_of,
    role_of,
    shape_of,
)
from nnstretch.branching.transform.inherit import needed_entries


@dataclass(frozen=True)
class Cost:
    """Multiply-accumulates for one sample, and learnable scalars."""

    macs: int
    params: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.params + other.params)


def part_cost(
    plan: ChannelPlan, counts: Sequence[int], in_channels: int, *, exact: bool, skips: SkipInputs = UNSCALED
) -> Cost:
    """Cost of a copy of `plan` that keeps `counts[i]` channel groups of dependency group `i`.

    Args:
        plan: blocks and dependency groups.
        counts: channel groups kept of every dependency group.
        in_channels: channels of the source.
        exact: the source has the original channels, each once and in order.
        skips: channels of the skip inputs.
    """
    widths = node_widths(plan, counts, in_channels, skips)
    reads = inputs_of(plan, in_channels, skips, exact=exact)
    total = Cost(0, 0)
    exact_reads = {tensor: read.exact for tensor, read in reads.items()}
    for tensor in needed_entries(plan, complete=plan.keeps_all(counts), exact=exact_reads):
        shape = shape_of(tensor)
        assert shape is not None
        weights = reads[tensor].channels * widths[tensor]
        total += Cost(weights * math.prod(shape[2:]), weights)
    counted: set[int] = set()
    for node in plan.nodes:
        total += _node_cost(plan, node, widths, counted)
    return total


def layer_sizes(plan: ChannelPlan, node: fx.Node, widths: dict[fx.Node, int]) -> tuple[int, int, int]:
    """Input channels (features of a dense layer), output channels and groups of a scaled convolution or dense layer."""
    module = module_of(node)
    source = plan.read(node.all_input_nodes[0])
    read = widths[source]
    if isinstance(module, nn.Linear):
        # A flattened map has several features per channel.
        return module.in_features * read // plan.full_widths[source], widths[node], 1
    assert isinstance(module, nn.Conv2d)
    role = role_of(node)
    if role is Role.CONV:
        return read, widths[node], 1
    groups = widths[node] if role is Role.DEPTHWISE else widths[node] * module.groups // module.out_channels
    return read, widths[node], groups


def _node_cost(plan: ChannelPlan, node: fx.Node, widths: dict[fx.Node, int], counted: set[int]) -> Cost:
    """Cost of one node. Unscaled parameters that several nodes share are counted once; `counted` holds their ids."""
    role = role_of(node)
    if node.op != "call_module":
        return Cost(0, _new_parameters(node, counted))
    module = module_of(node)
    shape = shape_of(node)
    if role in (Role.NORM, Role.GROUP_NORM):
        # A norm of a flattened map has parameters per element.
        scale = channels_of(node) // plan.full_widths[node]
        learnable = sum(parameter.numel() for parameter in module.parameters())
        return Cost(0, learnable // channels_of(node) * scale * widths[node])
    if shape is not None and isinstance(module, (nn.Conv2d, nn.Linear)) and role is not Role.OPAQUE:
        reads, writes, groups = layer_sizes(plan, node, widths)
        weights = reads // groups * writes * (math.prod(module.kernel_size) if isinstance(module, nn.Conv2d) else 1)
        bias = writes if module.bias is not None else 0
        return Cost(weights * math.prod(shape[2:]), weights + bias)
    return Cost(macs_of(node), _new_parameters(node, counted))


def _new_parameters(node: fx.Node, counted: set[int]) -> int:
    new = {id(parameter): parameter.numel() for parameter in parameters_of(node) if id(parameter) not in counted}
    counted.update(new)
    return sum(new.values())
