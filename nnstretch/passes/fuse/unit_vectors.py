"""Tensors that are divided by their Euclidean norms over some axes: x / max(|x|, epsilon)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from nnstretch.passes.canonicalize.activations import bounds_of
from nnstretch.passes.rewriting import (
    activation_of,
    argument,
    constant_integers,
    float_shape,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
)

_LEAST_NORM = 1.0842022e-19
"""The root of the least float32 number that is not denormal: smaller sums of squares become zero when a network runs."""


@dataclass(frozen=True)
class UnitVectors:
    """A tensor divided by its norms.

    Attributes:
        source: the tensor.
        axes: over which each norm is taken, in order.
        epsilon: the least divisor, above 0.
    """

    source: ir.Value
    axes: tuple[int, ...]
    epsilon: float


def unit_vectors(node: ir.Node | None) -> UnitVectors | None:
    """What `node` divides by its norms; None if it computes something else.

    Divisors are spelt as torch's exporters do, x / clip(ReduceL2(x)), or with the root of a sum of squares.
    LpNormalization leaves vectors of zeros.
    """
    source, shape = (None, None) if node is None else (argument(node, 0), float_shape(argument(node, 0)))
    if node is None or source is None or not shape:
        return None
    if is_onnx(node, "LpNormalization"):
        of_norm = node.attributes.get_int("p", 2) == 2
        axis = node.attributes.get_int("axis", -1) % len(shape)
        return UnitVectors(source, (axis,), _LEAST_NORM) if of_norm else None
    if not is_onnx(node, "Div"):
        return None
    divisor, epsilon = argument(node, 1), 0.0
    bounded = producer_of(divisor)
    lowest = None if bounded is None else _lowest(bounded)
    if bounded is not None and lowest is not None:
        divisor, epsilon = bounded.inputs[0], lowest
    axes = _axes_of_norm(producer_of(divisor), source)
    if axes is None or not epsilon > 0.0 or shape != float_shape(node.outputs[0]):
        return None
    return UnitVectors(source, axes, max(epsilon, _LEAST_NORM))


def _lowest(node: ir.Node) -> float | None:
    """The lower bound of an activation that has no other effect on norms."""
    bounds = bounds_of(activation_of(node)) if is_canonical(node, "Activation") else None
    # Exporters write the largest float32 for no upper bound.
    return bounds[0] if bounds is not None and bounds[1] > 3e38 else None


def _axes_of_norm(node: ir.Node | None, source: ir.Value) -> tuple[int, ...] | None:
    """The axes, kept with extent 1, over which `node` computes the norm of `source`; None if it does not."""
    if is_onnx(node, "ReduceL2"):
        return _reduced(node) if node.inputs[0] is source else None
    total = producer_of(node.inputs[0]) if is_onnx(node, "Sqrt") else None
    if is_onnx(total, "ReduceSumSquare"):
        return _reduced(total) if total.inputs[0] is source else None
    squares = producer_of(total.inputs[0]) if is_onnx(total, "ReduceSum") else None
    return _reduced(total) if total is not None and _is_square(squares, source) else None


def _is_square(node: ir.Node | None, source: ir.Value) -> bool:
    if is_onnx(node, "Mul"):
        return all(value is source for value in node.inputs)
    return is_onnx(node, "Pow") and node.inputs[0] is source and scalar(node.inputs[1]) == 2.0


def _reduced(node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a reduction that keeps them with extent 1; None if it does not, or some are computed in the run."""
    shape = float_shape(node.inputs[0])
    axes = constant_integers(node, "axes", 1, ())
    if not shape or not axes or not node.attributes.get_int("keepdims", 1):
        return None
    return tuple(sorted(axis % len(shape) for axis in axes))
