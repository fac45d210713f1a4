"""Parts of a graph between cut points, and how they are merged into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from nnstretch.branching.tracing.operators import (
    MIXING,
    WEIGHT_LAYERS,
    Role,
    channels_of,
    is_product,
    module_of,
    parameters_of,
    role_of,
    shape_of,
    title_of,
)


@dataclass
class Part:
    """The nodes between two cut points; after merging, those of one block.

    Attributes:
        source: the tensor that they read, beside skip connections.
        nodes: in topological order; the last one writes the input of the next part.
        closed: no further part may be merged into it.
        gates: nodes that compute a factor by which the result of the others is multiplied.
    """

    source: fx.Node
    nodes: list[fx.Node]
    closed: bool = False
    gates: frozenset[fx.Node] = frozenset()

    @property
    def output(self) -> fx.Node:
        """The input of the next part."""
        return self.nodes[-1]

    @property
    def weight_layers(self) -> list[fx.Node]:
        """Its convolutions and dense layers, except those of gates."""
        return [node for node in self.nodes if role_of(node) in WEIGHT_LAYERS and node not in self.gates]

    @property
    def resolution(self) -> tuple[int, ...] | None:
        """Height and width of its output; None if that is no feature map."""
        return resolution_of(self.output)

    @property
    def same_shape(self) -> bool:
        """Whether input and output have the same shape."""
        return shape_of(self.source) == shape_of(self.output)

    @property
    def skips(self) -> list[fx.Node]:
        """Its skip inputs, in the order in which they are read."""
        return outside_reads(self.nodes, self.source)

    @property
    def pointwise(self) -> bool:
        """Whether its only weight layer is a 1x1 convolution."""
        if len(self.weight_layers) != 1 or role_of(self.weight_layers[0]) is not Role.CONV:
            return False
        return tuple(module_of(self.weight_layers[0]).kernel_size) == (1, 1)  # type: ignore[arg-type]

    def join(self, other: Part, *, gate: bool = False) -> Part:
        """Both parts as one; a `gate` only scales the result of this one."""
        gates = frozenset(other.nodes) if gate else other.gates
        return Part(self.source, [*self.nodes, *other.nodes], gates=self.gates | gates)

    def leads_to(self, other: Part) -> bool:
        """Whether `other` is the only user of its output and has no skip inputs."""
        own = set(other.nodes)
        return all(user in own for user in self.output.users) and not other.skips


def outside_reads(nodes: Sequence[fx.Node], source: fx.Node) -> list[fx.Node]:
    """Computed tensors that `nodes` read and that are neither `source` nor computed by them."""
    own = {source, *nodes}
    reads = (read for node in nodes for read in node.all_input_nodes)
    return list(dict.fromkeys(read for read in reads if read not in own and role_of(read) is not Role.CONSTANT))


def resolution_of(node: fx.Node) -> tuple[int, ...] | None:
    """Height and width of a computed feature map; None for anything else."""
    shape = shape_of(node)
    return None if shape is None or len(shape) != 4 or role_of(node) is Role.CONSTANT else shape[2:]


def merge_parts(parts: Sequence[Part]) -> list[Part]:
    """Merges the parts between successive cut points into blocks."""
    return _join_squeezes(_join_grouped(_merge_auxiliary(parts)))


def _is_auxiliary(part: Part) -> bool:
    """Whether a part has no weight layer of its own: an activation, norm, pool, or gate over the layer before."""
    last = part.nodes[-1]
    if any(role_of(node) is Role.OPAQUE and parameters_of(node) for node in part.nodes):
        return False
    return not part.weight_layers or (role_of(last) is Role.BINARY and is_product(last) and part.source in last.args)


def _pads(part: Part) -> bool:
    """Whether a part only pads."""
    return all(title_of(node) in ("pad", "constant_pad_nd", "ZeroPad2d") for node in part.nodes)


def _merge_auxiliary(atoms: Iterable[Part]) -> list[Part]:
    """Merges shape-preserving auxiliary parts into the block before them, and padding into the block after it."""
    parts: list[Part] = []
    for atom in atoms:
        if parts and _pads(parts[-1]) and parts[-1].leads_to(atom):
            parts[-1] = parts[-1].join(atom)
        elif parts and _is_auxiliary(atom) and atom.same_shape and parts[-1].leads_to(atom):
            parts[-1] = parts[-1].join(atom, gate=True)
        else:
            parts.append(Part(atom.source, atom.nodes))
    return parts


def _join_grouped(parts: Sequence[Part]) -> list[Part]:
    """Merges a convolution without channel mixing with the next one, and with a 1x1 convolution before it.

    An inverted bottleneck without shortcut and a depthwise-separable convolution thus become one block each.
    """
    joined: list[Part] = []
    waiting = False
    for part in parts:
        apart = bool(part.weight_layers) and not any(role_of(node) in MIXING for node in part.weight_layers)
        near = bool(joined) and joined[-1].leads_to(part)
        if waiting and near and part.weight_layers:
            joined[-1] = joined[-1].join(part)
            waiting = apart
            joined[-1].closed = not waiting
        elif apart and near and joined[-1].pointwise and not joined[-1].closed:
            joined[-1] = joined[-1].join(part)
            waiting = True
        else:
            joined.append(part)
            waiting = apart
    return joined


def _join_squeezes(parts: Sequence[Part]) -> list[Part]:
    """Merges a narrowing 1x1 convolution with what follows until the width is restored (SqueezeNet's fire module)."""
    joined: list[Part] = []
    index = 0
    while index < len(parts):
        part = parts[index]
        end = _squeeze_end(parts, index)
        for other in parts[index + 1 : end + 1]:
            part = part.join(other)
        joined.append(part)
        index = end + 1
    return joined


def _squeeze_end(parts: Sequence[Part], index: int) -> int:
    part = parts[index]
    width = channels_of(part.source)
    if part.closed or not part.pointwise or channels_of(part.output) >= width:
        return index
    for end in range(index + 1, len(parts)):
        if parts[end].resolution != part.resolution or not parts[end - 1].leads_to(parts[end]):
            break
        if channels_of(parts[end].output) >= width:
            return end
    return index
