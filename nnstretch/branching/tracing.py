"""A network as a chain of blocks.

A cut point is a tensor that every path from the input to the output crosses. What lies between successive cut points
is put together into blocks; between any two of them branches may meet (NN-Stretch: where branches converge). Blocks whose
outputs have one resolution are a stage.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.operators import (
    HEAVY,
    MIXING,
    Role,
    channels_of,
    is_product,
    module_of,
    note_roles,
    role_of,
    shape_of,
)
from nnstretch.errors import DesignError


@dataclass(frozen=True, eq=False)
class Block:
    """A part of the chain with one tensor in and one tensor out.

    Attributes:
        nodes: in topological order; the last one computes `output`.
        source: the tensor that it reads; not one of `nodes`.
        output: the tensor that it writes.
        droppable: it writes the shape that it reads and computes something: the network works without it.
        change: 1 - cosine similarity between what it reads and writes on the example input. Of droppable blocks those
            with the least change are dropped first.
        name: path of the module that holds it, for people.
    """

    nodes: tuple[fx.Node, ...]
    source: fx.Node
    output: fx.Node
    droppable: bool
    change: float
    name: str

    @property
    def heavy(self) -> bool:
        """Whether it has a convolution or dense layer."""
        return any(role_of(node) in HEAVY for node in self.nodes)


@dataclass(frozen=True, order=True)
class Segment:
    """A stretch of the chain: the blocks from number `first` up to, but not including, `stop`."""

    first: int
    stop: int

    @property
    def blocks(self) -> range:
        """Numbers of its blocks."""
        return range(self.first, self.stop)


@dataclass(frozen=True, eq=False)
class TracedNetwork:
    """A network as a chain of blocks and a head. Between any two blocks lies a tensor where branches may meet.

    Attributes:
        graph: private copy of the network in evaluation mode. Its nodes carry `meta["shape"]`.
        blocks: from the input to the head.
        stages: the chain in stretches whose blocks write one resolution.
        head: nodes after the last block, as one block. It is neither scaled nor branched.
        training: whether the caller's module was in training mode.
        example_input: what it was traced with.
    """

    graph: fx.GraphModule
    blocks: tuple[Block, ...]
    stages: tuple[Segment, ...]
    head: Block
    training: bool
    example_input: Tensor

    @property
    def source(self) -> fx.Node:
        """The network's input."""
        return self.blocks[0].source

    @property
    def chain(self) -> tuple[Block, ...]:
        """All blocks from the input to the output."""
        return (*self.blocks, self.head)

    def blocks_of(self, segment: Segment) -> tuple[Block, ...]:
        """The blocks of a segment."""
        return self.blocks[segment.first : segment.stop]

    def name_of(self, segment: Segment) -> str:
        """A segment's first and last block, for people."""
        first, last = self.blocks[segment.first].name, self.blocks[segment.stop - 1].name
        return first if first == last else f"{first} to {last}"


def trace(module: nn.Module, example_input: Tensor) -> TracedNetwork:
    """The chain of blocks that `module` is; `module` itself is left alone.

    Args:
        module: reads one `N,C,H,W` tensor and writes one tensor.
        example_input: a batch that it accepts. What it holds decides which blocks change their input least.

    Raises:
        DesignError: torch.fx cannot trace it, it shares weights between layers, or it has no stage to branch.
    """
    training = module.training
    graph = _symbolic(copy.deepcopy(module).eval())
    values = _observe(graph, example_input)
    _refuse_shared_weights(graph)
    nodes = [node for node in graph.graph.nodes if node.op != "output"]
    source, result = _ends(graph)
    atoms = _atoms(nodes, source, result)
    body_length = _body_length(atoms)
    parts = _without_light(atoms[:body_length])
    parts = _join_squeezes(_join_grouped(parts))
    blocks = tuple(_block(part, values) for part in parts)
    if not any(block.heavy for block in blocks):
        raise DesignError(_why_no_block(module, len(atoms)))
    rest = [node for atom in atoms[body_length:] for node in atom.nodes]
    head = Block(tuple(rest), blocks[-1].output, result, droppable=False, change=1.0, name="head")
    return TracedNetwork(graph, blocks, _stages(blocks), head, training, example_input.detach())


class _Tracer(fx.Tracer):
    """Modules of torch.nn are leaves, as torch.fx has it, and so are such as have neither parameters nor children."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name):
            return True
        return type(m).__name__ in ("StochasticDepth", "DropPath")


def _symbolic(module: nn.Module) -> fx.GraphModule:
    try:
        return fx.GraphModule(module, _Tracer().trace(module))
    except (fx.proxy.TraceError, TypeError, RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
        raise DesignError(
            f"{type(module).__name__} cannot be traced by torch.fx ({_first_line(error)}); "
            "make its forward free of control flow that depends on tensors"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


class _Observer(fx.Interpreter):
    """Runs the network, notes the shape of every tensor and keeps the tensors that are asked for."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            n.meta["shape"] = tuple(value.shape)
        return value


