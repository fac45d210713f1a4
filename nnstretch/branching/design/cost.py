"""MACs and parameters of scaled copies, from shapes alone; equal to those `accounting` counts on built modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import (
    ORIGINAL,
    NodeWidths,
    ReadChannels,
    inputs_of,
    needed_entries,
    node_widths,
)
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    macs_of,
    module_of,
    parameters_of,
    role_of,
    shape_of,
    times_of,
)
from nnstretch.branching.tracing.tokens import Attention


@dataclass(frozen=True)
class Cost:
    """Multiply-accumulates for one sample, and learnable scalars."""

    macs: int
    params: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.params + other.params)


def part_cost(
    plan: ChannelPlan, counts: Sequence[int], reads: ReadChannels = ORIGINAL, widths: NodeWidths | None = None
) -> Cost:
    """Cost of a copy of `plan` that keeps `counts[i]` channel groups of dependency group `i`.

    Args:
        plan: blocks and dependency groups.
        counts: channel groups kept of every dependency group.
        reads: channels of the tensors that the copy reads.
        widths: `node_widths` of these arguments, if they are known.
    """
    widths, inputs = widths or node_widths(plan, counts, reads), inputs_of(plan, reads)
    macs = params = 0
    for tensor in needed_entries(plan, counts, inputs):
        shape = shape_of(tensor)
        assert shape is not None
        weights = inputs[tensor].channels * widths[tensor]
        macs += weights * math.prod(shape[2:]) * times_of(tensor)
        params += weights
    counted: set[int] = set()
    for node in plan.nodes:
        more_macs, more_params = _node_cost(plan, node, widths, counted)
        macs += more_macs
        params += more_params
    return Cost(macs, params)


def layer_sizes(plan: ChannelPlan, node: fx.Node, widths: NodeWidths) -> tuple[int, int, int]:
    """Input channels (features of a dense layer), output channels and groups of a scaled convolution or dense layer."""
    module = module_of(node)
    source = plan.read(node.all_input_nodes[0])
    read = widths[source]
    if isinstance(module, nn.Linear):
        # A flattened map has several features per channel.
        return module.in_features * read // plan.full_widths[source], widths[node], 1
    role = role_of(node)
    if role is Role.CONV:
        return read, widths[node], 1
    assert isinstance(module, nn.Conv2d)
    groups = widths[node] if role is Role.DEPTHWISE else widths[node] * module.groups // module.out_channels
    return read, widths[node], groups


def _node_cost(plan: ChannelPlan, node: fx.Node, widths: NodeWidths, counted: set[int]) -> tuple[int, int]:
    """MACs and parameters of one node. `counted` has the ids of unscaled parameters, so that shared ones count once."""
    role = role_of(node)
    if node.op != "call_module":
        return 0, _new_parameters(node, counted)
    module = module_of(node)
    shape = shape_of(node)
    if isinstance(module, Attention) and module.has_head_bias:
        return 0, _new_parameters(node, counted) * widths[node] // channels_of(node)
    if role in (Role.NORM, Role.GROUP_NORM):
        # A norm of a flattened map has parameters per element.
        scale = channels_of(node) // plan.full_widths[node]
        learnable = sum(parameter.numel() for parameter in parameters_of(node))
        return 0, learnable // channels_of(node) * scale * widths[node]
    if shape is not None and isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)) and role is not Role.OPAQUE:
        reads, writes, groups = layer_sizes(plan, node, widths)
        weights = reads // groups * writes * (1 if isinstance(module, nn.Linear) else math.prod(module.kernel_size))
        bias = writes if module.bias is not None else 0
        if isinstance(module, nn.ConvTranspose2d):
            shape = shape_of(node.all_input_nodes[0]) or shape
        return weights * math.prod(shape[2:]) * times_of(node), weights + bias
    return macs_of(node), _new_parameters(node, counted)


def _new_parameters(node: fx.Node, counted: set[int]) -> int:
    new = {id(parameter): parameter.numel() for parameter in parameters_of(node) if id(parameter) not in counted}
    counted.update(new)
    return sum(new.values())
