"""What the nodes of a traced network do to channels.

Everything in this package that walks a traced graph asks here, so a new operation is made known in one place.
An operation that is not known is `Role.OPAQUE`: networks that have it still work, but the channels that it reads and
writes keep their number and order.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional


class Role(Enum):
    """What a node does to the channels (dimension 1) of what it reads."""

    INPUT = auto()
    OUTPUT = auto()
    CONSTANT = auto()  # a parameter or buffer that is read by itself
    SHAPE = auto()  # the batch size or the size of the feature map
    CONV = auto()  # every output channel reads every input channel
    GROUPED = auto()  # output channels read the input channels of their group
    DEPTHWISE = auto()  # output channel c reads input channel c alone
    LINEAR = auto()
    NORM = auto()  # parameters per channel, nothing mixed
    CHANNELWISE = auto()  # no parameters, nothing mixed
    BINARY = auto()  # element-wise between two tensors, or a tensor and a number
    CONCAT = auto()  # along the channels
    FLATTEN = auto()  # N,C,H,W to N,C*H*W
    OPAQUE = auto()


HEAVY = frozenset({Role.CONV, Role.GROUPED, Role.DEPTHWISE, Role.LINEAR})
MIXING = frozenset({Role.CONV, Role.LINEAR})

_CHANNELWISE_MODULES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.ZeroPad2d,
    nn.Upsample,
)
_CHANNELWISE_FUNCTIONS = frozenset(
    {
        torch.relu,
        torch.sigmoid,
        torch.tanh,
        functional.relu,
        functional.relu6,
        functional.leaky_relu,
        functional.elu,
        functional.gelu,
        functional.silu,
        functional.mish,
        functional.sigmoid,
        functional.tanh,
        functional.hardtanh,
        functional.hardsigmoid,
        functional.hardswish,
        functional.dropout,
        functional.dropout2d,
        functional.max_pool2d,
        functional.avg_pool2d,
        functional.adaptive_avg_pool2d,
        functional.adaptive_max_pool2d,
        functional.interpolate,
    }
)
# Stochastic depth is nothing in evaluation mode, in which networks are traced.
_CHANNELWISE_NAMES = frozenset({"stochastic_depth", "drop_path"})
_CHANNELWISE_METHODS = frozenset({"relu", "relu_", "sigmoid", "sigmoid_", "tanh", "contiguous", "clone", "float"})
_BINARY_FUNCTIONS = frozenset(
    {
        operator.add,
        operator.iadd,
        operator.sub,
        operator.isub,
        operator.mul,
        operator.imul,
        torch.add,
        torch.sub,
        torch.mul,
    }
)
_PRODUCT_FUNCTIONS = frozenset({operator.mul, operator.imul, torch.mul})
_BINARY_METHODS = frozenset({"add", "add_", "sub", "sub_", "mul", "mul_"})
_MEANS = (torch.mean, "mean")


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Shape of the tensor that `node` computes; None if it computes something else."""
    shape = node.meta.get("shape")
    return None if shape is None else tuple(shape)


def channels_of(node: fx.Node) -> int:
    """Number of channels (size of dimension 1) of a node's tensor."""
    shape = shape_of(node)
    assert shape is not None
    return shape[1]


def module_of(node: fx.Node) -> nn.Module:
    """The module that a call_module node calls."""
    found = node.meta.get("module")
    if not isinstance(found, nn.Module):
        owner = node.graph.owning_module
        assert owner is not None
        found = node.meta["module"] = owner.get_submodule(str(node.target))
    return found


def tensor_operands(node: fx.Node) -> list[fx.Node]:
    """Those operands of a BINARY node that are computed tensors, as often as they are read."""
    return [
        value
        for value in node.args[:2]
        if isinstance(value, fx.Node) and shape_of(value) is not None and value.op != "get_attr"
    ]


def concat_operands(node: fx.Node) -> list[fx.Node]:
    """What a CONCAT node joins, in order."""
    parts = node.args[0]
    assert isinstance(parts, (list, tuple))
    return [part for part in parts if isinstance(part, fx.Node)]


def is_product(node: fx.Node) -> bool:
    """Whether a BINARY node multiplies: a gate such as squeeze-and-excitation, not a sum."""
    if node.op == "call_method":
        return str(node.target).startswith("mul")
    return node.target in _PRODUCT_FUNCTIONS


