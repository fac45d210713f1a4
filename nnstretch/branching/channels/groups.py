"""Which channels of a run of blocks belong together, so that they are kept or dropped together.

Every layer that makes new channels (convolution, dense layer) gets one element per channel it writes. Sums tie the
elements of their addends pairwise, grouped convolutions tie what one group reads and writes. Tied elements make a
**channel group**; channel groups that one layer writes side by side make a **group**. Scaling the width keeps some
channel groups of every
group. (The idea of grouping by dependency is DepGraph's, Fang et al., arXiv:2301.12900; here it is worked out on the
torch.fx graph, channel by channel, so that counts are known without running or changing the network.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import fx, nn

from nnstretch.branching.channels.union_find import Indices, UnionFind, component_roots
from nnstretch.branching.tracing.modules import ChannelShuffle, ChannelSlice
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
)
from nnstretch.branching.tracing.trace import Block


@dataclass(frozen=True, eq=False)
class DependencyGroup:
    """Channels that are scaled by one ratio.

    Attributes:
        index: its number in the plan.
        channel_groups: how many channel groups it has.
        group_channels: channels of one channel group in the layer that writes fewest (the group width where a grouped
            convolution is near, else 1).
        locked: all channel groups must be kept, in order.
        producers: nodes that write it, with the channel group of every channel they write. A tensor that the plan reads
        from outside
            stands for the entry that is put behind it.
    """

    index: int
    channel_groups: int
    group_channels: int
    locked: bool
    producers: tuple[tuple[fx.Node, Indices], ...]


@dataclass(frozen=True, eq=False)
class ChannelPlan:
    """The groups of a run of blocks.

    Attributes:
        blocks: those that are kept, in order.
        source: the tensor that the run reads.
        skips: other tensors that it reads.
        output: the tensor that it writes, which is `source` if there are no blocks; or the graph's output node.
        alias: output of a dropped block -> the tensor that is read in its place.
        entries: those of the tensors that are read behind which a 1x1 convolution comes first, because they meet something
            other than convolutions.
        groups: in the order in which they are first written.
        full_widths: channels of every tensor of the network as it was; those of a flattened map are counted, not their
            pixels.
        output_parts: groups whose channels make up the output, in order; None where the input passes through.
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
        """All tensors that are read."""
        return (self.source, *self.skips)

    @property
    def results(self) -> list[fx.Node]:
        """The tensors that are written."""
        return results_of(self.output)

    @property
    def has_entry(self) -> bool:
        """Whether a 1x1 convolution may come behind `source`."""
        return self.source in self.entries

    @cached_property
    def produced(self) -> dict[fx.Node, tuple[int, Indices]]:
        """Node that writes new channels -> its group and the channel group of every channel."""
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

    def keeps_all(self, counts: Sequence[int]) -> bool:
        """Whether so many channel groups of every group are all of them."""
        return list(counts) == [group.channel_groups for group in self.groups]

    @property
    def output_groups(self) -> tuple[DependencyGroup, ...]:
        """The groups that the output is made of, each once."""
        return tuple(self.groups[i] for i in dict.fromkeys(self.output_parts) if i is not None)

    @property
    def branchable(self) -> bool:
        """Whether every channel of the output may be left to another branch."""
        return None not in self.output_parts and not any(group.locked for group in self.output_groups)


def plan_channels(
    blocks: Sequence[Block], kept: Sequence[int], *, lock_output: bool = False, allow_entry: bool = True
) -> ChannelPlan:
    """The groups of those of `blocks` that are `kept` (positions, ascending).

    Args:
        blocks: consecutive blocks of a chain.
        kept: positions of the blocks that stay; the others must be droppable.
        lock_output: the channels that are written must all be kept, in order.
        allow_entry: put a convolution first where the tensor that is read is tied to others. Without it, those
            others keep all their channels, in order.
    """
    chosen = tuple(blocks[i] for i in kept)
    alias: dict[fx.Node, fx.Node] = {}
    for i, block in enumerate(blocks):
        if i not in kept:
            alias[block.output] = alias.get(block.source, block.source)
    output = alias.get(blocks[-1].output, blocks[-1].output)
    walk = _Walk(chosen, blocks[0].source, output, alias)
    walk.run(entries=frozenset())
    tied = walk.coupled_inputs()
    if tied and allow_entry:
        walk.run(entries=tied)
    elif tied:
        walk.lock_inputs()
    if lock_output:
        for result in results_of(output):
            walk.lock(walk.elements[result])
    return walk.plan(tied if allow_entry else frozenset())


