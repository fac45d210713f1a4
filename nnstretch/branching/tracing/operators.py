"""Channel semantics of the nodes of a traced network.

All code that walks traced graphs asks this module, so support for a new operator is added in one place.
Unknown operators are `Role.OPAQUE`: networks with them still work, but the channels that they read and write
keep their number and order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from nnstretch.branching.design.accounting import call_macs
from nnstretch.branching.tracing.modules import (
    DROPPING,
    ChannelNorm,
    ChannelShuffle,
    ChannelSlice,
    HeadSlice,
    PerChannel,
)
from nnstretch.branching.tracing.tokens import Attention, PerElement, Rearranged, Tokens, WithTokens
from nnstretch.frontends.torch_from_onnx.resizing import ResizedMap


class Role(Enum):
    """What a node does to the channels (dimension 1) of its input."""

    INPUT = auto()
    OUTPUT = auto()
    CONSTANT = auto()  # a parameter or buffer
    SHAPE = auto()  # the batch size, or a number derived from it
    CONV = auto()  # every output channel reads every input channel
    GROUPED = auto()  # an output channel reads the input channels of its group
    DEPTHWISE = auto()  # output channel c reads input channel c only
    LINEAR = auto()
    NORM = auto()  # parameters per channel, no mixing
    CHANNELWISE = auto()  # no parameters, no mixing
    BINARY = auto()  # element-wise between two tensors, or a tensor and a number
    CONCAT = auto()  # along the channels
    FLATTEN = auto()  # N,C,H,W to N,C*H*W
    SLICE = auto()  # a contiguous range of channels
    SHUFFLE = auto()  # ShuffleNet's channel shuffle
    GROUP_NORM = auto()  # as NORM, with statistics over groups of channels
    REDUCTION = auto()  # one channel from all
    PIXELS = auto()  # groups of channels become pixels (depth to space)
    ATTENTION = auto()  # of whole heads: reads maps of queries, keys and values
    OPAQUE = auto()


WEIGHT_LAYERS = frozenset({Role.CONV, Role.GROUPED, Role.DEPTHWISE, Role.LINEAR})
"""Layers with a weight matrix or kernel."""
MIXING = frozenset({Role.CONV, Role.LINEAR})
"""Layers whose output channels read all input channels."""

_ELEMENTWISE_MODULES = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
)
_CHANNELWISE_MODULES = (
    *_ELEMENTWISE_MODULES,
    nn.Dropout2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.ZeroPad2d,
    nn.ReflectionPad2d,
    nn.ReplicationPad2d,
    nn.Upsample,
    ResizedMap,
    Tokens,
)
_PER_CHANNEL_MODULES = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.InstanceNorm2d,
    ChannelNorm,
    PerChannel,
    PerElement,
    WithTokens,
)
_PLAIN_ELEMENTWISE = frozenset(
    {*(kind.__name__.lower() for kind in _ELEMENTWISE_MODULES), *map(str.lower, DROPPING)}
) | {
    "abs",
    "clamp",
    "clampmax",
    "clampmin",
    "clone",
    "contiguous",
    "exp",
    "float",
    "neg",
    "pow",
    "sqrt",
    "square",
}
_PLAIN_CHANNELWISE = _PLAIN_ELEMENTWISE | {
    *(kind.__name__.lower() for kind in _CHANNELWISE_MODULES),
    "featuredropout",
    "interpolate",
    "upsamplebicubic2d",
    "upsamplebilinear2d",
    "upsamplenearest2d",
}
_BINARY_NAMES = frozenset({"add", "sub", "mul", "div", "truediv"})
_ARGUMENTS = {
    "cat": ("tensors", "dim"),
    "concat": ("tensors", "dim"),
    "mean": ("input", "dim", "keepdim"),
    "norm": ("input", "p", "dim", "keepdim"),
    "linalg_vector_norm": ("input", "p", "dim", "keepdim"),
    "flatten": ("input", "start_dim", "end_dim"),
    "permute": ("input", "dims"),
    "transpose": ("input", "dim0", "dim1"),
    "pad": ("input", "pad"),
    "constant_pad_nd": ("input", "pad"),
    "max_pool2d": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    "avg_pool2d": ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
}
# torch names these functions differently from what they are called by.
_TITLES = {functional.max_pool2d: "max_pool2d", functional.adaptive_max_pool2d: "adaptive_max_pool2d"}


def title_of(node: fx.Node) -> str:
    """What a node calls: the class name of a module, or the name of a function, method or ATen operator."""
    target = node.target
    if node.op == "call_module":
        return type(module_of(node)).__name__
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    named = _TITLES.get(target) if callable(target) else str(target)
    return str(getattr(target, "__name__", target)) if named is None else named


def _plain(title: str) -> str:
    """Equal for a module and the function of the same meaning, such as `LeakyReLU` and `leaky_relu`."""
    return title.lower().replace("_", "")


def is_elementwise(node: fx.Node) -> bool:
    """Whether a node calls a unary element-wise module, function, method or operator, as seen in evaluation mode."""
    return _plain(title_of(node)) in _PLAIN_ELEMENTWISE


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """An argument of a function or method, passed by position or by name."""
    names = _ARGUMENTS[title_of(node)]
    place = names.index(name)
    if name in ("dims", "pad") and place < len(node.args) and isinstance(node.args[place], int):
        return node.args[place:]
    if place < len(node.args):
        return node.args[place]
    return node.kwargs.get(name, default)


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Shape of a node's tensor; None if its value is no tensor."""
    shape = node.meta.get("shape")
    return None if shape is None else tuple(shape)


