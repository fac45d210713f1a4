"""Dependency groups: channels that must be kept or dropped together when a network is scaled in width.

Coupled channels form a **channel group**; channel groups that the same layers write side by side form a
**dependency group**. Width scaling keeps some channel groups of every dependency group. The idea is
DepGraph's (Fang et al., arXiv:2301.12900). Here groups are derived channel by channel from the torch.fx
graph, so that counts are known without running or changing the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import fx

from nnstretch.branching.tracing.operators import shape_of
from nnstretch.branching.tracing.trace import Block

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DependencyGroup:
    """Channels that one width ratio scales: channel groups that the same layers write side by side.

    Attributes:
        index: its number in the plan.
        channel_groups: number of its channel groups.
        group_channels: channels per channel group in the layer that writes fewest: the group width near a
            grouped convolution, else 1.
        locked: all channel groups must be kept, in order.
        producers: nodes that write it, with the channel group of every channel that they write. An input of
            the plan stands for the 1x1 convolution (entry) after it.
    """

    index: int
    channel_groups: int
    group_channels: int
    locked: bool
    producers: tuple[tuple[fx.Node, Indices], ...]


@dataclass(frozen=True, eq=False)
class ChannelPlan:
    """The dependency groups of consecutive blocks.

    Attributes:
        blocks: the blocks that are kept, in order.
        source: the tensor that the first block reads.
        skips: skip inputs of the blocks.
        output: the tensor that is written; `source` if there are no blocks; the output node for a head.
        alias: output of a dropped block -> the tensor that is read instead.
        entries: inputs that a 1x1 convolution reads first, because they meet operators other than
            convolutions.
        groups: dependency groups in the order in which they are first written.
        full_widths: channels of every tensor at full width; a flattened map counts its channels, not its
            pixels.
        output_parts: dependency groups whose channels make up the output, in order; None where an input
            passes through.
    """

    blocks: tuple[Block, ...]
    source: fx.Node
    skips: tuple[fx.Node, ...]
    output: fx.Node
    alias: Mapping[fx.Node, fx.Node]
    entries: frozenset[fx.Node]
    groups: tuple[DependencyGroup, ...]
    full_widths: Mapping[fx.Node, int]
    output_parts: tuple[int | None, ...]

    @property
    def sources(self) -> tuple[fx.Node, ...]:
        """All inputs: the source, then the skip inputs."""
        return (self.source, *self.skips)

    @property
    def results(self) -> list[fx.Node]:
        """The tensors that are written."""
        return results_of(self.output)

    @cached_property
    def produced(self) -> dict[fx.Node, tuple[int, Indices]]:
        """Node that writes new channels -> its dependency group and the channel group of every channel."""
        return {
            node: (group.index, channel_groups) for group in self.groups for node, channel_groups in group.producers
        }

    @property
    def nodes(self) -> list[fx.Node]:
        """All nodes in topological order."""
        return [node for block in self.blocks for node in block.nodes]

    def read(self, node: fx.Node) -> fx.Node:
        """The tensor that is read where the network reads `node`."""
        return self.alias.get(node, node)

    @property
    def output_groups(self) -> tuple[DependencyGroup, ...]:
        """The dependency groups of the output, each once."""
        return tuple(self.groups[i] for i in dict.fromkeys(self.output_parts) if i is not None)

    @property
    def branchable(self) -> bool:
        """Whether every output channel may be left to another branch."""
        return None not in self.output_parts and not any(group.locked for group in self.output_groups)


def network_input(tensor: fx.Node) -> fx.Node:
    """The network's tensor that an input of a plan is.

    A branch that begins with an entry reads a node of its own, because its blocks read the entry in the tensor's place.
    """
    found = tensor.meta.get("stands_for", tensor)
    assert isinstance(found, fx.Node)
    return found


def results_of(output: fx.Node) -> list[fx.Node]:
    """The tensors that an output stands for: itself, or everything that the graph's output node returns."""
    if output.op != "output":
        return [output]
    return [node for node in output.all_input_nodes if (shape_of(node) or ())[1:]]
