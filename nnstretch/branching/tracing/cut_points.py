"""Cut points of a graph, which every path to the deepest feature map crosses, and the parts between them.

Cut points are dominators in the data-flow graph. The **body** of a network leads to the tensor after which the least
work remains; the head is the rest. A tensor of the body that is also read elsewhere is a **skip connection**: the
feature maps that a detector's heads read, or the skips of a U-Net. Where a path downsamples and upsamples again, long
skips hide the cut points in between; there the downward and the upward path become chains of their own with a skip
connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import fx

from nnstretch.branching.tracing.blocks import Part, merge_parts, resolution_of
from nnstretch.branching.tracing.operators import (
    MIXING,
    Role,
    macs_of,
    role_of,
    shape_of,
)

_ENLARGED = 1.5  # padding enlarges a map by less


def chain_of(graph: fx.Graph, source: fx.Node) -> tuple[list[Part], list[fx.Node]]:
    """The parts of the body in order, and the nodes of the head.

    Args:
        graph: shapes and roles of its nodes are known.
        source: the network's input.

    Returns:
        Parts and head nodes; no parts if the network has no body.
    """
    dependencies = _Dependencies(graph, source)
    end = dependencies.end_of_body()
    atoms = [] if end is None else _atoms(dependencies, source, dependencies.before(end), end)
    parts = merge_parts(atoms)
    done = {node for part in parts for node in part.nodes}
    rest = [node for node in graph.nodes if node.op not in ("placeholder", "output") and node not in done]
    return parts, rest


@dataclass(eq=False)
class _Dependencies:
    """Reachability between nodes, as bit sets indexed by position in the graph.

    Attributes:
        graph: the traced graph.
        source: the network's input.
    """

    graph: fx.Graph
    source: fx.Node
    order: list[fx.Node] = field(init=False)
    place: dict[fx.Node, int] = field(init=False)
    _ancestors: dict[fx.Node, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.order = [
            node for node in self.graph.nodes if node.op not in ("placeholder", "output") or node is self.source
        ]
        self.place = {node: i for i, node in enumerate(self.order)}
        for node in self.order:
            bits = 1 << self.place[node]
            for operand in node.all_input_nodes:
                bits |= self._ancestors.get(operand, 0)
            self._ancestors[node] = bits

    def before(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that `node` depends on and itself, without the network's input, in graph order."""
        bits = self._ancestors[node]
        return [other for other in self.order[1:] if bits >> self.place[other] & 1]

    def depends(self, node: fx.Node, on: fx.Node) -> bool:
        """Whether `node` is `on` or depends on it."""
        return bool(self._ancestors[node] >> self.place[on] & 1)

    def end_of_body(self) -> fx.Node | None:
        """The end of the body: the map with the most work before it, among maps that a channel-mixing layer follows.

        The output of the last mixing layer is the network's output, whose channels must keep their number and
        order.
        """
        dominators = _dominators(self.order, self.source)
        flat, mixing = self._flattened(dominators), self._before_mixing()
        macs = {node: macs_of(node) for node in self.order}
        best, chosen = (0, 0, 0), None
        for node in self.order[1:]:
            if node not in dominators or flat[node] or not mixing >> self.place[node] & 1:
                continue
            members = self.before(node)
            work = sum(macs[member] for member in members)
            if work < best[0]:
                continue
            skips = self._skip_sources(members, node)
            path = {self.source, *_path(dominators, node)}
            rank = (work, -len(skips), self.place[node])
            if rank > best and all(skip in path for skip in skips):
                best, chosen = rank, node
        return chosen

    def _skip_sources(self, members: Sequence[fx.Node], end: fx.Node) -> list[fx.Node]:
        """Those of `members` (except `end`) and the input that nodes outside read."""
        own = set(members)
        read = [m for m in (self.source, *members) if m is not end and any(user not in own for user in m.users)]
        return [node for node in read if role_of(node) is not Role.CONSTANT]

    def _flattened(self, dominators: dict[fx.Node, fx.Node]) -> dict[fx.Node, bool]:
        """For every dominated node whether it, or a cut point before it, is no feature map.

        Vectors inside a block, as in squeeze-and-excitation, are no cut points and do not count.
        """
        flat: dict[fx.Node, bool] = {self.source: False}
        for node in self.order[1:]:
            if node in dominators:
                flat[node] = resolution_of(node) is None or flat[dominators[node]]
        return flat

    def _before_mixing(self) -> int:
        """Bit set of the nodes that a channel-mixing layer depends on."""
        bits = 0
        for node in self.order:
            if role_of(node) in MIXING:
                bits |= self._ancestors[node] & ~(1 << self.place[node])
        return bits


