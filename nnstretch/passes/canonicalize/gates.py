"""Activations that are a polynomial in x times a gate, such as GELU, as exporters write them in any order of operations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.passes.rewriting import activation_of, argument, is_canonical, is_onnx, producer_of, scalar

Polynomial = tuple[float, float, float, float]
"""Coefficients of 1, x, x² and x³."""

_ONE: Polynomial = (1.0, 0.0, 0.0, 0.0)
_X: Polynomial = (0.0, 1.0, 0.0, 0.0)
_HALF_X: Polynomial = (0.0, 0.5, 0.0, 0.0)
_TOLERANCE = 1e-5
"""Relative tolerance of constants, which exporters round differently."""
_DEPTH = 5
"""Operators from the last one of a pattern to any other of a product, or of a polynomial."""
_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_GATES = {ActivationKind.SIGMOID: "sigmoid", ActivationKind.TANH: "tanh", ActivationKind.ERF: "erf"}


@dataclass(frozen=True)
class _Gated:
    """A product of a polynomial in x and the function `gate` of another polynomial, plus 1 where `shifted`."""

    factor: Polynomial
    gate: str
    inner: Polynomial
    shifted: bool


def gated_activation(node: ir.Node) -> tuple[ir.Value, Activation] | None:
    """The x and the activation that a Mul or Div ends; None if it ends none."""
    result = node.outputs[0]
    if not any(_gate_of(value) is not None for value in _factors(result, _DEPTH)):
        return None
    for source in _factors(result, _DEPTH):
        found = _gated(result, source, _DEPTH) if source is not result else None
        activation = None if found is None else _activation(found)
        if activation is not None:
            return source, activation
    return None


def _activation(found: _Gated) -> Activation | None:
    """The activation that a gated polynomial is."""
    gelu = (0.0, _TANH_SCALE, 0.0, _TANH_SCALE * _CUBIC)
    if found.gate == "erf" and found.shifted:
        matches = _equal(found.factor, _HALF_X) and _equal(found.inner, (0.0, math.sqrt(0.5), 0.0, 0.0))
        return Activation(ActivationKind.GELU) if matches else None
    if found.gate == "tanh" and found.shifted:
        matches = _equal(found.factor, _HALF_X) and _equal(found.inner, gelu)
        return Activation(ActivationKind.GELU_TANH) if matches else None
    if found.shifted or not _equal(found.factor, _X):
        return None
    if found.gate == "mish":
        return Activation(ActivationKind.MISH) if _equal(found.inner, _X) else None
    if found.gate != "sigmoid":
        return None
    if _equal(found.inner, (0.0, 2 * gelu[1], 0.0, 2 * gelu[3])):
        return Activation(ActivationKind.GELU_TANH)
    slope = found.inner[1]
    if slope <= 0.0 or not _equal(found.inner, (0.0, slope, 0.0, 0.0)):
        return None
    return Activation(ActivationKind.SILU) if slope == 1.0 else Activation(ActivationKind.SWISH, slope)


def _equal(found: Polynomial, wanted: Polynomial) -> bool:
    return all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(found, wanted, strict=True))


def _factors(value: ir.Value, depth: int) -> Iterator[ir.Value]:
    """The value, and the run-time factors of the product that it is, outermost first."""
    yield value
    producer = value.producer()
    if depth == 0 or not is_onnx(producer, "Mul", "Div"):
        return
    operands = producer.inputs if producer.op_type == "Mul" else producer.inputs[:1]
    for operand in operands:
        if operand is not None and scalar(operand) is None:
            yield from _factors(operand, depth - 1)


def _gate_of(value: ir.Value | None) -> tuple[str, ir.Value, bool] | None:
    """Name and argument of the gate that a value is, and whether 1 is added to it."""
    producer = producer_of(value)
    if is_onnx(producer, "Add"):
        for inner, addend in (producer.inputs[:2], producer.inputs[1::-1]):
            found = _gate_of(inner) if scalar(addend) == 1.0 else None
            if found is not None and not found[2]:
                return found[0], found[1], True
        return None
    if not is_canonical(producer, "Activation"):
        return None
    name, source = _GATES.get(activation_of(producer).kind), producer.inputs[0]
    if name is None or source is None:
        return None
    before = producer_of(source)
    if name == "tanh" and is_canonical(before, "Activation"):
        inner, kind = before.inputs[0], activation_of(before).kind
        if kind is ActivationKind.SOFTPLUS and inner is not None:
            return "mish", inner, False
    return name, source, False


def _gated(value: ir.Value, source: ir.Value, depth: int) -> _Gated | None:
    """`value` as a polynomial in `source` times one gate of a polynomial in `source`."""
    gate = _gate_of(value)
    if gate is not None:
        inner = _polynomial(gate[1], source, _DEPTH)
        return None if inner is None else _Gated(_ONE, gate[0], inner, gate[2])
    producer = value.producer()
    if depth == 0 or not is_onnx(producer, "Mul", "Div"):
        return None
    left, right = producer.inputs[0], producer.inputs[1]
    orders = ((left, right), (right, left)) if producer.op_type == "Mul" else ((left, right),)
    for gated, other in orders:
        if gated is None or other is None:
            continue
        found = _gated(gated, source, depth - 1)
        factor = None if found is None else _second(producer.op_type, other, source, depth - 1)
        product = None if found is None or factor is None else _times(found.factor, factor)
        if found is not None and product is not None:
            return _Gated(product, found.gate, found.inner, found.shifted)
    return None


def _second(op_type: str, value: ir.Value, source: ir.Value, depth: int) -> Polynomial | None:
    """What a product is multiplied by: the reciprocal of the constant that it is divided by."""
    factor = _polynomial(value, source, depth)
    if op_type == "Mul" or factor is None:
        return factor
    return (1.0 / factor[0], 0.0, 0.0, 0.0) if factor[0] != 0.0 and not any(factor[1:]) else None


def _polynomial(value: ir.Value | None, source: ir.Value, depth: int) -> Polynomial | None:
    """`value` as a polynomial in `source`; None if it is none of degree 3 or less."""
    if value is source:
        return _X
    constant = scalar(value)
    if constant is not None:
        return (constant, 0.0, 0.0, 0.0)
    producer = producer_of(value)
    if depth == 0 or producer is None:
        return None
    if is_onnx(producer, "Pow"):
        return _power(_polynomial(producer.inputs[0], source, depth - 1), scalar(argument(producer, 1)))
    if not is_onnx(producer, "Mul", "Div", "Add", "Sub"):
        return None
    left = _polynomial(producer.inputs[0], source, depth - 1)
    second = None if left is None else argument(producer, 1)
    if left is None or second is None:
        return None
    if producer.op_type in ("Mul", "Div"):
        factor = _second(producer.op_type, second, source, depth - 1)
        return None if factor is None else _times(left, factor)
    right = _polynomial(second, source, depth - 1)
    sign = 1.0 if producer.op_type == "Add" else -1.0
    return None if right is None else _four([a + sign * b for a, b in zip(left, right, strict=True)])


def _power(base: Polynomial | None, exponent: float | None) -> Polynomial | None:
    if base is None or exponent not in (1.0, 2.0, 3.0):
        return None
    result: Polynomial | None = base
    for _ in range(int(exponent) - 1):
        result = None if result is None else _times(result, base)
    return result


def _times(left: Polynomial, right: Polynomial) -> Polynomial | None:
    """The product of two polynomials; None if its degree is above 3."""
    product = [0.0] * 7
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] += a * b
    return None if any(product[4:]) else _four(product[:4])


def _four(coefficients: Sequence[float]) -> Polynomial:
    constant, linear, square, cube = coefficients
    return constant, linear, square, cube
