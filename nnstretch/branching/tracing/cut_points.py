"""Cut points of a graph, and the parts between them.

The **body** of a network leads to the tensor after which the least work remains; the head is the rest. Every path to the
end of the body crosses a cut point, apart from **skip connections**: cut points that are also read further on. These are
the feature maps that a detector's heads read, or those that the upward path of a U-Net or of a detector's neck joins.
So is the shortcut around the body of an upscaler. A tensor that joins the main path earlier is the shortcut of one residual
block, inside which there is no cut point.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from nnstretch.branching.tracing.blocks import Part, merge_parts, resolution_of
from nnstretch.branching.tracing.operators import (
    MIXING,
    Role,
    is_product,
    macs_of,
    role_of,
    shape_of,
    tensor_operands,
    title_of,
)
from nnstretch.branching.tracing.towers import towers_of

_UPSAMPLING = frozenset({"conv_transpose2d", "pixel_shuffle", "depth_to_space"})
_RESIDUAL_BLOCKS = 2  # a shortcut around as many joins blocks, not layers
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
    atoms = [] if end is None else _atoms(dependencies, dependencies.cuts(end), source)
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
    _late_joins: dict[tuple[fx.Node, fx.Node, fx.Node], bool] = field(default_factory=dict, init=False)

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
        order. Where that map lies in one of several towers, none of which is part of the body, the body ends where towers
        begin: at the last map that several of them read.
        """
        dominators = _dominators(self.order, self.source)
        flat, mixing = self._flattened(dominators), self._before_mixing()
        ends = [
            node for node in self.order[1:] if node in dominators and not flat[node] and mixing >> self.place[node] & 1
        ]
        macs = {node: macs_of(node) for node in self.order}
        work = {node: sum(macs[member] for member in self.before(node)) for node in ends}
        best = self._best_end(ends, work)
        fork = None if best is None else self._fork_before(best)
        if fork is None:
            return best
        forks = [node for node in ends if work[node] > work[fork] and len(self._towers_at(node)) > 1]
        return self._best_end(forks, work) or fork

    def _best_end(self, ends: Sequence[fx.Node], work: Mapping[fx.Node, int]) -> fx.Node | None:
        """The possible end with the most work before it; of several, the one with the fewest skip connections."""
        best, chosen = (0, 0, 0), None
        for node in sorted(ends, key=work.__getitem__, reverse=True):
            if not work[node] or work[node] < best[0]:
                break
            skips, cuts = self._skip_sources(self.before(node), node), {self.source, *self.cuts(node)}
            rank = (work[node], -len(skips), self.place[node])
            if rank > best and node in cuts and all(skip in cuts for skip in skips):
                best, chosen = rank, node
        return chosen

    def _fork_before(self, end: fx.Node) -> fx.Node | None:
        """The last cut point that several towers read, one of which has `end`; None if there is none."""
        for cut in reversed(self.cuts(end)[:-1]):
            if len(cut.users) < 2:
                continue
            towers = self._towers_at(cut)
            if not any(end in tower for tower in towers):
                return None
            if len(towers) > 1:
                return cut
        return None

    def _towers_at(self, node: fx.Node) -> list[set[fx.Node]]:
        """The towers of what `node` does not depend on that read it."""
        if len(node.users) < 2:
            return []
        done = {self.source, *self.before(node)}
        towers = map(set, towers_of([other for other in self.order if other not in done]))
        return [tower for tower in towers if tower.intersection(node.users)]

    def cuts(self, end: fx.Node) -> list[fx.Node]:
        """Cut points before `end` and `end` itself, if it is one, in order."""
        members = self.before(end)
        path = set(_path(_dominators(members, self.source), end))
        found, last, recent = dict[fx.Node, None](), self.source, list[fx.Node]()
        for node in members:
            recent.append(node)
            possible = node is end or (shape_of(node) is not None and role_of(node) is not Role.SHAPE)
            if not possible or not self.depends(node, last):
                continue
            if node in path or (resolution_of(node) is not None and self._is_cut(node, found, recent, members)):
                found[node] = None
                last = node
                recent = [other for other in recent if not self.depends(node, other)]
        return list(found)

    def _is_cut(
        self, node: fx.Node, cuts: Collection[fx.Node], recent: Sequence[fx.Node], members: Sequence[fx.Node]
    ) -> bool:
        """Whether every path around `node` is a skip connection.

        Args:
            node: depends on the last one of `cuts`.
            cuts: cut points before it.
            recent: nodes before it in the graph that no cut point depends on.
            members: the nodes that the end of the body depends on.
        """
        own = self._ancestors[node]

        def outside(other: fx.Node) -> list[fx.Node]:
            return [user for user in other.users if not own >> self.place.get(user, len(self.order)) & 1]

        # Nodes before the last cut point are not read after it.
        if any(outside(other) for other in recent if other is not node and own >> self.place[other] & 1):
            return False
        return all(
            self._is_skip(other, reader, node, members) for other in (self.source, *cuts) for reader in outside(other)
        )

    def _is_skip(self, source: fx.Node, reader: fx.Node, node: fx.Node, members: Sequence[fx.Node]) -> bool:
        """Whether a `reader` of `source` outside the path over `node` makes it a skip connection.

        It does if it joins none of `members` after `node`, or joins only after a map was enlarged or after several
        residual blocks.
        """
        if reader not in self.place:
            return True
        for join in members[members.index(node) :]:
            if self.depends(join, reader) and self.depends(join, node):
                key = source, reader, join  # asked for many nodes, and for many possible ends of the body
                if key not in self._late_joins:
                    self._late_joins[key] = self._is_late_join(*key)
                return self._late_joins[key]
        return True

    def _is_late_join(self, source: fx.Node, reader: fx.Node, join: fx.Node) -> bool:
        """Whether a map is enlarged, or several residual blocks lie, between `source` and `join` beside `reader`."""
        between = [
            other
            for other in self.before(join)
            if self.depends(other, source) and not self.depends(other, reader) and other not in (source, join)
        ]
        if any(map(_enlarges, between)):
            return True
        ends = [operand for operand in join.all_input_nodes if operand in between]
        passed = _path(_dominators(between, source), ends[0]) if len(ends) == 1 else []
        return sum(map(_is_sum, passed)) >= _RESIDUAL_BLOCKS

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


def _atoms(dependencies: _Dependencies, cuts: Sequence[fx.Node], source: fx.Node) -> list[Part]:
    """The nodes between successive cut points."""
    atoms: list[Part] = []
    done: set[fx.Node] = set()
    for cut in cuts:
        nodes = [node for node in dependencies.before(cut) if node not in done]
        done.update(nodes)
        atoms.append(Part(atoms[-1].output if atoms else source, nodes))
    return atoms


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two computed tensors, as a residual block does last."""
    return role_of(node) is Role.BINARY and not is_product(node) and len(tensor_operands(node)) == 2


def _enlarges(node: fx.Node) -> bool:
    """Whether a node upsamples a map of more than one pixel; views and products of matrices do not."""
    if role_of(node) is Role.OPAQUE and node.op != "call_module" and title_of(node) not in _UPSAMPLING:
        return False
    written = resolution_of(node)
    read = [r for r in map(resolution_of, node.all_input_nodes) if r is not None]
    if written is None or not read:
        return False
    return all(min(r) > 1 and min(w / s for w, s in zip(written, r, strict=True)) >= _ENLARGED for r in read)