def _observe(graph: fx.GraphModule, example_input: Tensor) -> dict[fx.Node, Tensor]:
    observer = _Observer(graph)
    try:
        with torch.no_grad():
            observer.run(example_input.clone())
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DesignError(
            f"the network does not run on the example input of shape {tuple(example_input.shape)}: "
            f"{_first_line(error)}; give one that it accepts"
        ) from error
    note_roles(graph.graph.nodes)
    return {node: value for node, value in observer.env.items() if isinstance(value, Tensor)}


def _refuse_shared_weights(graph: fx.GraphModule) -> None:
    """Slices of one weight for two places would have to agree, and nothing makes them."""
    seen: dict[int, str] = {}
    for node in graph.graph.nodes:
        if node.op != "call_module":
            continue
        for parameter in module_of(node).parameters():
            earlier = seen.setdefault(id(parameter), str(node.target))
            if earlier != str(node.target) or _calls(graph, node) > 1:
                other = earlier if earlier != str(node.target) else "itself"
                raise DesignError(
                    f"module {node.target} shares weights with {other}, so it cannot be scaled; "
                    "give every place in the network a module of its own"
                )


def _calls(graph: fx.GraphModule, node: fx.Node) -> int:
    return sum(other.op == "call_module" and other.target == node.target for other in graph.graph.nodes)


