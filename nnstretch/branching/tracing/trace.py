"""Traces a network into a chain of blocks.

Every path from the input to the deepest map crosses the cut points (`cut_points`). The nodes between them are
merged into blocks; branches may meet between any two blocks (meeting points of NN-Stretch). Blocks of one
output resolution form a stage.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.tracing.blocks import Part, outside_reads
from nnstretch.branching.tracing.capture import capture
from nnstretch.branching.tracing.cut_points import chain_of
from nnstretch.branching.tracing.operators import (
    WEIGHT_LAYERS,
    Role,
    module_of,
    note_roles,
    parameters_of,
    role_of,
    shape_of,
)
from nnstretch.errors import DesignError


@dataclass(frozen=True, eq=False)
class Block:
    """One element of the chain. It reads one tensor and writes one, and may have skip inputs.

    Attributes:
        nodes: in topological order; the last one computes `output`.
        source: the tensor that it reads; not one of `nodes`.
        output: the tensor that it writes; for the head, the graph's output node.
        droppable: input and output have the same shape and it has weight layers, so the network works without
            it.
        change: 1 - cosine similarity of input and output on the example input. Depth scaling drops the
            droppable blocks with the smallest change first.
        name: path of the module that holds it, for people.
    """

    nodes: tuple[fx.Node, ...]
    source: fx.Node
    output: fx.Node
    droppable: bool
    change: float
    name: str

    @cached_property
    def has_weights(self) -> bool:
        """Whether it has a convolution or dense layer."""
        return any(role_of(node) in WEIGHT_LAYERS for node in self.nodes)

    @cached_property
    def skips(self) -> list[fx.Node]:
        """Its skip inputs: outputs of earlier blocks, or the network's input."""
        return outside_reads([*self.nodes, *([self.output] if self.output.op == "output" else [])], self.source)


@dataclass(frozen=True, order=True)
class Segment:
    """A range of the chain: blocks `first` to `stop` (exclusive)."""

    first: int
    stop: int

    @property
    def blocks(self) -> range:
        """Numbers of its blocks."""
        return range(self.first, self.stop)


@dataclass(frozen=True, eq=False)
class TracedNetwork:
    """A network as a chain of blocks and a head. Branches may meet at the tensor between any two blocks.

    Attributes:
        graph: private copy of the network in evaluation mode. Its nodes carry `meta["shape"]`.
        blocks: from the input to the head.
        stages: maximal segments whose blocks write one resolution.
        head: the nodes after the last block, as one block. It is neither scaled nor branched.
        training: whether the caller's module was in training mode.
        example_input: the `N,C,H,W` batch that it was traced with.
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
        """All blocks and the head."""
        return (*self.blocks, self.head)

    def blocks_of(self, segment: Segment) -> tuple[Block, ...]:
        """The blocks of a segment."""
        return self.blocks[segment.first : segment.stop]

    @property
    def skip_boundaries(self) -> frozenset[int]:
        """Numbers of the blocks whose input is also a skip connection."""
        skips = {skip for block in self.chain for skip in block.skips}
        return frozenset(number for number, block in enumerate(self.blocks, 1) if block.output in skips)

    def is_self_contained(self, segment: Segment) -> bool:
        """Whether no skip connection leaves the segment from its middle; such a tensor has to be a meeting point."""
        inner = {block.output for block in self.blocks[segment.first : segment.stop - 1]}
        return not any(inner.intersection(block.skips) for block in self.chain[segment.stop :])

    def name_of(self, segment: Segment) -> str:
        """Names of a segment's first and last block, quoted, for people."""
        first, last = self.blocks[segment.first].name, self.blocks[segment.stop - 1].name
        return repr(first) if first == last else f"{first!r} to {last!r}"