def _dominators(nodes: Sequence[fx.Node], source: fx.Node) -> dict[fx.Node, fx.Node]:
    """Immediate dominators of `nodes` in the subgraph that `source` reaches; other nodes are left out."""
    found: dict[fx.Node, fx.Node] = {}
    depth = {source: 0}
    for node in nodes:
        reads = [read for read in node.all_input_nodes if read in depth]
        if node is source or not reads:
            continue
        common = reads[0]
        for read in reads[1:]:
            while common is not read:
                if depth[common] < depth[read]:
                    read = found[read]
                else:
                    common = found[common]
        found[node], depth[node] = common, depth[common] + 1
    return found


def _path(dominators: dict[fx.Node, fx.Node], end: fx.Node) -> list[fx.Node]:
    """The dominators of `end` after the source, in order, and `end` itself."""
    path = [end]
    while dominators[path[-1]] in dominators:
        path.append(dominators[path[-1]])
    return path[::-1]


def _atoms(dependencies: _Dependencies, source: fx.Node, members: Sequence[fx.Node], end: fx.Node) -> list[Part]:
    """Partitions `members` at the cut points from `source` to `end`."""
    atoms: list[Part] = []
    done: set[fx.Node] = set()
    for cut in _cuts(members, source, end):
        nodes = [node for node in members if node not in done and dependencies.depends(cut, node)]
        done.update(nodes)
        start = atoms[-1].output if atoms else source
        atoms += _down_and_up(dependencies, Part(start, nodes))
    return atoms


def _cuts(members: Sequence[fx.Node], source: fx.Node, end: fx.Node) -> list[fx.Node]:
    """Dominators that may be cut points: tensors, not sizes."""
    path = _path(_dominators(members, source), end)
    return [node for node in path if node is end or (shape_of(node) is not None and role_of(node) is not Role.SHAPE)]


def _down_and_up(dependencies: _Dependencies, part: Part) -> list[Part]:
    """Splits a part that downsamples and upsamples again at its smallest map; returns other parts unchanged."""
    upward = next((node for node in part.nodes if _enlarges(node)), None)
    bottom = None if upward is None else _main_operand(upward)
    if bottom is None or bottom not in part.nodes or bottom is part.output:
        return [part]
    down = [node for node in part.nodes if dependencies.depends(bottom, node)]
    up = [node for node in part.nodes if node not in set(down)]
    # The upward path may start at a skip connection instead.
    if bottom not in _dominators(down, part.source) or part.output not in _dominators(up, bottom):
        return [part]
    parts = [*_atoms(dependencies, part.source, down, bottom), *_atoms(dependencies, bottom, up, part.output)]
    return parts if all(map(_is_closed, parts)) else [part]


def _is_closed(part: Part) -> bool:
    """Whether no inner tensor of a part is read from outside."""
    own = set(part.nodes)
    return all(user in own for node in part.nodes[:-1] for user in node.users)


def _enlarges(node: fx.Node) -> bool:
    """Whether a node upsamples a map of more than one pixel."""
    written = resolution_of(node)
    read = [r for r in map(resolution_of, node.all_input_nodes) if r is not None]
    if written is None or not read:
        return False
    return all(min(r) > 1 and min(w / s for w, s in zip(written, r, strict=True)) >= _ENLARGED for r in read)


def _main_operand(node: fx.Node) -> fx.Node | None:
    return next((operand for operand in node.all_input_nodes if resolution_of(operand) is not None), None)
