"""A network in the structure of pycls files: a stem, stages of blocks of one type, and a head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from nnstretch.branching.design.blueprint import Blueprint
from nnstretch.branching.pycls.files import BASIC, BOTTLENECK, INVERTED
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    is_product,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
)
from nnstretch.branching.tracing.trace import Block, Segment
from nnstretch.errors import DesignError

_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish, nn.LeakyReLU, nn.Mish)


@dataclass(frozen=True)
class BackboneStage:
    """Consecutive blocks; all but the first keep their input's shape.

    Attributes:
        segment: where they lie in the chain.
        width: channels that they write.
        stride: of the first block.
        kernel: side of the kernels in the middle of the blocks.
        group_width: channels per group there; 0 if not grouped, or depthwise.
    """

    segment: Segment
    width: int
    stride: int
    kernel: int
    group_width: int


@dataclass(frozen=True)
class Backbone:
    """A network in the structure of pycls files.

    Attributes:
        block: type of its blocks, one of `BLOCKS`.
        stages: from the stem to the head.
        stem: blocks before the stages.
        head: blocks of the chain after the stages.
        squeeze: whether blocks have squeeze-and-excitation.
        stem_kernel: side of the first convolution's kernel.
        stem_pools: whether the stem has a pool.
        head_width: channels of the head's convolution; 0 if there is none.
        activations: names of the blocks' activations.
    """

    block: str
    stages: tuple[BackboneStage, ...]
    stem: Segment
    head: Segment
    squeeze: bool
    stem_kernel: int
    stem_pools: bool
    head_width: int
    activations: frozenset[str]


def backbone_of(blueprint: Blueprint) -> Backbone:
    """The structure of a network of residual blocks or inverted bottlenecks.

    Raises:
        DesignError: the network has another structure.
    """
    blocks = blueprint.traced.blocks
    body = [number for number, block in enumerate(blocks) if _is_body(block)]
    if not body or body != list(range(body[0], body[-1] + 1)):
        raise DesignError(
            "the network has no stem, stages of residual blocks or inverted bottlenecks, and head; NN-Stretch's files describe "
            "only such networks"
        )
    starts = [number for number in body if number == body[0] or not blocks[number].droppable]
    stages = tuple(
        _stage(blueprint, Segment(first, stop)) for first, stop in zip(starts, [*starts[1:], body[-1] + 1], strict=True)
    )
    kinds = {_kind(blocks[number]) for number in body}
    if len(kinds) != 1:
        raise DesignError(f"the network has blocks of several types ({', '.join(sorted(kinds))}); a file names one")
    stem = [node for block in blocks[: body[0]] for node in block.nodes]
    head = [node for block in blocks[body[-1] + 1 :] for node in block.nodes if role_of(node) is Role.CONV]
    first = [node for node in stem if role_of(node) is Role.CONV]
    if len(first) != 1 or len(head) > 1:
        raise DesignError(
            f"the network has {len(first)} convolutions before its stages and {len(head)} after them; "
            "files have one before, and at most one after them"
        )
    return Backbone(
        kinds.pop(),
        stages,
        Segment(0, body[0]),
        Segment(body[-1] + 1, len(blocks)),
        any(squeeze_of(blocks[number]) is not None for number in body),
        side_of(first[0]),
        any(_pools(node) for node in stem),
        channels_of(head[0]) if head else 0,
        frozenset(name for number in body for node in blocks[number].nodes if (name := _activation(node))),
    )


def _pools(node: fx.Node) -> bool:
    before, after = (shape_of(node.all_input_nodes[0]) if node.all_input_nodes else None), shape_of(node)
    return role_of(node) is Role.CHANNELWISE and before is not None and before != after


def _activation(node: fx.Node) -> str:
    """Name of an activation module; empty for other nodes."""
    if node.op != "call_module" or not isinstance(module_of(node), _ACTIVATIONS):
        return ""
    return type(module_of(node)).__name__.lower()


def _is_body(block: Block) -> bool:
    sums = any(role_of(node) is Role.BINARY and not is_product(node) for node in block.nodes)
    return sums or any(role_of(node) is Role.DEPTHWISE for node in block.nodes)


def _kind(block: Block) -> str:
    roles = [role_of(node) for node in block.nodes]
    if Role.DEPTHWISE in roles:
        return INVERTED
    kernels = [side_of(node) for node in block.nodes if role_of(node) in (Role.CONV, Role.GROUPED)]
    return BASIC if kernels.count(3) == 2 else BOTTLENECK


def side_of(node: fx.Node) -> int:
    """Side of a convolution's kernel."""
    module = module_of(node)
    assert isinstance(module, nn.Conv2d)
    return int(module.kernel_size[0])


def _stage(blueprint: Blueprint, segment: Segment) -> BackboneStage:
    blocks = blueprint.traced.blocks_of(segment)
    read, written = shape_of(blocks[0].source), shape_of(blocks[0].output)
    assert read is not None
    assert written is not None
    middle = [
        node
        for node in blocks[0].nodes
        if role_of(node) in (Role.DEPTHWISE, Role.GROUPED) or (role_of(node) is Role.CONV and side_of(node) > 1)
    ]
    if not middle:
        raise DesignError(
            f"{blocks[0].name} has no convolution larger than 1x1; pycls files have no name for such a block"
        )
    module = module_of(middle[0])
    assert isinstance(module, nn.Conv2d)
    grouped = role_of(middle[0]) is Role.GROUPED
    return BackboneStage(
        segment,
        written[1],
        -(-read[2] // written[2]),
        side_of(middle[0]),
        module.out_channels // module.groups if grouped else 0,
    )


def squeeze_of(block: Block) -> fx.Node | None:
    """The squeeze convolution of a block's squeeze-and-excitation; None if it has none."""
    for node in block.nodes:
        if role_of(node) is Role.BINARY and is_product(node):
            for operand in tensor_operands(node):
                excite = _producer(operand, block)
                squeeze = None if excite is None else _producer(excite.all_input_nodes[0], block)
                if excite and squeeze and role_of(excite) is role_of(squeeze) is Role.CONV:
                    return squeeze
    return None


def _producer(node: fx.Node, block: Block) -> fx.Node | None:
    """The convolution of the block that produces the channels of `node`."""
    while node in block.nodes and role_of(node) not in (Role.CONV, Role.DEPTHWISE, Role.GROUPED):
        node = node.all_input_nodes[0]
    return node if node in block.nodes else None
