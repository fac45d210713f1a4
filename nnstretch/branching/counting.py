"""MACs and parameters of scaled copies, counted from shapes alone: what `accounting` counts on the built module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from nnstretch.branching.accounting import call_macs
from nnstretch.branching.channels import ChannelPlan
from nnstretch.branching.inherit import needs_entry
from nnstretch.branching.operators import Role, channels_of, module_of, role_of, shape_of
from nnstretch.branching.scaling import node_widths


@dataclass(frozen=True)
class Cost:
    """Multiply-accumulates for one sample, and learnable scalars."""

    macs: int
    params: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.params + other.params)


def part_cost(plan: ChannelPlan, counts: Sequence[int], in_channels: int, *, exact: bool) -> Cost:
    """What a copy of `plan` costs that keeps `counts[i]` bundles of space `i`.

    Args:
        plan: blocks and spaces.
        counts: bundles kept of every space.
        in_channels: channels of the tensor that the copy reads.
        exact: those are the original channels, each once and in order.
    """
    complete = list(counts) == [space.bundles for space in plan.spaces]
    widths = node_widths(plan, counts, in_channels)
    total = Cost(0, 0)
    if needs_entry(plan, complete=complete, exact=exact):
        shape = shape_of(plan.source)
        assert shape is not None
        weights = in_channels * widths[None]
        total += Cost(weights * math.prod(shape[2:]), weights)
    for node in plan.nodes:
        total += _node_cost(plan, node, widths)
    return total


def layer_sizes(plan: ChannelPlan, node: fx.Node, widths: dict[fx.Node | None, int]) -> tuple[int, int, int]:
    """Input channels (for a dense layer: features), output channels and groups of a scaled convolution or dense layer."""
    module = module_of(node)
    source = plan.read(node.all_input_nodes[0])
    read = widths[source]
    if isinstance(module, nn.Linear):
        # A map that was flattened holds several features per channel.
        return module.in_features * read // plan.full_widths[source], widths[node], 1
    assert isinstance(module, nn.Conv2d)
    role = role_of(node)
    if role is Role.CONV:
        return read, widths[node], 1
    groups = widths[node] if role is Role.DEPTHWISE else widths[node] * module.groups // module.out_channels
    return read, widths[node], groups


def _node_cost(plan: ChannelPlan, node: fx.Node, widths: dict[fx.Node | None, int]) -> Cost:
    role = role_of(node)
    if node.op != "call_module":
        return Cost(0, _parameter_size(node) if role is Role.CONSTANT else 0)
    module = module_of(node)
    shape = shape_of(node)
    if role is Role.NORM:
        # A flattened map is normalised element by element.
        scale = channels_of(node) // plan.full_widths[node]
        learnable = sum(parameter.numel() for parameter in module.parameters())
        return Cost(0, learnable // channels_of(node) * scale * widths[node])
    if shape is not None and isinstance(module, (nn.Conv2d, nn.Linear)) and role is not Role.OPAQUE:
        reads, writes, groups = layer_sizes(plan, node, widths)
        weights = reads // groups * writes * (math.prod(module.kernel_size) if isinstance(module, nn.Conv2d) else 1)
        bias = writes if module.bias is not None else 0
        return Cost(weights * math.prod(shape[2:]), weights + bias)
    return Cost(_opaque_macs(node, module), sum(parameter.numel() for parameter in module.parameters()))


def _opaque_macs(node: fx.Node, module: nn.Module) -> int:
    """MACs for one sample of a layer that is not scaled."""
    read, written = shape_of(node.all_input_nodes[0]) if node.all_input_nodes else None, shape_of(node)
    if read is None or written is None:
        return 0
    return call_macs(module, math.prod(read[1:]), math.prod(written[1:]))


def _parameter_size(node: fx.Node) -> int:
    owner = node.graph.owning_module
    assert owner is not None
    parameters = dict(owner.named_parameters(remove_duplicate=False))
    found = parameters.get(str(node.target))
    return 0 if found is None else found.numel()
