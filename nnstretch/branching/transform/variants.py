"""Branches with blocks that the network lacks: convolutions at their ends, and repeated blocks.

Both are blocks made of nodes beside the traced graph, so that whatever counts, copies or predicts blocks
handles them, too. Tensors that they replace are aliased, as those of dropped blocks are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.design.design import Entry
from nnstretch.branching.tracing.operators import Role, channels_of, module_of, role_of, shape_of, times_of
from nnstretch.branching.tracing.trace import Block, Segment, TracedNetwork
from nnstretch.errors import DesignError

FIRST, PROJECTION, EXIT = "first", "projection", "exit"
"""Names, in a copy, of the modules at a branch's ends; each has a convolution `conv` and a batch norm `norm`."""


@dataclass(frozen=True)
class Ends:
    """What a branch has at its ends.

    Attributes:
        entry: what it begins with.
        exit: range of original channels (first, end) that a final 1x1 convolution with batch norm writes;
            None: the branch ends with its last block.
    """

    entry: Entry = Entry.AS_NEEDED
    exit: tuple[int, int] | None = None


PLAIN = Ends()


def branch_plan(traced: TracedNetwork, segment: Segment, blocks: Sequence[int], ends: Ends) -> ChannelPlan:
    """Channel plan of a branch that keeps `blocks` of a segment; repeated numbers are repeated blocks.

    Raises:
        DesignError: the entry does not fit the first block, or a block cannot be repeated.
    """
    chain = _Chain(traced, segment, tuple(blocks), ends)
    return plan_channels(chain.blocks, chain.kept, lock_output=ends.exit is not None)


class _Chain:
    """The blocks of a segment and those that are inserted, for `plan_channels`.

    Attributes:
        blocks: all of them; a block that replaces another one comes before it, which is then dropped.
        kept: positions of those that stay.
    """

    def __init__(self, traced: TracedNetwork, segment: Segment, blocks: tuple[int, ...], ends: Ends) -> None:
        self.blocks: list[Block] = []
        self.kept: list[int] = []
        self._graph = fx.Graph(traced.graph)
        floats = (parameter.dtype for parameter in traced.graph.parameters() if parameter.is_floating_point())
        self._dtype = next(floats, torch.get_default_dtype())
        source = traced.blocks[segment.first].source
        if ends.entry is Entry.FIRST:
            self._enter(source)
        for number in segment.blocks:
            times = blocks.count(number)
            if number == blocks[0] and ends.entry is Entry.PROJECTION:
                self._project(traced.blocks[number])
                self._repeat(traced.blocks[number], range(1, times))
            elif times > 1:
                self._repeat(traced.blocks[number], range(times))
            else:
                self._add(traced.blocks[number], kept=times == 1)
        if ends.exit is not None:
            self._leave(traced.blocks[segment.stop - 1].output, ends.exit)

    def _add(self, block: Block, *, kept: bool = True) -> None:
        if kept:
            self.kept.append(len(self.blocks))
        self.blocks.append(block)

    def _replace(self, old: fx.Node, new: fx.Node) -> None:
        """Lets later readers of `old` read `new`."""
        self._add(Block((), new, old, droppable=True, change=0.0, name=old.name), kept=False)

    def _enter(self, source: fx.Node) -> None:
        read = self._graph.placeholder("x")
        read.meta = {
            "shape": shape_of(source),
            "times": times_of(source),
            "role": Role.INPUT,
            "stands_for": source,
        }
        nodes = self._convolution(FIRST, read, (0, channels_of(source)))
        self._add(Block(nodes, read, nodes[-1], droppable=False, change=1.0, name=FIRST))
        self._replace(source, nodes[-1])

    def _leave(self, output: fx.Node, channels: tuple[int, int]) -> None:
        nodes = self._convolution(EXIT, output, channels)
        self._add(Block(nodes, output, nodes[-1], droppable=False, change=1.0, name=EXIT))

    def _project(self, block: Block) -> None:
        """Adds a copy of `block` whose shortcuts read a projection of its input."""
        shortcuts = [node for node in block.nodes if block.source in node.all_input_nodes and _is_shortcut(node)]
        if not shortcuts:
            raise DesignError(f"{block.name} has no shortcut that could be projected; give its branch another entry")
        projection = self._convolution(PROJECTION, block.source, (0, channels_of(block.source)))
        copies: dict[fx.Node, fx.Node] = {}
        for node in block.nodes:
            read = copies | ({block.source: projection[-1]} if node in shortcuts else {})
            copies[node] = self._copy(node, read, "")
        new = copies[block.output]
        nodes = (*projection, *copies.values())
        self._add(Block(nodes, block.source, new, block.droppable, block.change, block.name))
        self._replace(block.output, new)

    def _repeat(self, block: Block, rounds: range) -> None:
        """Adds one copy of `block` per round, in sequence; round 0 keeps the block's own names."""
        if rounds and not block.droppable:
            raise DesignError(f"{block.name} does not write the shape that it reads, so it cannot run again")
        if rounds and any(node.op == "get_attr" for node in block.nodes):
            raise DesignError(
                f"{block.name} reads parameters by themselves, so it cannot run again; choose another block"
            )
        source = block.source if rounds.start == 0 else self.blocks[-1].source
        for number in rounds:
            prefix = f"again{number}." if number else ""
            copies = {block.source: source}
            for node in block.nodes:
                copies[node] = self._copy(node, copies, prefix)
            nodes = tuple(copies[node] for node in block.nodes)
            self._add(Block(nodes, source, copies[block.output], droppable=True, change=block.change, name=block.name))
            source = copies[block.output]
        if rounds:
            self._replace(block.output, source)

    def _copy(self, node: fx.Node, read: Mapping[fx.Node, fx.Node], prefix: str) -> fx.Node:
        copy = self._graph.node_copy(node, lambda operand: read.get(operand, operand))
        if node.op == "call_module":
            copy.meta = {**node.meta, "module": module_of(node)}
            copy.target = f"{prefix}{node.target}"
        return copy

    def _convolution(self, name: str, source: fx.Node, channels: tuple[int, int]) -> tuple[fx.Node, ...]:
        """A 1x1 convolution that selects channels of `source`, and its batch norm."""
        first, stop = channels
        shape, times = shape_of(source), times_of(source)
        assert shape is not None
        picking = torch.eye(shape[1], dtype=self._dtype)[first:stop]
        conv = nn.Conv2d(shape[1], stop - first, 1, bias=False, device="meta")
        conv.weight = nn.Parameter(picking[:, :, None, None])
        nodes = []
        for part, module, role in (
            ("conv", conv, Role.CONV),
            ("norm", nn.BatchNorm2d(stop - first, dtype=self._dtype), Role.NORM),
        ):
            source = self._graph.create_node("call_module", f"{name}.{part}", (source,))
            source.meta = {
                "shape": (shape[0], stop - first, *shape[2:]),
                "times": times,
                "role": role,
                "module": module.eval(),
            }
            nodes.append(source)
        return tuple(nodes)


def _is_shortcut(node: fx.Node) -> bool:
    """Whether a node is a sum, or the identity on an addend."""
    if role_of(node) is Role.BINARY:
        return True
    return node.op == "call_module" and isinstance(module_of(node), nn.Identity)