def channels_of(node: fx.Node) -> int:
    """Channels (size of dimension 1) of a node's tensor."""
    shape = shape_of(node)
    assert shape is not None
    return shape[1]


def module_of(node: fx.Node) -> nn.Module:
    """The module that a `call_module` node calls."""
    found = node.meta.get("module")
    if not isinstance(found, nn.Module):
        owner = node.graph.owning_module
        assert owner is not None
        found = node.meta["module"] = owner.get_submodule(str(node.target))
    return found


def parameters_of(node: fx.Node) -> list[nn.Parameter]:
    """Learnable tensors that a node's module has, or that it reads itself."""
    if node.op == "call_module":
        module = module_of(node)
        known: tuple[nn.Module, list[nn.Parameter]] | None = node.meta.get("parameters")
        if known is None or known[0] is not module:
            known = node.meta["parameters"] = (module, list(module.parameters()))
        return known[1]
    tensor = node.meta.get("tensor")
    return [tensor] if isinstance(tensor, nn.Parameter) else []


def macs_of(node: fx.Node) -> int:
    """Multiply-accumulates of a node for one sample at full width."""
    read = shape_of(node.all_input_nodes[0]) if node.all_input_nodes else None
    written = shape_of(node)
    if node.op != "call_module" or read is None or written is None:
        return 0
    return times_of(node) * call_macs(module_of(node), math.prod(read[1:]), math.prod(written[1:]))


def times_of(node: fx.Node) -> int:
    """Maps per image in a node's tensor, such as windows; 1 for most."""
    return int(node.meta.get("times", 1))


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """The computed tensors among the operands of a BINARY node, repeated as often as they are read."""
    return [
        value
        for value in node.args[:2]
        if isinstance(value, fx.Node) and shape_of(value) is not None and value.op != "get_attr"
    ]


def concat_operands(node: fx.Node) -> list[fx.Node]:
    """What a CONCAT node joins, in order."""
    parts = argument(node, "tensors")
    assert isinstance(parts, (list, tuple))
    return [part for part in parts if isinstance(part, fx.Node)]


def nodes_behind(node: fx.Node) -> set[fx.Node]:
    """`node` and all nodes that it depends on."""
    found, waiting = {node}, [node]
    while waiting:
        new = set(waiting.pop().all_input_nodes) - found
        found |= new
        waiting += new
    return found


def is_product(node: fx.Node) -> bool:
    """Whether a BINARY node multiplies: a gate such as squeeze-and-excitation, not a sum."""
    return node.op != "call_module" and title_of(node) == "mul"


def note_roles(nodes: Iterable[fx.Node]) -> None:
    """Works out the roles of nodes whose shapes are known, once for all later questions."""
    for node in nodes:
        node.meta["role"] = _role(node)


def role_of(node: fx.Node) -> Role:
    """What `node` does to channels."""
    known = node.meta.get("role")
    return known if isinstance(known, Role) else _role(node)


def _role(node: fx.Node) -> Role:
    if node.op == "placeholder":
        return Role.INPUT
    if node.op == "output":
        return Role.OUTPUT
    if node.op == "get_attr":
        return Role.CONSTANT
    if node.meta.get("shared"):
        return Role.OPAQUE
    if node.op == "call_module":
        role = _module_role(module_of(node))
        # A dense layer on more than two axes works on the last one, which is not the channel axis.
        return Role.OPAQUE if role is Role.LINEAR and _rank(node) != 2 else role
    return _call_role(node)