def results_of(output: fx.Node) -> list[fx.Node]:
    """The tensors that an output stands for: itself, or all that the graph's output node returns."""
    if output.op != "output":
        return [output]
    return [node for node in output.all_input_nodes if (shape_of(node) or ())[1:]]


def _skips_of(blocks: Sequence[Block], source: fx.Node) -> tuple[fx.Node, ...]:
    """What the blocks read that none of them writes."""
    own = {source, *(block.output for block in blocks)}
    return tuple(dict.fromkeys(skip for block in blocks for skip in block.skips if skip not in own))


class _Walk:
    """One pass over the nodes that numbers elements and ties them."""

    def __init__(
        self, blocks: tuple[Block, ...], source: fx.Node, output: fx.Node, alias: Mapping[fx.Node, fx.Node]
    ) -> None:
        self.blocks, self.source, self.output, self.alias = blocks, source, output, alias
        self.skips = tuple(skip for skip in _skips_of(blocks, source) if skip not in alias)

    def run(self, *, entries: frozenset[fx.Node]) -> None:
        self.unions = UnionFind()
        self.elements: dict[fx.Node, Indices] = {}
        self.producers: list[tuple[fx.Node, Indices]] = []
        self.locked: set[int] = set()
        self.inputs: dict[fx.Node, Indices] = {}
        for tensor in (self.source, *self.skips):
            self.inputs[tensor] = self.unions.add(channels_of(tensor))
            made = self._make(tensor, channels_of(tensor)) if tensor in entries else self.inputs[tensor]
            self.elements[tensor] = made
        for block in self.blocks:
            for node in block.nodes:
                self._visit(node)

    def _make(self, node: fx.Node, count: int) -> Indices:
        elements = self.unions.add(count)
        self.producers.append((node, elements))
        return elements

    def lock(self, elements: Indices) -> None:
        self.locked.update(elements.tolist())

    def lock_inputs(self) -> None:
        for elements in self.inputs.values():
            self.lock(elements)

    def coupled_inputs(self) -> frozenset[fx.Node]:
        """Those of what is read that are tied to channels made here or read elsewhere, are locked, or reach the output."""
        roots = self.unions.roots()
        read = {tensor: set(roots[elements].tolist()) for tensor, elements in self.inputs.items()}
        others = {root for _, made in self.producers for root in roots[made].tolist()}
        others |= set(roots[list(self.locked)].tolist())
        for result in results_of(self.output):
            others |= set(roots[self.elements[result]].tolist())
        tied = set()
        for tensor, found in read.items():
            beside = set().union(*(r for other, r in read.items() if other is not tensor))
            if len(found) < len(self.inputs[tensor]) or found & (others | beside):
                tied.add(tensor)
        return frozenset(tied)

    def _visit(self, node: fx.Node) -> None:
        role = role_of(node)
        if shape_of(node) is None or role is Role.CONSTANT:
            if role is Role.OPAQUE:
                self._lock_operands(node)
            return
        if role in (Role.CONV, Role.LINEAR):
            self.elements[node] = self._make(node, channels_of(node))
        elif role is Role.GROUPED:
            self._grouped(node)
        elif role is Role.BINARY:
            self._binary(node)
        elif role is Role.CONCAT:
            self.elements[node] = np.concatenate([self._of(part) for part in concat_operands(node)])
        elif role is Role.SLICE:
            self._slice(node)
        elif role is Role.SHUFFLE:
            self._shuffle(node)
        elif role is Role.GROUP_NORM:
            self._group_norm(node)
        elif role is Role.OPAQUE:
            self._lock_operands(node)
            shape = shape_of(node)
            if shape is not None and len(shape) > 1:
                self.elements[node] = self._make(node, channels_of(node))
                self.lock(self.elements[node])
        else:
            # Channel by channel; a flattened map holds every channel's pixels side by side, under the channel's element.
            self.elements[node] = self._of(node.all_input_nodes[0])

    def _of(self, node: fx.Node) -> Indices:
        return self.elements[self.alias.get(node, node)]

    def _lock_operands(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            real = self.alias.get(operand, operand)
            if real in self.elements:
                self.lock(self.elements[real])

    def _grouped(self, node: fx.Node) -> None:
        convolution = module_of(node)
        assert isinstance(convolution, nn.Conv2d)
        source = self._of(node.all_input_nodes[0]).reshape(convolution.groups, -1)
        made = self._make(node, convolution.out_channels)
        self.elements[node] = made
        for elements in (source, made.reshape(convolution.groups, -1)):
            self.unions.union(source[:, :1], elements)

    def _slice(self, node: fx.Node) -> None:
        """Of equal slices of a narrower tensor each has an equal share, so that all must keep the same of their channels."""
        part = module_of(node)
        assert isinstance(part, ChannelSlice)
        source = self._of(node.all_input_nodes[0])
        if part.regular:
            self._couple_rows(source.reshape(-1, part.stop - part.first))
        else:
            self.lock(source)
        self.elements[node] = source[part.first : part.stop]

    def _shuffle(self, node: fx.Node) -> None:
        shuffle = module_of(node)
        assert isinstance(shuffle, ChannelShuffle)
        parts = self._of(node.all_input_nodes[0]).reshape(shuffle.groups, -1)
        self._couple_rows(parts)
        self.elements[node] = parts.T.reshape(-1)

    def _couple_rows(self, rows: Indices) -> None:
        """UnionFind what has the same place in every row."""
        self.unions.union(rows[:1], rows)

    def _group_norm(self, node: fx.Node) -> None:
        norm = module_of(node)
        assert isinstance(norm, nn.GroupNorm)
        self.elements[node] = self._of(node.all_input_nodes[0])
        groups = self.elements[node].reshape(norm.num_groups, -1)
        self.unions.union(groups[:, :1], groups)

    def _binary(self, node: fx.Node) -> None:
        sources = [self._of(tensor) for tensor in tensor_operands(node)]
        widest = max(sources, key=len)
        for other in sources:
            if len(other) == len(widest):
                self.unions.union(widest, other)
        self.elements[node] = widest

    def plan(self, entries: frozenset[fx.Node]) -> ChannelPlan:
        channel_groups = _ChannelGroups(self.unions.roots(), [made for _, made in self.producers])
        locked = channel_groups.groups_containing(np.array(sorted(self.locked), np.int64))
        groups = [self._group(i, key, channel_groups, key in locked) for i, key in enumerate(channel_groups.order)]
        widths = {node: len(elements) for node, elements in self.elements.items()}
        return ChannelPlan(
            self.blocks,
            self.source,
            self.skips,
            self.output,
            self.alias,
            entries,
            tuple(groups),
            widths,
            tuple(self._output_parts(channel_groups)),
        )

    def _group(self, index: int, key: int, channel_groups: _ChannelGroups, locked: bool) -> DependencyGroup:
        members = channel_groups.members(key)
        producers = [
            (node, np.searchsorted(members, found))
            for (node, _), found in zip(self.producers, channel_groups.produced, strict=True)
            if channel_groups.group[found[0]] == key
        ]
        counts = [np.bincount(numbers, minlength=len(members)) for _, numbers in producers]
        sizes = {int(size) for count in counts for size in count if size}
        # ChannelGroups of several sizes cannot be counted by a ratio alone. That happens where a sum ties a grouped convolution
        # to part of a concatenation; such channels are all kept.
        uniform = all(len(set(count[count > 0].tolist())) == 1 for count in counts) and all(
            count.all() for count in counts
        )
        width = min(sizes) if uniform else 1
        return DependencyGroup(index, len(members), width, locked or not uniform, tuple(producers))

    def _output_parts(self, channel_groups: _ChannelGroups) -> list[int | None]:
        if self.output.op == "output":
            return []
        number = {key: i for i, key in enumerate(channel_groups.order)}
        keys = channel_groups.group[channel_groups.roots[self.elements[self.output]]]
        changes = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
        return [number.get(key) for key in keys[changes].tolist()]


class _ChannelGroups:
    """ChannelGroups and groups of elements, each known by the first element in it.

    Attributes:
        roots: of every element, the channel group.
        made: channel groups of what every maker writes.
        group: of every channel group, the group; -1 of one that nobody writes.
        order: groups in the order in which they are first written.
    """

    def __init__(self, roots: Indices, producers: Sequence[Indices]) -> None:
        self.roots = roots
        self.produced = [roots[elements] for elements in producers]
        self._written = np.unique(np.concatenate([*self.produced, roots[:0]]))
        firsts = [np.broadcast_to(found[:1], found.shape) for found in self.produced]
        self.group = np.full(len(roots), -1, np.int64)
        self.group[self._written] = component_roots(len(roots), firsts, self.produced)[self._written]
        self.order = list(dict.fromkeys(int(self.group[found[0]]) for found in self.produced))

    def groups_containing(self, elements: Indices) -> set[int]:
        """The groups of elements."""
        return set(self.group[self.roots[elements]].tolist())

    def members(self, group: int) -> Indices:
        """The channel groups of a group, in order."""
        members: Indices = self._written[self.group[self._written] == group]
        return members
