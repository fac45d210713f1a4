"""Sums, differences, products and quotients of two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import (
    become,
    constant,
    float_initializer,
    float_shape,
    insert,
    is_onnx,
)

# Elements up to which a constant operand may be repeated until it has the shape of the other operand.
_LARGEST_OPERAND = 1 << 22


def lower_elementwise(node: ir.Node) -> bool:
    """Add, Sub, Mul, Div and Sum of float32 become canonical, those with a constant per channel Affine."""
    if is_onnx(node, "Sum") and len(node.inputs) > 1:
        return _lower_sum(node)
    if not is_onnx(node, "Add", "Sub", "Mul", "Div"):
        return False
    left, right = constant(node.inputs[0]), constant(node.inputs[1])
    if left is None and right is None:
        return _lower_binary(node)
    # Two constants are folded elsewhere, or too large to be.
    return (left is None or right is None) and _lower_with_constant(node)


def _lower_sum(node: ir.Node) -> bool:
    result = float_shape(node.outputs[0])
    if result is None or any(float_shape(value) != result for value in node.inputs):
        return False
    total = node.inputs[0]
    for value in node.inputs[1:-1]:
        total = insert(node, "Add", (total, value), result)
    return become(node, "Add", (total, node.inputs[-1]))


def _lower_binary(node: ir.Node) -> bool:
    left, right, result = (float_shape(value) for value in (*node.inputs[:2], node.outputs[0]))
    if left is None or right is None or node.op_type == "Div":
        return False
    if left == result and _fits(right, result):
        return become(node, node.op_type, node.inputs[:2])
    if right == result and node.op_type != "Sub" and _fits(left, result):
        return become(node, node.op_type, node.inputs[1::-1])
    return False


def _fits(operand: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether an operand of this shape may stand second in a canonical element-wise layer."""
    if operand == result or math.prod(operand) == 1:
        return True
    if len(result) != 4:
        return False
    padded = (1,) * (4 - len(operand)) + operand
    return padded in ((*result[:2], 1, 1), (1, result[1], 1, 1))


@dataclass(frozen=True)
class _Line:
    """scale * x + shift: one is an operand, which may have to be broadcast, the other is 1, -1 or 0."""

    scale: np.ndarray
    shift: np.ndarray


def _line(op_type: str, operand: np.ndarray, first: bool) -> _Line | None:
    """What `x op operand` (or `operand op x` if `first`) does to x."""
    one, zero, value = np.ones(1), np.zeros(1), operand.astype(np.float64)
    if op_type == "Add":
        return _Line(one, value)
    if op_type == "Mul":
        return _Line(value, zero)
    if op_type == "Sub":
        return _Line(-one, value) if first else _Line(one, -value)
    return None if first or not value.all() else _Line(1.0 / value, zero)


def _lower_with_constant(node: ir.Node) -> bool:
    first = constant(node.inputs[0]) is not None
    source, operand = node.inputs[1 if first else 0], constant(node.inputs[0 if first else 1])
    shape = float_shape(source)
    if operand is None or shape is None or shape != float_shape(node.outputs[0]):
        return False
    line = _line(node.op_type, operand, first)
    if line is None:
        return False
    if len(shape) >= 2 and _per_channel(operand.shape, shape):
        channels = shape[1]
        scale = float_initializer(node, "scale", _channels(line.scale, channels))
        shift = float_initializer(node, "shift", _channels(line.shift, channels))
        return become(node, "Affine", (source, scale, shift))
    if first and node.op_type == "Sub":
        return False
    op_type, value = ("Mul", line.scale) if node.op_type in ("Mul", "Div") else ("Add", line.shift)
    if operand.size == 1:
        value = value.reshape(())
    elif math.prod(shape) <= _LARGEST_OPERAND:
        value = np.broadcast_to(value, shape)
    else:
        return False
    return become(node, op_type, (source, float_initializer(node, "operand", value)))


def _per_channel(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `operand` has one value in all, or one per channel (axis 1) of `shape`."""
    if math.prod(operand) == 1:
        return True
    padded = (1,) * (len(shape) - len(operand)) + operand
    return padded == (1, shape[1], *(1,) * (len(shape) - 2))


def _channels(values: np.ndarray, channels: int) -> np.ndarray:
    return np.broadcast_to(values.reshape(-1), (channels,))
