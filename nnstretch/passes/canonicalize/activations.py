"""Activations, as operators of their own or as the patterns that exporters write, and Softmax."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.passes.canonicalize.gates import gated_activation
from nnstretch.passes.rewriting import (
    Lowerings,
    activation_of,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    graph_of,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
)

_LINEAR = 17.0
"""Where softplus(x) is x, as float32."""
_LARGEST = float(np.finfo(np.float32).max)
_HARD_SWISH_GATE = Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 0.5)
_PLAIN = {
    "Relu": ActivationKind.RELU,
    "Sigmoid": ActivationKind.SIGMOID,
    "HardSwish": ActivationKind.HARD_SWISH,
    "Tanh": ActivationKind.TANH,
    "Exp": ActivationKind.EXP,
    "Mish": ActivationKind.MISH,
    "Softplus": ActivationKind.SOFTPLUS,
    "Erf": ActivationKind.ERF,
}


def lower_activation(node: ir.Node) -> bool:
    """Activation operators, gated ones (`passes.gates`), and hard sigmoid and hard swish spelt out become Activation nodes.

    Only the last node of a pattern is rewritten; the others become unused unless something else reads them.
    """
    if float_shape(node.outputs[0]) is None:
        return False
    gated = gated_activation(node) if is_onnx(node, "Mul", "Div") else None
    if gated is not None and float_shape(gated[0]) == float_shape(node.outputs[0]):
        return become(node, "Activation", (gated[0],), activation=gated[1])
    if is_onnx(node, "Mul"):
        return _lower_gate(node)
    if is_onnx(node, "Div"):
        return _lower_sixth(node, argument(node, 0), 1.0 / (scalar(argument(node, 1)) or math.inf))
    activation = _operator(node)
    if activation is None:
        return False
    bound_first = is_onnx(node, "Max", "Min") and scalar(node.inputs[0]) is not None
    source = node.inputs[1 if bound_first else 0]
    if constant(source) is not None or float_shape(source) != float_shape(node.outputs[0]):
        return False
    return become(node, "Activation", (source,), activation=activation)


def clip(low: float, high: float) -> Activation:
    """CLIP, or RELU where that is what it is; exporters write the largest float32 for no bound."""
    if low == 0.0 and high >= _LARGEST:
        return Activation(ActivationKind.RELU)
    return Activation(ActivationKind.CLIP, low, high)


def bounds_of(activation: Activation) -> tuple[float, float] | None:
    """Lowest and highest result of an activation that only clips; None for others."""
    if activation.kind is ActivationKind.RELU:
        return 0.0, math.inf
    return (activation.a, activation.b) if activation.kind is ActivationKind.CLIP else None


def _operator(node: ir.Node) -> Activation | None:
    """The activation that one ONNX operator is."""
    if is_onnx(node, *_PLAIN):
        return Activation(_PLAIN[node.op_type])
    if is_onnx(node, "Clip"):
        return _clip_operator(node)
    if is_onnx(node, "HardSigmoid"):
        return Activation(
            ActivationKind.HARD_SIGMOID, node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        )
    if is_onnx(node, "LeakyRelu"):
        return Activation(ActivationKind.LEAKY_RELU, node.attributes.get_float("alpha", 0.01))
    if is_onnx(node, "Swish"):
        slope = node.attributes.get_float("alpha", 1.0)
        return Activation(ActivationKind.SILU) if slope == 1.0 else Activation(ActivationKind.SWISH, slope)
    if is_onnx(node, "Gelu"):
        approximate = node.attributes.get_string("approximate", "none") == "tanh"
        return Activation(ActivationKind.GELU_TANH if approximate else ActivationKind.GELU)
    if is_onnx(node, "Elu", "Celu", "Selu"):
        return _exponential(node)
    if is_onnx(node, "PRelu"):
        leak = scalar(argument(node, 1))
        return None if leak is None else Activation(ActivationKind.LEAKY_RELU, leak)
    if is_onnx(node, "Max", "Min") and len(node.inputs) == 2:
        bounds = [bound for bound in map(scalar, node.inputs) if bound is not None]
        if len(bounds) == 1:
            return clip(bounds[0], math.inf) if node.op_type == "Max" else clip(-math.inf, bounds[0])
    return None


def _exponential(node: ir.Node) -> Activation | None:
    """Elu, Celu and Selu with positive constants."""
    if node.op_type == "Selu":
        alpha, gamma = (
            node.attributes.get_float(name, default)
            for name, default in (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))
        )
        return Activation(ActivationKind.SELU, alpha, gamma)
    alpha = node.attributes.get_float("alpha", 1.0)
    if node.op_type == "Elu":
        return Activation(ActivationKind.ELU, alpha, 1.0)
    return Activation(ActivationKind.ELU, alpha, 1.0 / alpha) if alpha > 0.0 else None


def _clip_operator(node: ir.Node) -> Activation | None:
    """Clip, whose bounds are attributes up to opset 10 and then inputs; by default the largest numbers, and no infinities."""
    bounds = [node.attributes.get_float("min", -_LARGEST), node.attributes.get_float("max", _LARGEST)]
    for index, value in enumerate(node.inputs[1:3]):
        if value is not None:
            bound = scalar(value)
            if bound is None:
                return None
            bounds[index] = bound
    return clip(*bounds)


def _lower_gate(node: ir.Node) -> bool:
    """Mul that is x*hard_sigmoid(x), or the multiplication by 1/6 that ends a hard swish."""
    for source, gate in (node.inputs[:2], node.inputs[1::-1]):
        if source is None or gate is None:
            continue
        factor = scalar(gate)
        if factor is not None and _lower_sixth(node, source, factor):
            return True
        producer = gate.producer()
        if not is_canonical(producer, "Activation") or producer.inputs[0] is not source:
            continue
        inner = activation_of(producer)
        if _is_gate(inner) and float_shape(source) == float_shape(node.outputs[0]):
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
    if float_shape(numerator) != float_shape(node.outputs[0]):
        return False
    source = _shifted_source(numerator)
    if source is not None:
        return become(node, "Activation", (source,), activation=_HARD_SWISH_GATE)
    producer = numerator.producer()
    if not is_onnx(producer, "Mul"):
        return False
    for left, right in (producer.inputs[:2], producer.inputs[1::-1]):
        if left is not None and _shifted_source(right) is left:
            return become(node, "Activation", (left,), activation=Activation(ActivationKind.HARD_SWISH))
    return False


def _shifted_source(value: ir.Value | None) -> ir.Value | None:
    """The x of a value that is clip(x+3, 0, 6)."""
    producer = producer_of(value)
    if not is_canonical(producer, "Activation") or activation_of(producer) != Activation(ActivationKind.CLIP, 0.0, 6.0):
        return None
    inner = producer.inputs[0]
    addition = producer_of(inner)
    if not is_onnx(addition, "Add"):
        return None
    for source, shift in (addition.inputs[:2], addition.inputs[1::-1]):
        if scalar(shift) == 3.0 and source is not None and float_shape(source) == float_shape(inner):
            return source
    return None


def lower_softmax(node: ir.Node) -> bool:
    """Softmax over one axis becomes canonical; before opset 13 it was over all axes from one on."""
    shape = float_shape(node.outputs[0])
    if not shape:
        return False
    opset = graph_of(node).opset_imports.get("", 0)
    axis = node.attributes.get_int("axis", -1 if opset >= 13 else 1) % len(shape)
    if opset < 13 and any(length != 1 for length in shape[axis + 1 :]):
        return False
    return become(node, "Softmax", node.inputs[:1], {"axis": axis})


def lower_prelu(node: ir.Node) -> bool:
    """PRelu with a slope per channel; with one in all it is an activation."""
    shape, slope = float_shape(node.inputs[0]), constant(argument(node, 1))
    if shape is None or len(shape) < 2 or slope is None or slope.size != shape[1]:
        return False
    if (1,) * (len(shape) - slope.ndim) + slope.shape != (1, shape[1], *(1,) * (len(shape) - 2)):
        return False
    return become(node, "PRelu", (node.inputs[0], float_initializer(node, "slope", slope.reshape(-1))))


def lower_threshold(node: ir.Node) -> bool:
    """Where(x > bound, x, softplus(x)) is softplus(x) if the two are equal beyond the bound: torch writes its softplus so."""
    comparison, softplus = producer_of(node.inputs[0]), producer_of(argument(node, 2))
    if not is_onnx(comparison, "Greater") or not is_canonical(softplus, "Activation"):
        return False
    source, bound = softplus.inputs[0], scalar(argument(comparison, 1))
    same = source is not None and comparison.inputs[0] is source and node.inputs[1] is source
    if activation_of(softplus).kind is not ActivationKind.SOFTPLUS or not same or bound is None or bound < _LINEAR:
        return False
    return become(node, "Activation", (source,), activation=Activation(ActivationKind.SOFTPLUS))


LOWERINGS: Lowerings = {"Softmax": (lower_softmax,), "PRelu": (lower_prelu,), "Where": (lower_threshold,)}