def trace(module: nn.Module, example_input: Tensor) -> TracedNetwork:
    """Traces `module` into a chain of blocks; `module` itself is not changed.

    Args:
        module: reads one `N,C,H,W` tensor; returns tensors, possibly in tuples, lists and dicts.
        example_input: a batch that it accepts. Its values decide which blocks change their input least.

    Returns:
        The chain of blocks.

    Raises:
        ModelError: the module does not run on the example input.
        DesignError: it cannot be traced, its blocks share weights, or it has nothing to branch.
    """
    graph = capture(module, example_input)
    nodes = list(graph.graph.nodes)
    for node in nodes:
        value = node.meta["value"]
        node.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        if isinstance(value, Tensor) and value.dim():
            node.meta["times"] = max(1, len(value) // len(example_input))
    _note_shared(nodes)
    note_roles(nodes)
    source = _source(nodes)
    _refuse_norms_without_statistics(nodes)
    parts, rest = chain_of(graph.graph, source)
    if not any(part.weight_layers for part in parts):
        raise DesignError(_why_no_block(module, len(parts)))
    blocks = tuple(map(_block, parts))
    head = Block(tuple(rest), blocks[-1].output, nodes[-1], droppable=False, change=1.0, name="head")
    _refuse_shared_weights([*blocks, head])
    for node in nodes:
        del node.meta["value"]
    return TracedNetwork(graph, blocks, _stages(blocks), head, module.training, example_input.detach())


def _note_shared(nodes: Sequence[fx.Node]) -> None:
    """Marks nodes whose modules or parameters are used elsewhere, too: their channels cannot be selected."""
    uses = Counter(id(tensor) for node in nodes for tensor in _tensors_of(node))
    for node in nodes:
        node.meta["shared"] = any(uses[id(tensor)] > 1 for tensor in _tensors_of(node))


def _tensors_of(node: fx.Node) -> list[Tensor]:
    if node.op != "call_module":
        return parameters_of(node)  # type: ignore[return-value]
    module = module_of(node)
    return [*module.parameters(), *module.buffers()]


def _source(nodes: Sequence[fx.Node]) -> fx.Node:
    """The input."""
    inputs = [node for node in nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise DesignError(f"the network has {len(inputs)} inputs; only a network that reads one tensor can be branched")
    shape = shape_of(inputs[0])
    if shape is None or len(shape) != 4:
        raise DesignError(f"the network reads a tensor of shape {shape}; give one that reads images N,C,H,W")
    return inputs[0]


def _refuse_norms_without_statistics(nodes: Sequence[fx.Node]) -> None:
    """Refuses batch norms whose result depends on the batch; a branch would inherit no statistics."""
    for node in nodes:
        module = module_of(node) if node.op == "call_module" else None
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.running_mean is None:
            raise DesignError(
                f"batch norm {node.target} has no running statistics, so outputs depend on the batch; "
                "train it with track_running_stats=True"
            )


def _refuse_shared_weights(blocks: Sequence[Block]) -> None:
    """Refuses weights shared between blocks, whose slices would diverge; sharing within a block is fine."""
    seen: dict[int, tuple[str, Block]] = {}
    for block in blocks:
        for node in block.nodes:
            for parameter in parameters_of(node):
                earlier, other = seen.setdefault(id(parameter), (str(node.target), block))
                if other is not block:
                    name = "itself" if earlier == str(node.target) else earlier
                    raise DesignError(
                        f"module {node.target} shares weights with {name}, so it cannot be scaled; "
                        "give every use a module of its own"
                    )


def _block(part: Part) -> Block:
    droppable = part.same_shape and bool(part.weight_layers) and not part.skips
    change = 1.0
    if droppable:
        before, after = (node.meta["value"].double().flatten() for node in (part.source, part.output))
        change = 1.0 - float(torch.nn.functional.cosine_similarity(before, after, dim=0))
    return Block(tuple(part.nodes), part.source, part.output, droppable, change, common_path(part.nodes))


def common_path(nodes: Sequence[fx.Node]) -> str:
    """The longest module path that all modules among `nodes` share."""
    paths = [str(node.target).split(".") for node in nodes if node.op == "call_module"]
    common = itertools.takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in common) or nodes[-1].name


def _stages(blocks: Sequence[Block]) -> tuple[Segment, ...]:
    """Maximal segments of one output resolution; a pool at the start of one closes the stage before it instead.

    Branches then meet at the pooled tensor, which is smaller.
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
    """Whether a block only downsamples, channel by channel."""
    before, after = shape_of(block.source), shape_of(block.output)
    channelwise = all(role_of(node) in (Role.CHANNELWISE, Role.NORM, Role.SHAPE) for node in block.nodes)
    return channelwise and before is not None and after is not None and before != after and before[1] == after[1]


def _why_no_block(module: nn.Module, blocks: int) -> str:
    return (
        f"{type(module).__name__} has no cut point between feature maps after a convolution ({blocks} blocks without one), so "
        "there is nothing to branch; give a network with a chain of convolution blocks"
    )
