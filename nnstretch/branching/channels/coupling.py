"""Couples the channels of a traced graph: finds which of them must be kept or dropped together.

Every layer that produces channels (convolution, dense layer) adds one element per output channel. Sums unite
the elements of their addends pairwise; grouped convolutions unite what one group reads and writes. United
elements form a channel group; channel groups that one layer writes side by side form a dependency group
(`groups`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, DependencyGroup, Indices, results_of
from nnstretch.branching.tracing.modules import ChannelShuffle, ChannelSlice, HeadSlice
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
from nnstretch.branching.tracing.trace import Block


def plan_channels(
    blocks: Sequence[Block], kept: Sequence[int], *, lock_output: bool = False, allow_entry: bool = True
) -> ChannelPlan:
    """The dependency groups of `blocks` when only those in `kept` stay.

    Args:
        blocks: consecutive blocks of a chain.
        kept: positions of the blocks that stay, ascending; the others must be droppable.
        lock_output: all output channels must be kept, in order.
        allow_entry: let a 1x1 convolution read inputs whose channels are coupled to others. Without it,
            channels coupled to an input are locked.
    """
    chosen = tuple(blocks[i] for i in kept)
    alias: dict[fx.Node, fx.Node] = {}
    for i, block in enumerate(blocks):
        if i not in kept:
            alias[block.output] = alias.get(block.source, block.source)
    output = alias.get(blocks[-1].output, blocks[-1].output)
    walk = _CouplingWalk(chosen, blocks[0].source, output, alias)
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


class _CouplingWalk:
    """One pass over the nodes that numbers channels and couples those that must be kept together."""

    def __init__(
        self, blocks: tuple[Block, ...], source: fx.Node, output: fx.Node, alias: Mapping[fx.Node, fx.Node]
    ) -> None:
        self.blocks, self.source, self.output, self.alias = blocks, source, output, alias
        own = {source, *alias, *(block.output for block in blocks)}
        self.skips = tuple(dict.fromkeys(skip for block in blocks for skip in block.skips if skip not in own))

    def run(self, *, entries: frozenset[fx.Node]) -> None:
        self.count = 0  # elements, which are numbered in the order in which they are added
        self.edges: list[tuple[Indices, Indices]] = []
        self.elements: dict[fx.Node, Indices] = {}
        self.producers: list[tuple[fx.Node, Indices]] = []
        self.locked: set[int] = set()
        self.inputs: dict[fx.Node, Indices] = {}
        for tensor in (self.source, *self.skips):
            self.inputs[tensor] = self._add(channels_of(tensor))
            self.elements[tensor] = self._make(tensor) if tensor in entries else self.inputs[tensor]
        for node in (node for block in self.blocks for node in block.nodes):
            role = role_of(node)
            if role is Role.OPAQUE:
                self._lock_operands(node)
            if role is not Role.CONSTANT and len(shape_of(node) or ()) > 1:
                self.elements[node] = self._written(node, role)

    def _add(self, count: int) -> Indices:
        self.count += count
        return np.arange(self.count - count, self.count, dtype=np.int64)

    def _make(self, node: fx.Node) -> Indices:
        """New elements for the channels that a node produces."""
        elements = self._add(channels_of(node))
        self.producers.append((node, elements))
        return elements

    def roots(self) -> Indices:
        """The channel group of every element, named by its first element."""
        return component_roots(self.count, self.edges)

    def lock(self, elements: Indices) -> None:
        self.locked.update(elements.tolist())

    def lock_inputs(self) -> None:
        for elements in self.inputs.values():
            self.lock(elements)

    def coupled_inputs(self) -> frozenset[fx.Node]:
        """Inputs whose channels are coupled to produced channels or another input, are locked, or reach the output."""
        roots = self.roots()
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

    def _written(self, node: fx.Node, role: Role) -> Indices:
        """The elements of the channels that a node writes; couples those that must be kept together."""
        if role in (Role.CONV, Role.LINEAR):
            return self._make(node)
        if role in (Role.OPAQUE, Role.REDUCTION):
            made = self._make(node)
            self.lock(made)
            return made
        if role is Role.BINARY:
            return self._combined(node)
        if role is Role.CONCAT:
            return np.concatenate([self._of(part) for part in concat_operands(node)])
        if role is Role.ATTENTION:
            return self._attended(node)
        source = self._of(node.all_input_nodes[0])
        if role in (Role.GROUPED, Role.GROUP_NORM, Role.SLICE, Role.SHUFFLE, Role.PIXELS):
            return self._regrouped(node, source)
        # Channelwise operators keep the elements. The pixels of a flattened channel share the channel's element.
        return source

    def _regrouped(self, node: fx.Node, source: Indices) -> Indices:
        """As `_written`, for layers that treat groups of adjacent channels alike."""
        module = module_of(node)
        if isinstance(module, ChannelSlice):
            # Each of several equal slices takes an equal share of a narrower tensor, so all must keep the same channels.
            if module.regular:
                rows = source.reshape(-1, module.stop - module.first)
                self.edges.append((rows[:1], rows))
            else:
                self.lock(source)
            return source[module.first : module.stop]
        if isinstance(module, HeadSlice):
            rows = source.reshape(-1, module.width)
            self.edges.append((rows[:, :1], rows))
            return rows[:, module.first : module.stop].reshape(-1)
        if isinstance(module, ChannelShuffle):
            rows = source.reshape(module.groups, -1)
            self.edges.append((rows[:1], rows))
            return rows.T.reshape(-1)
        if isinstance(module, nn.PixelShuffle):
            rows = source.reshape(-1, module.upscale_factor**2)
            self.edges.append((rows[:, :1], rows))
            return rows[:, 0]
        if isinstance(module, nn.GroupNorm):
            rows = source.reshape(module.num_groups, -1)
            self.edges.append((rows[:, :1], rows))
            return source
        assert isinstance(module, nn.Conv2d)
        made, rows = self._make(node), source.reshape(module.groups, -1)
        self.edges += [(rows[:, :1], rows), (rows[:, :1], made.reshape(module.groups, -1))]
        return made

    def _attended(self, node: fx.Node) -> Indices:
        """As `_written`, for attention: the channels of a head stay together."""
        module = module_of(node)
        assert isinstance(module, Attention)
        query, key, value = (self._of(operand) for operand in node.args)  # type: ignore[arg-type]
        rows = query.reshape(-1, module.query_width)
        self.edges.append((rows[:, :1], rows))
        if not module.shared:
            self.edges.append((rows[:, :1], key.reshape(len(rows), -1)))
            self.edges.append((rows[:, :1], value.reshape(len(rows), -1)))
            return value
        self.lock(key)
        self.lock(value)
        if module.query_width == module.value_width:
            return query
        # A head's first channels stand for all of them, as they are coupled.
        return np.repeat(rows[:, :1], module.value_width, axis=1).reshape(-1)

    def _of(self, node: fx.Node) -> Indices:
        return self.elements[self.alias.get(node, node)]

    def _lock_operands(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            real = self.alias.get(operand, operand)
            if real in self.elements:
                self.lock(self.elements[real])

    def _combined(self, node: fx.Node) -> Indices:
        sources = [self._of(tensor) for tensor in tensor_operands(node)]
        widest = max(sources, key=len)
        self.edges += [(widest, other) for other in sources if len(other) == len(widest)]
        return widest

    def plan(self, entries: frozenset[fx.Node]) -> ChannelPlan:
        partition = _GroupPartition(self.roots(), [made for _, made in self.producers])
        locked = partition.groups_containing(np.array(sorted(self.locked), np.int64))
        groups = [self._group(i, key, partition, key in locked) for i, key in enumerate(partition.order)]
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
            tuple(self._output_parts(partition)),
        )

    def _group(self, index: int, key: int, partition: _GroupPartition, locked: bool) -> DependencyGroup:
        members = partition.members(key)
        producers = [
            (node, np.searchsorted(members, found))
            for (node, _), found in zip(self.producers, partition.produced, strict=True)
            if partition.group[found[0]] == key
        ]
        counts = [np.bincount(numbers, minlength=len(members)) for _, numbers in producers]
        sizes = {int(size) for count in counts for size in count if size}
        # A ratio cannot count channel groups of different sizes. They occur where a sum couples a grouped convolution
        # to part of a concatenation; all of these channels are kept.
        uniform = all(len(set(count[count > 0].tolist())) == 1 for count in counts) and all(
            count.all() for count in counts
        )
        width = min(sizes) if uniform else 1
        return DependencyGroup(index, len(members), width, locked or not uniform, tuple(producers))

    def _output_parts(self, partition: _GroupPartition) -> list[int | None]:
        if self.output.op == "output":
            return []
        number = {key: i for i, key in enumerate(partition.order)}
        keys = partition.group[partition.roots[self.elements[self.output]]]
        changes = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
        return [number.get(key) for key in keys[changes].tolist()]


class _GroupPartition:
    """Partition of elements into channel groups and dependency groups, each named by its first element.

    Attributes:
        roots: channel group of every element.
        produced: channel groups of each producer's output.
        group: dependency group of every channel group; -1 if no producer writes it.
        order: dependency groups in the order in which they are first written.
    """

    def __init__(self, roots: Indices, producers: Sequence[Indices]) -> None:
        self.roots = roots
        self.produced = [roots[elements] for elements in producers]
        self._written = np.unique(np.concatenate([*self.produced, roots[:0]]))
        edges = [(found[:1], found) for found in self.produced]
        self.group = np.full(len(roots), -1, np.int64)
        self.group[self._written] = component_roots(len(roots), edges)[self._written]
        self.order = list(dict.fromkeys(int(self.group[found[0]]) for found in self.produced))

    def groups_containing(self, elements: Indices) -> set[int]:
        """The dependency groups of elements."""
        return set(self.group[self.roots[elements]].tolist())

    def members(self, group: int) -> Indices:
        """The channel groups of a dependency group, in order."""
        members: Indices = self._written[self.group[self._written] == group]
        return members


def component_roots(count: int, edges: Sequence[tuple[Indices, Indices]]) -> Indices:
    """Connected components of `count` elements: the smallest element of each one's component.

    Args:
        count: number of elements.
        edges: the ends of edges, in arrays that are broadcast to each other.
    """
    roots = np.arange(count, dtype=np.int64)
    if not edges:
        return roots
    pairs = [np.broadcast_arrays(left, right) for left, right in edges]
    ends, others = (np.concatenate([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
    while True:
        low = np.minimum(roots[ends], roots[others])
        found = roots.copy()
        # A root with a smaller neighbour adopts it, and all elements that point to the root follow.
        for side in (ends, others):
            np.minimum.at(found, roots[side], low)
            np.minimum.at(found, side, low)
        while not np.array_equal(further := found[found], found):
            found = further
        if np.array_equal(found, roots):
            return roots
        roots = found
