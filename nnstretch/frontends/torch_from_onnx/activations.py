"""Activations as modules of torch, so that branching and training recognise them."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
import torch
from torch import nn
from torch.nn import functional

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.passes.rewriting import activation_of

_MODULES: dict[ActivationKind, Callable[[], nn.Module]] = {
    ActivationKind.RELU: nn.ReLU,
    ActivationKind.SIGMOID: nn.Sigmoid,
    ActivationKind.SILU: nn.SiLU,
    ActivationKind.HARD_SWISH: nn.Hardswish,
    ActivationKind.TANH: nn.Tanh,
    ActivationKind.GELU: nn.GELU,
    ActivationKind.GELU_TANH: lambda: nn.GELU(approximate="tanh"),
    ActivationKind.MISH: nn.Mish,
    ActivationKind.SOFTPLUS: nn.Softplus,
}
_SELU = (1.6732632423543772, 1.0507009873554805)
_UNBOUNDED = 3e38
"""Bounds of a clip beyond this, about the largest float32, are none."""


def _activation(build: Builder, node: ir.Node) -> Built:
    """`Activation`, as a module if torch has one."""
    activation, x = activation_of(node), build.tensor(node.inputs[0])
    module = _module(activation)
    if module is not None:
        return build.layer(node, module, x)
    a, b = activation.a, activation.b
    if activation.kind is ActivationKind.CLIP:
        return build.call(torch.clamp, x, None if a < -_UNBOUNDED else a, None if b > _UNBOUNDED else b)
    if activation.kind is ActivationKind.HARD_SIGMOID:
        return build.call(torch.clamp, build.call(torch.add, build.call(torch.mul, x, a), b), 0.0, 1.0)
    if activation.kind is ActivationKind.SWISH:
        return build.call(torch.mul, x, build.call(torch.sigmoid, build.call(torch.mul, x, a)))
    if activation.kind is ActivationKind.SELU:
        return build.call(torch.mul, build.call(functional.elu, x, a), b)
    if activation.kind is ActivationKind.ELU:
        return build.call(torch.ops.aten.elu.default, x, a, 1.0, b)
    return build.call(torch.exp if activation.kind is ActivationKind.EXP else torch.erf, x)


def _module(activation: Activation) -> nn.Module | None:
    """The module of torch that is this activation; None if there is none."""
    a, b = activation.a, activation.b
    if activation.kind in _MODULES:
        return _MODULES[activation.kind]()
    if activation.kind is ActivationKind.LEAKY_RELU:
        return nn.LeakyReLU(float(f"{a:.6g}"))
    if activation.kind is ActivationKind.CLIP and max(-a, b) < _UNBOUNDED:
        return nn.ReLU6() if (a, b) == (0.0, 6.0) else nn.Hardtanh(a, b)
    if activation.kind is ActivationKind.HARD_SIGMOID and math.isclose(a, 1 / 6, rel_tol=1e-4) and b == 0.5:
        return nn.Hardsigmoid()
    if activation.kind is ActivationKind.ELU and b == 1.0:
        return nn.ELU(a)
    if activation.kind is ActivationKind.ELU and math.isclose(a * b, 1.0, rel_tol=1e-6):
        return nn.CELU(a)
    if (
        activation.kind is ActivationKind.SELU
        and math.isclose(a, _SELU[0], rel_tol=1e-6)
        and math.isclose(b, _SELU[1], rel_tol=1e-6)
    ):
        return nn.SELU()
    return None


def _softmax(build: Builder, node: ir.Node) -> Built:
    function = torch.log_softmax if node.op_type == "LogSoftmax" else torch.softmax
    return build.call(function, build.tensor(node.inputs[0]), node.attributes.get_int("axis", -1))


def _threshold(build: Builder, node: ir.Node) -> Built:
    """Softsign and ThresholdedRelu."""
    x = build.tensor(node.inputs[0])
    if node.op_type == "Softsign":
        return build.call(functional.softsign, x)
    return build.call(functional.threshold, x, node.attributes.get_float("alpha", 1.0), 0.0)


OPERATORS: Converters = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Softsign": _threshold,
    "ThresholdedRelu": _threshold,
}
CANONICAL: Converters = {"Activation": _activation}