_ROLES_OF_MODULES: tuple[tuple[type[nn.Module], Role], ...] = (
    *((kind, Role.NORM) for kind in _PER_CHANNEL_MODULES),
    (nn.Linear, Role.LINEAR),
    (Attention, Role.ATTENTION),
    (nn.PixelShuffle, Role.PIXELS),
    (ChannelSlice, Role.SLICE),
    (HeadSlice, Role.SLICE),
    (ChannelShuffle, Role.SHUFFLE),
    *((kind, Role.CHANNELWISE) for kind in _CHANNELWISE_MODULES),
)


def _module_role(module: nn.Module) -> Role:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        return _convolution_role(module)
    if isinstance(module, nn.GroupNorm):
        return Role.NORM if module.num_groups == 1 else Role.GROUP_NORM
    if isinstance(module, Rearranged):
        return Role.CHANNELWISE if module.makes_map else Role.OPAQUE
    if isinstance(module, nn.PReLU):
        return Role.NORM if module.num_parameters > 1 else Role.CHANNELWISE
    if isinstance(module, nn.Flatten):
        return Role.FLATTEN if (module.start_dim, module.end_dim) == (1, -1) else Role.OPAQUE
    known = (role for kind, role in _ROLES_OF_MODULES if isinstance(module, kind))
    return next(known, Role.CHANNELWISE if type(module).__name__ in DROPPING else Role.OPAQUE)


def _convolution_role(module: nn.Conv2d | nn.ConvTranspose2d) -> Role:
    if module.groups == 1:
        return Role.CONV
    if isinstance(module, nn.ConvTranspose2d):
        return Role.OPAQUE
    return Role.DEPTHWISE if module.groups == module.in_channels == module.out_channels else Role.GROUPED


def _call_role(node: fx.Node) -> Role:
    title = title_of(node)
    if _is_shape(node):
        return Role.SHAPE
    if title in _BINARY_NAMES:
        return _binary_role(node)
    if title in ("cat", "concat"):
        return Role.CONCAT if argument(node, "dim", 0) in (1, 1 - _rank(node)) else Role.OPAQUE
    if title == "flatten":
        return Role.FLATTEN if argument(node, "start_dim", 0) == 1 and _rank(node) == 2 else Role.OPAQUE
    if title == "roll":
        axes = [*node.args[2:], *node.kwargs.values()]
        return Role.CHANNELWISE if _rank(node) == 4 and axes in ([(2, 3)], [[2, 3]]) else Role.OPAQUE
    if title in ("mean", "norm", "linalg_vector_norm"):
        return _reduction_role(node, title)
    if title in ("pad", "constant_pad_nd"):
        pads = argument(node, "pad")
        return Role.CHANNELWISE if _rank(node) == 4 and not any(pads[4:]) else Role.OPAQUE
    return Role.CHANNELWISE if _plain(title) in _PLAIN_CHANNELWISE and _reads_one(node) else Role.OPAQUE


def _reduction_role(node: fx.Node, title: str) -> Role:
    axes = argument(node, "dim")
    reduced = sorted(a % 4 for a in axes) if isinstance(axes, (list, tuple)) else [axes]
    if reduced == [2, 3]:
        return Role.CHANNELWISE
    return Role.REDUCTION if title == "mean" and reduced == [1] and _rank(node) == 4 else Role.OPAQUE


def _reads_one(node: fx.Node) -> bool:
    """Whether a node reads exactly one computed tensor."""
    return sum(shape_of(operand) is not None for operand in node.all_input_nodes) == 1


def _rank(node: fx.Node) -> int:
    shape = shape_of(node)
    return 0 if shape is None else len(shape)


def _is_shape(node: fx.Node) -> bool:
    """Whether a node is the batch size or derived from it; other sizes are constants."""
    if node.op == "call_method" and node.target == "size":
        return True
    known = title_of(node) in ("mul", "floordiv") and shape_of(node) is None
    return known and all(role_of(operand) is Role.SHAPE for operand in node.all_input_nodes)


def _binary_role(node: fx.Node) -> Role:
    tensors = tensor_operands(node)
    numbers = [value for value in node.args[:2] if _is_number(value)]
    if len(tensors) + len(numbers) != 2 or not tensors:
        return Role.OPAQUE
    shapes = [shape_of(tensor) for tensor in tensors]
    rank = _rank(node)
    same = rank in (2, 4) and all(shape is not None and len(shape) == rank for shape in shapes)
    return Role.BINARY if same else Role.OPAQUE


def _is_number(value: Any) -> bool:
    """Whether an operand is one number: a literal or a parameter with one element."""
    if isinstance(value, fx.Node):
        return value.op == "get_attr" and math.prod(shape_of(value) or (0,)) == 1
    return isinstance(value, (int, float))
