"""Activations, as operators of their own or as the patterns that exporters write."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.passes.rewriting import (
    activation_of,
    argument,
    become,
    float_shape,
    is_canonical,
    is_onnx,
    number,
    scalar,
)

_LARGEST = float(np.finfo(np.float32).max)
_HARD_SWISH_GATE = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 0.5)
_PLAIN = {
    "Relu": ActivationKind.RELU,
    "Sigmoid": ActivationKind.SIGMOID,
    "HardSwish": ActivationKind.HARD_SWISH,
    "Tanh": ActivationKind.TANH,
    "Exp": ActivationKind.EXP,
}


def lower_activation(node: ir.Node) -> bool:
    """Activation operators, x*sigmoid(x), and hard sigmoid and hard swish spelt out become Activation nodes.

    Only the last node of a pattern is rewritten; the others become unused unless something else reads them.
    """
    if float_shape(node.outputs[0]) is None:
        return False
    if is_onnx(node, "Mul"):
        return _lower_gate(node)
    if is_onnx(node, "Div"):
        return _lower_sixth(node, argument(node, 0), 1.0 / (scalar(argument(node, 1)) or math.inf))
    activation = _operator(node)
    if activation is None:
        return False
    source = node.inputs[0] if scalar(node.inputs[0]) is None else node.inputs[1]
    if float_shape(source) != float_shape(node.outputs[0]):
        return False
    return become(node, "Activation", (source,), activation=activation)


def clip(low: float, high: float) -> Activation:
    """CLIP to finite bounds, or RELU where that is what it is."""
    low, high = max(low, -_LARGEST), min(high, _LARGEST)
    return (
        Activation(ActivationKind.RELU)
        if (low, high) == (0.0, _LARGEST)
        else Activation(ActivationKind.CLIP, low, high)
    )


def _operator(node: ir.Node) -> Activation | None:
    """The activation that one ONNX operator is."""
    if is_onnx(node, *_PLAIN):
        return Activation(_PLAIN[node.op_type])
    if is_onnx(node, "Clip"):
        return _clip_operator(node)
    if is_onnx(node, "HardSigmoid"):
        return Activation(ActivationKind.HARD_SIGMOID, number(node, "alpha", 0.2), number(node, "beta", 0.5))
    if is_onnx(node, "LeakyRelu"):
        return Activation(ActivationKind.LEAKY_RELU, number(node, "alpha", 0.01))
    if is_onnx(node, "Swish") and number(node, "alpha", 1.0) == 1.0:
        return Activation(ActivationKind.SILU)
    if is_onnx(node, "PRelu"):
        slope = scalar(argument(node, 1))
        return None if slope is None else Activation(ActivationKind.LEAKY_RELU, slope)
    if is_onnx(node, "Max", "Min") and len(node.inputs) == 2:
        bounds = [bound for bound in map(scalar, node.inputs) if bound is not None]
        if len(bounds) == 1:
            return clip(bounds[0], math.inf) if node.op_type == "Max" else clip(-math.inf, bounds[0])
    return None


def _clip_operator(node: ir.Node) -> Activation | None:
    """Clip, whose bounds are attributes up to opset 10 and then inputs."""
    bounds = [number(node, "min", -math.inf), number(node, "max", math.inf)]
    for index, value in enumerate(node.inputs[1:3]):
        if value is not None:
            bound = scalar(value)
            if bound is None:
                return None
            bounds[index] = bound
    return clip(*bounds)


def _lower_gate(node: ir.Node) -> bool:
    """Mul that is x*sigmoid(x), x*hard_sigmoid(x), or the multiplication by 1/6 that ends a hard swish."""
    for source, gate in (node.inputs[:2], node.inputs[1::-1]):
        if source is None or gate is None:
            continue
        factor = scalar(gate)
        if factor is not None and _lower_sixth(node, source, factor):
            return True
        producer = gate.producer()
        if not is_canonical(producer, "Activation") or producer is None or producer.inputs[0] is not source:
            continue
        inner = activation_of(producer)
        if inner.kind is ActivationKind.SIGMOID:
            return become(node, "Activation", (source,), activation=Activation(ActivationKind.SILU))
        if _is_gate(inner):
            return become(node, "Activation", (source,), activation=Activation(ActivationKind.HARD_SWISH))
    return False


def _is_gate(activation: Activation) -> bool:
    """Whether an activation is the hard sigmoid of hard swish, up to the rounding of 1/6."""
    return (
        activation.kind is _HARD_SWISH_GATE.kind
        and math.isclose(activation.a, _HARD_SWISH_GATE.a, rel_tol=1e-6)
        and activation.b == _HARD_SWISH_GATE.b
    )


def _lower_sixth(node: ir.Node, numerator: ir.Value | None, factor: float) -> bool:
    """clip(x+3, 0, 6)/6 is a hard sigmoid, x*clip(x+3, 0, 6)/6 a hard swish."""
    if numerator is None or not math.isclose(factor, 1 / 6, rel_tol=1e-6):
        return False
    source = _shifted_source(numerator)
    if source is not None:
        return become(node, "Activation", (source,), activation=_HARD_SWISH_GATE)
    producer = numerator.producer()
    if not is_onnx(producer, "Mul") or producer is None:
        return False
    for left, right in (producer.inputs[:2], producer.inputs[1::-1]):
        if left is not None and _shifted_source(right) is left:
            return become(node, "Activation", (left,), activation=Activation(ActivationKind.HARD_SWISH))
    return False


def _shifted_source(value: ir.Value | None) -> ir.Value | None:
    """The x of a value that is clip(x+3, 0, 6)."""
    producer = None if value is None else value.producer()
    if not is_canonical(producer, "Activation") or producer is None:
        return None
    if activation_of(producer) != Activation(ActivationKind.CLIP, 0.0, 6.0):
        return None
    inner = producer.inputs[0]
    addition = None if inner is None else inner.producer()
    if not is_onnx(addition, "Add") or addition is None:
        return None
    for source, shift in (addition.inputs[:2], addition.inputs[1::-1]):
        if scalar(shift) == 3.0 and source is not None and float_shape(source) == float_shape(inner):
            return source
    return None
