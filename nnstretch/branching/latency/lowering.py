"""Traced nodes that read one tensor and have no weight, as layers of the operator table in `nnstretch.graph.layer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from nnstretch.branching.tracing.modules import DROPPING, PerChannel
from nnstretch.branching.tracing.operators import Role, argument, arguments_of, module_of, role_of, title_of
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.layer import Attribute


@dataclass(frozen=True)
class Lowered:
    """One layer that reads one tensor: its operator, the shape that it writes, and what else it is."""

    op: str
    shape: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    activation: Activation = NO_ACTIVATION


_KIND = ActivationKind
_RELU6 = Activation(_KIND.CLIP, 0.0, 6.0)
_HARD_SIGMOID = Activation(_KIND.HARD_SIGMOID, 1 / 6, 0.5)
# Module class, name of the function and of the method -> activation.
_PLAIN: dict[type[nn.Module] | str, Activation] = {
    nn.ReLU: Activation(_KIND.RELU),
    nn.ReLU6: _RELU6,
    nn.Sigmoid: Activation(_KIND.SIGMOID),
    nn.Tanh: Activation(_KIND.TANH),
    nn.SiLU: Activation(_KIND.SILU),
    nn.Hardsigmoid: _HARD_SIGMOID,
    nn.Hardswish: Activation(_KIND.HARD_SWISH),
    "relu": Activation(_KIND.RELU),
    "relu6": _RELU6,
    "sigmoid": Activation(_KIND.SIGMOID),
    "tanh": Activation(_KIND.TANH),
    "silu": Activation(_KIND.SILU),
    "hardsigmoid": _HARD_SIGMOID,
    "hardswish": Activation(_KIND.HARD_SWISH),
}
_NOTHING_MODULES = (nn.Identity, nn.Dropout, nn.Dropout2d)
_NOTHING_NAMES = frozenset(
    {
        "dropout",
        "dropout2d",
        "feature_dropout",
        "contiguous",
        "clone",
        "float",
        "stochastic_depth",
        "drop_path",
    }
    | DROPPING
)
_POOL_NAMES = frozenset({"max_pool2d", "avg_pool2d"})


def lower(node: fx.Node, read: tuple[int, ...], written: tuple[int, ...]) -> list[Lowered]:
    """The layers that a node becomes which reads and writes tensors of these shapes; none if it does nothing.

    What the operator table lacks is an operator `onnx:<name>`, for the fallback.
    """
    role = role_of(node)
    if role is Role.FLATTEN:
        return [] if read == written else [Lowered("Reshape", written)]
    if role is Role.BINARY:
        return [Lowered("Affine", written)]  # with a number
    if role is Role.NORM:
        plain = isinstance(module_of(node), (nn.BatchNorm1d, nn.BatchNorm2d, PerChannel))
        return [Lowered("Affine" if plain else f"onnx:{title_of(node)}", written)]
    if _does_nothing(node):
        return []
    activation = _activation(node)
    if activation is not None:
        return [Lowered("Activation", written, activation=activation)]
    return _pool(node, read, written) or [Lowered(f"onnx:{title_of(node)}", written)]


def padding_of(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Pads (top, left, bottom, right) of a convolution."""
    if isinstance(module.padding, str):
        if module.padding == "valid":
            return 0, 0, 0, 0
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        begins = [total // 2 for total in totals]
        return begins[0], begins[1], totals[0] - begins[0], totals[1] - begins[1]
    top, left = module.padding
    return top, left, top, left


def _does_nothing(node: fx.Node) -> bool:
    if node.op == "call_module" and isinstance(module_of(node), _NOTHING_MODULES):
        return True
    return title_of(node) in _NOTHING_NAMES


def _activation(node: fx.Node) -> Activation | None:
    if node.op != "call_module":
        return _function_activation(node)
    module = module_of(node)
    if isinstance(module, nn.LeakyReLU):
        return Activation(_KIND.LEAKY_RELU, module.negative_slope)
    if isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
        return Activation(_KIND.CLIP, module.min_val, module.max_val)
    if isinstance(module, nn.PReLU):
        return Activation(_KIND.LEAKY_RELU, float(module.weight.detach()))
    return _PLAIN.get(type(module))


def _function_activation(node: fx.Node) -> Activation | None:
    title = title_of(node)
    values = list(node.args[1:])
    if title == "leaky_relu":
        return Activation(_KIND.LEAKY_RELU, *_numbers(values, node, {"negative_slope": 0.01}))
    if title == "hardtanh":
        return Activation(_KIND.CLIP, *_numbers(values, node, {"min_val": -1.0, "max_val": 1.0}))
    return _PLAIN.get(title)


def _numbers(values: list[Any], node: fx.Node, defaults: Mapping[str, float]) -> list[float]:
    """Settings of a function call in the order of `defaults`, given by position or by name."""
    named = dict(zip(defaults, values, strict=False))
    return [float(named.get(name, node.kwargs.get(name, value))) for name, value in defaults.items()]  # type: ignore[arg-type]


def _pool(node: fx.Node, read: tuple[int, ...], written: tuple[int, ...]) -> list[Lowered]:
    title = title_of(node)
    if title == "mean" or (title.lower().startswith("adaptive") and written[2:] == (1, 1)):
        mode = "max" if "max" in title.lower() else "average"
        pooled = (*read[:2], 1, 1)
        layers = [Lowered("GlobalPool", pooled, {"mode": mode})]
        return layers if pooled == written else [*layers, Lowered("Reshape", written)]
    if title.lower().startswith("adaptive"):
        return _adaptive(title, read, written)
    settings = _settings(node)
    if settings is None:
        return []
    kernel, strides, pads = (_pair(settings[name]) for name in ("kernel_size", "stride", "padding"))
    return [_window("max" in title.lower(), settings, (kernel, strides, pads), read, written)]


def _adaptive(title: str, read: tuple[int, ...], written: tuple[int, ...]) -> list[Lowered]:
    """Windows of one size where the output divides the input; nothing where both are equal."""
    if read == written:
        return []
    if any(size % out for size, out in zip(read[2:], written[2:], strict=True)):
        return []
    kernel = tuple(size // out for size, out in zip(read[2:], written[2:], strict=True))
    attributes: dict[str, Attribute] = {"kernel": kernel, "strides": kernel, "pads": (0, 0, 0, 0)}
    if "max" in title.lower():
        return [Lowered("MaxPool", written, attributes | {"dilations": (1, 1)})]
    return [Lowered("AveragePool", written, attributes | {"count_include_pad": 0})]


def _settings(node: fx.Node) -> dict[str, Any] | None:
    """Settings of a pool by name, or None if it is none."""
    if node.op == "call_module":
        module = module_of(node)
        if not isinstance(module, (nn.MaxPool2d, nn.AvgPool2d)):
            return None
        found = {name: getattr(module, name) for name in ("kernel_size", "stride", "padding")}
        found["dilation"] = getattr(module, "dilation", 1)
        found["count_include_pad"] = getattr(module, "count_include_pad", True)
    else:
        if title_of(node) not in _POOL_NAMES:
            return None
        names = ("kernel_size", "stride", "padding", "dilation", "count_include_pad")
        found = {name: argument(node, name) for name in names if name in arguments_of(node)}
    kernel = found["kernel_size"]
    defaults = {"stride": kernel, "padding": 0, "dilation": 1, "count_include_pad": True}
    return defaults | {name: value for name, value in found.items() if value not in (None, ())}


def _window(
    maximum: bool,
    settings: Mapping[str, Any],
    window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    read: tuple[int, ...],
    written: tuple[int, ...],
) -> Lowered:
    """A pool; ceil mode shows in the shape that it writes and becomes larger pads."""
    kernel, strides, begins = window
    dilation = _pair(settings["dilation"])
    ends = [
        max(begin, (out - 1) * stride - begin + (taps - 1) * spread + 1 - size)
        for begin, out, stride, taps, spread, size in zip(
            begins, written[2:], strides, kernel, dilation, read[2:], strict=True
        )
    ]
    pads = (*begins, *ends)
    if not any(pads) and kernel == read[2:] and written[2:] == (1, 1):
        return Lowered("GlobalPool", written, {"mode": "max" if maximum else "average"})
    attributes: dict[str, Attribute] = {"kernel": kernel, "strides": strides, "pads": pads}
    if maximum:
        return Lowered("MaxPool", written, attributes | {"dilations": dilation})
    counted = int(bool(settings["count_include_pad"]) and any(pads))
    return Lowered("AveragePool", written, attributes | {"count_include_pad": counted})


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = (*value, *value)[:2]
    return int(first), int(second)
