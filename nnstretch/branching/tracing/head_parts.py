"""The parts of a head: its towers, which do not depend on each other, and the tail, which reads what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from nnstretch.branching.tracing.blocks import outside_reads
from nnstretch.branching.tracing.operators import Role, role_of, shape_of
from nnstretch.branching.tracing.towers import towers_of
from nnstretch.branching.tracing.trace import Block, common_path


@dataclass(frozen=True, eq=False)
class HeadParts:
    """A head in parts.

    Attributes:
        towers: independent of each other, in the order in which they begin; two or more. The output of each is an output
            node that returns its results, the tensors that the tail reads.
        tail: the rest of the head.
    """

    towers: tuple[Block, ...]
    tail: Block

    def branch(self, numbers: Sequence[int]) -> Block:
        """Several towers as one block, for one branch, which returns their results in the order of `numbers`."""
        chosen = [self.towers[number] for number in numbers]
        nodes = [node for tower in chosen for node in tower.nodes if role_of(node) is not Role.CONSTANT]
        return _tower(nodes, [node for tower in chosen for node in tower.output.all_input_nodes])


def head_parts(head: Block) -> HeadParts | None:
    """The towers of a head and its tail; None if it has fewer than two towers."""
    found = [(nodes, _results(nodes)) for nodes in towers_of(head.nodes)]
    # Tensors without a channel axis are not handed on.
    found = [(nodes, results) for nodes, results in found if all(len(shape_of(r) or ()) > 1 for r in results)]
    if len(found) < 2:
        return None
    towers = [_tower(nodes, results) for nodes, results in found]
    done = {node for nodes, _ in found for node in nodes}
    rest = _with_constants([n for n in head.nodes if n not in done and role_of(n) is not Role.CONSTANT])
    first = towers[0].output.all_input_nodes[0]
    tail = Block(tuple(rest), first, head.output, droppable=False, change=1.0, name=head.name)
    return HeadParts(tuple(towers), tail)


def _results(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes of a tower that others read."""
    own = set(nodes)
    return [node for node in nodes if any(user not in own for user in node.users)]


def _with_constants(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes, each after the constants that it is the first to read."""
    found: dict[fx.Node, None] = {}
    for node in nodes:
        found.update((read, None) for read in node.all_input_nodes if role_of(read) is Role.CONSTANT)
        found[node] = None
    return list(found)


def _tower(nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> Block:
    whole = _with_constants(nodes)
    output = fx.Graph().create_node("output", "output", (tuple(results),))
    source = outside_reads(nodes, nodes[0])[0]
    return Block(tuple(whole), source, output, droppable=False, change=1.0, name=common_path(nodes))