def _ends(graph: fx.GraphModule) -> tuple[fx.Node, fx.Node]:
    """The input and the node whose tensor is the output."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder" and node.users]
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    result = output.args[0]
    if len(inputs) != 1 or not isinstance(result, fx.Node) or shape_of(result) is None:
        count = "several outputs" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise DesignError(f"the network has {count}; only one tensor in and one tensor out can be branched")
    shape = shape_of(inputs[0])
    if shape is None or len(shape) != 4:
        raise DesignError(f"the network reads a tensor of shape {shape}; give one that reads images N,C,H,W")
    return inputs[0], result


@dataclass
class _Part:
    """Nodes between two cut points; later, the nodes of one block."""

    source: fx.Node
    nodes: list[fx.Node]
    closed: bool = False
    gates: frozenset[fx.Node] = frozenset()  # those that work out what the others' result is multiplied by

    @property
    def output(self) -> fx.Node:
        return self.nodes[-1]

    @property
    def heavy(self) -> list[fx.Node]:
        return [node for node in self.nodes if role_of(node) in HEAVY and node not in self.gates]

    @property
    def resolution(self) -> tuple[int, ...] | None:
        shape = shape_of(self.output)
        return None if shape is None or len(shape) != 4 else shape[2:]

    @property
    def same_shape(self) -> bool:
        return shape_of(self.source) == shape_of(self.output)

    @property
    def pointwise(self) -> bool:
        """Whether it is one 1x1 convolution and what goes with it."""
        if len(self.heavy) != 1 or role_of(self.heavy[0]) is not Role.CONV:
            return False
        return tuple(module_of(self.heavy[0]).kernel_size) == (1, 1)  # type: ignore[arg-type]

    def join(self, other: _Part) -> _Part:
        return _Part(self.source, [*self.nodes, *other.nodes], gates=self.gates | other.gates)

    def gated(self, gate: _Part) -> _Part:
        """Both as one, of which the second only weighs what the first computes."""
        return _Part(self.source, [*self.nodes, *gate.nodes], gates=self.gates | frozenset(gate.nodes))


def _atoms(nodes: Sequence[fx.Node], source: fx.Node, result: fx.Node) -> list[_Part]:
    """The runs of nodes between successive cut points, from the input to the output.

    Parameters that are read by themselves do not depend on the input, so no path crosses them.
    """
    useful = [node for node in nodes if node is source or (node.users and node.op != "placeholder")]
    position = {node: index for index, node in enumerate(useful)}
    atoms: list[_Part] = []
    start, run = source, list[fx.Node]()
    reach = 0  # position of the last reader of anything computed so far
    last_reader = {node: max((position.get(user, len(useful)) for user in node.users), default=-1) for node in useful}
    previous_reach = 0
    for node in useful:
        if node is source:
            reach = last_reader[node]
            continue
        run.append(node)
        previous_reach = reach
        if role_of(node) is not Role.CONSTANT:
            reach = max(reach, last_reader[node])
        if previous_reach <= position[node] and shape_of(node) is not None and role_of(node) is not Role.CONSTANT:
            atoms.append(_Part(start, run))
            start, run = node, []
            reach = last_reader[node]
        if node is result:
            break
    return atoms


def _body_length(atoms: Sequence[_Part]) -> int:
    """How many atoms lie before the head.

    The head begins where maps of features become vectors, and no later than the last layer that mixes channels: those
    that it writes are the network's output, whose number and order must stay.
    """
    mixing = [i for i, atom in enumerate(atoms) if any(role_of(node) in MIXING for node in atom.nodes)]
    flat = [i for i, atom in enumerate(atoms) if atom.resolution is None]
    return min([len(atoms), *mixing[-1:], *flat[:1]])


def _is_light(part: _Part) -> bool:
    """No layer of its own: an activation, a batch norm, a pool, or a gate over what the layer before it wrote."""
    last = part.nodes[-1]
    return not part.heavy or (role_of(last) is Role.BINARY and is_product(last) and part.source in last.args)


def _without_light(atoms: Sequence[_Part]) -> list[_Part]:
    """Light atoms that keep the shape go to the block before them."""
    parts: list[_Part] = []
    for atom in atoms:
        if parts and _is_light(atom) and atom.same_shape:
            parts[-1] = parts[-1].gated(atom)
        else:
            parts.append(_Part(atom.source, atom.nodes))
    return parts


def _join_grouped(parts: Sequence[_Part]) -> list[_Part]:
    """A convolution that mixes no channels stays with the one after it, and with a 1x1 convolution before it.

    So an inverted bottleneck without a shortcut, and a depthwise-separable convolution, are one block each.
    """
    joined: list[_Part] = []
    waiting = False
    for part in parts:
        apart = bool(part.heavy) and not any(role_of(node) in MIXING for node in part.heavy)
        if waiting and part.heavy:
            joined[-1] = joined[-1].join(part)
            waiting = apart
            joined[-1].closed = not waiting
        elif apart and joined and joined[-1].pointwise and not joined[-1].closed:
            joined[-1] = joined[-1].join(part)
            waiting = True
        else:
            joined.append(part)
            waiting = apart
    return joined


def _join_squeezes(parts: Sequence[_Part]) -> list[_Part]:
    """A 1x1 convolution that narrows stays with what follows up to where the width is back (SqueezeNet's fire)."""
    joined: list[_Part] = []
    index = 0
    while index < len(parts):
        part = parts[index]
        end = _squeeze_end(parts, index)
        for other in parts[index + 1 : end + 1]:
            part = part.join(other)
        joined.append(part)
        index = end + 1
    return joined


def _squeeze_end(parts: Sequence[_Part], index: int) -> int:
    part = parts[index]
    width = channels_of(part.source)
    if part.closed or not part.pointwise or channels_of(part.output) >= width:
        return index
    for end in range(index + 1, len(parts)):
        if parts[end].resolution != part.resolution:
            break
        if channels_of(parts[end].output) >= width:
            return end
    return index


def _block(part: _Part, values: dict[fx.Node, Tensor]) -> Block:
    droppable = part.same_shape and bool(part.heavy)
    change = 1.0
    if droppable:
        before, after = (values[node].double().flatten() for node in (part.source, part.output))
        change = 1.0 - float(torch.nn.functional.cosine_similarity(before, after, dim=0))
    return Block(tuple(part.nodes), part.source, part.output, droppable, change, _common_path(part.nodes))


def _common_path(nodes: Sequence[fx.Node]) -> str:
    """The longest module path that all modules among `nodes` share."""
    paths = [str(node.target).split(".") for node in nodes if node.op == "call_module"]
    if not paths:
        return nodes[-1].name
    common = paths[0]
    for path in paths[1:]:
        common = [name for name, _ in itertools.takewhile(_equal, zip(common, path, strict=False))]
    return ".".join(common) or nodes[-1].name


def _equal(names: tuple[str, str]) -> bool:
    return names[0] == names[1]


def _stages(blocks: Sequence[Block]) -> tuple[Segment, ...]:
    """Maximal runs of blocks at one output resolution; a pool that opens one closes the stage before it instead.

    What meets is then the pooled tensor, which is smaller.
    """
    starts = [0]
    for number, (before, block) in enumerate(itertools.pairwise(blocks), 1):
        same = shape_of(before.output)[2:] == shape_of(block.output)[2:]  # type: ignore[index]
        continues = same and not _is_pool(before)
        closes = not same and _is_pool(block)
        if not (continues or closes):
            starts.append(number)
    return tuple(Segment(first, stop) for first, stop in itertools.pairwise([*starts, len(blocks)]))


def _is_pool(block: Block) -> bool:
    """Whether it only makes the map smaller, channel by channel."""
    before, after = shape_of(block.source), shape_of(block.output)
    channelwise = all(role_of(node) in (Role.CHANNELWISE, Role.NORM, Role.SHAPE) for node in block.nodes)
    return channelwise and before is not None and after is not None and before != after and before[1] == after[1]


def _why_no_block(module: nn.Module, cuts: int) -> str:
    return (
        f"{type(module).__name__} has {cuts} cut points and no block between feature maps, so there is nothing to branch; "
        "give a network that is a chain of convolution blocks"
    )