def note_roles(nodes: Iterable[fx.Node]) -> None:
    """Works out the roles of nodes whose shapes are known, once for all later questions."""
    for node in nodes:
        node.meta["role"] = _role(node)


def role_of(node: fx.Node) -> Role:
    """What `node` does to channels."""
    noted = node.meta.get("role")
    return noted if isinstance(noted, Role) else _role(node)


def _role(node: fx.Node) -> Role:
    if node.op == "placeholder":
        return Role.INPUT
    if node.op == "output":
        return Role.OUTPUT
    if node.op == "get_attr":
        return Role.CONSTANT
    if node.op == "call_module":
        role = _module_role(module_of(node))
        # A dense layer over more than two axes works on the last one, which is not that of the channels.
        return Role.OPAQUE if role is Role.LINEAR and _rank(node) != 2 else role
    return _call_role(node)


def _module_role(module: nn.Module) -> Role:
    if isinstance(module, nn.Conv2d):
        if module.groups == 1:
            return Role.CONV
        depthwise = module.groups == module.in_channels == module.out_channels
        return Role.DEPTHWISE if depthwise else Role.GROUPED
    if isinstance(module, nn.Linear):
        return Role.LINEAR
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm2d)):
        return Role.NORM
    if isinstance(module, nn.PReLU):
        return Role.NORM if module.num_parameters > 1 else Role.CHANNELWISE
    if isinstance(module, nn.Flatten):
        return Role.FLATTEN if (module.start_dim, module.end_dim) == (1, -1) else Role.OPAQUE
    return Role.CHANNELWISE if isinstance(module, _CHANNELWISE_MODULES) else Role.OPAQUE


def _call_role(node: fx.Node) -> Role:
    target = node.target
    if _is_shape(node):
        return Role.SHAPE
    if target in _BINARY_FUNCTIONS or (node.op == "call_method" and target in _BINARY_METHODS):
        return _binary_role(node)
    if target in (torch.cat, torch.concat):
        return Role.CONCAT if _argument(node, 1, "dim", 0) in (1, -3) else Role.OPAQUE
    if target in (torch.flatten, "flatten"):
        return Role.FLATTEN if _argument(node, 1, "start_dim", 0) == 1 and _rank(node) == 2 else Role.OPAQUE
    if target in ("view", "reshape", torch.reshape):
        return Role.FLATTEN if _flattens(node) else Role.OPAQUE
    if target in _MEANS:
        axes = _argument(node, 1, "dim", None)
        spatial = isinstance(axes, (list, tuple)) and sorted(a % 4 for a in axes) == [2, 3]
        return Role.CHANNELWISE if spatial else Role.OPAQUE
    if node.op == "call_method":
        return Role.CHANNELWISE if target in _CHANNELWISE_METHODS else Role.OPAQUE
    known = target in _CHANNELWISE_FUNCTIONS or getattr(target, "__name__", "") in _CHANNELWISE_NAMES
    return Role.CHANNELWISE if known else Role.OPAQUE


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _rank(node: fx.Node) -> int:
    shape = shape_of(node)
    return 0 if shape is None else len(shape)


def _is_shape(node: fx.Node) -> bool:
    """The batch size and the size of the map stay as they are when channels go; the number of channels does not."""
    if node.op == "call_method" and node.target == "size":
        return not node.args[1:] or node.args[1] in (0, 2, 3, -1, -2)
    if node.target is getattr and node.args[1:] == ("shape",):
        return True
    if node.target is operator.getitem and shape_of(node) is None:
        return isinstance(node.args[1], int) and node.args[1] in (0, 2, 3, -1, -2)
    return False


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
    """Whether an operand is one number, written in the code or a parameter of one element."""
    if isinstance(value, fx.Node):
        return value.op == "get_attr" and math.prod(shape_of(value) or (0,)) == 1
    return isinstance(value, (int, float))


def _flattens(node: fx.Node) -> bool:
    """Whether a view is N,C,H,W to N,-1, with no number of channels written into it."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
        sizes = tuple(sizes[0])
    source = node.args[0]
    if len(sizes) != 2 or not isinstance(source, fx.Node):
        return False
    return bool(sizes[1] == -1) and _rank(source) == 4 and _rank(node) == 2
