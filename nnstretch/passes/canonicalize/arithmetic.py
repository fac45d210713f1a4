"""Arithmetic of two tensors, functions of one that are arithmetic, and products with a constant matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.passes.quantization import transposed_weight
from nnstretch.passes.rewriting import (
    Lowerings,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    insert,
    integers,
    is_canonical,
    is_onnx,
    producer_of,
    scalar,
    sole_use,
)

# Elements up to which a constant operand may be repeated until it has the shape of the other operand.
_LARGEST_OPERAND = 1 << 22


def lower_elementwise(node: ir.Node) -> bool:
    """Arithmetic of two float32 tensors becomes canonical, that with a constant per channel Affine."""
    if len(node.inputs) != 2:
        return False
    left, right = constant(node.inputs[0]), constant(node.inputs[1])
    if left is None and right is None:
        return _lower_binary(node)
    # Two constants are folded elsewhere, or too large to be.
    return (left is None or right is None) and _lower_with_constant(node)


def lower_chain(node: ir.Node) -> bool:
    """Sum, Max and Min of more than two tensors of one shape become a chain of Add, Max or Min."""
    op_type, result = {"Sum": "Add"}.get(node.op_type, node.op_type), float_shape(node.outputs[0])
    if result is None or len(node.inputs) < 2 or any(float_shape(value) != result for value in node.inputs):
        return False
    if constant(node.inputs[0]) is not None:
        return False
    total = node.inputs[0]
    for value in node.inputs[1:-1]:
        total = insert(node, op_type, (total, value), result)
    return become(node, op_type, (total, node.inputs[-1]))


def lower_function(node: ir.Node) -> bool:
    """Pow with 2 or 3 becomes products, Neg a product with -1, and Abs an activation."""
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    if source is None or not shape or shape != float_shape(node.outputs[0]) or constant(source) is not None:
        return False
    if node.op_type == "Abs":
        return become(node, "Activation", (source,), activation=Activation(ActivationKind.LEAKY_RELU, -1.0))
    if node.op_type == "Neg":
        return become(node, "Mul", (source, float_initializer(node, "sign", np.array(-1.0))))
    exponent = scalar(argument(node, 1))
    if exponent not in (2.0, 3.0):
        return False
    factor = source if exponent == 2.0 else insert(node, "Mul", (source, source), shape)
    return become(node, "Mul", (factor, source))


def _lower_binary(node: ir.Node) -> bool:
    left, right, result = (float_shape(value) for value in (*node.inputs[:2], node.outputs[0]))
    if left is None or right is None or result is None:
        return False
    commutes = node.op_type not in ("Sub", "Div")
    if left == result and _fits(right, result):
        return become(node, node.op_type, node.inputs[:2])
    if right == result and commutes and _fits(left, result):
        return become(node, node.op_type, node.inputs[1::-1])
    if left == result and _lower_leading(node, node.inputs[:2], result):
        return True
    if right == result and commutes and _lower_leading(node, node.inputs[1::-1], result):
        return True
    operands = [
        value if shape == result else insert(node, "Expand", (value,), result)
        for value, shape in zip(node.inputs, (left, right), strict=True)
    ]
    return become(node, node.op_type, operands)


def _lower_leading(node: ir.Node, operands: Sequence[ir.Value | None], result: tuple[int, ...]) -> bool:
    """A second operand with the result's outer axes and 1 in the others is one value per channel of reshaped tensors."""
    large, small = operands
    shape = float_shape(small) or ()
    padded = (1,) * (len(result) - len(shape)) + shape
    outer = next((axis for axis in range(len(result)) if padded[axis] != result[axis]), len(result))
    if outer == 0 or any(size != 1 for size in padded[outer:]):
        return False
    channels, pixels = math.prod(result[:outer]), math.prod(result[outer:])
    image = (1, channels, pixels, 1)
    both = insert(node, "Reshape", (large,), image), insert(node, "Reshape", (small,), (1, channels, 1, 1))
    return become(node, "Reshape", (insert(node, node.op_type, both, image),))


def _fits(operand: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether an operand of this shape may stand second in a canonical element-wise layer."""
    if operand == result or math.prod(operand) == 1:
        return True
    if len(result) != 4:
        return False
    padded = (1,) * (4 - len(operand)) + operand
    return padded in ((*result[:2], 1, 1), (1, result[1], 1, 1))


def _line(op_type: str, operand: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and shift that `x op operand` (or `operand op x` if `first`) applies to x; None if it is not linear in x.

    One of the two has the operand's shape, the other is 1, -1 or 0.
    """
    one, zero, value = np.ones(1), np.zeros(1), operand.astype(np.float64)
    if op_type == "Add":
        return one, value
    if op_type == "Mul":
        return value, zero
    if op_type == "Sub":
        return (-one, value) if first else (one, -value)
    return None if op_type != "Div" or first or not value.all() else (1.0 / value, zero)


def _lower_with_constant(node: ir.Node) -> bool:
    first = constant(node.inputs[0]) is not None
    source, operand = node.inputs[1 if first else 0], constant(node.inputs[0 if first else 1])
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if operand is None or shape is None or result is None:
        return False
    line = _line(node.op_type, operand, first)
    if line is None and node.op_type not in ("Max", "Min"):
        return False
    if shape != result:
        if math.prod(result) > _LARGEST_OPERAND:
            return False
        source = insert(node, "Expand", (source,), result)
    if line is None:
        return _lower_spread(node, node.op_type, source, operand)
    if len(result) >= 2 and _per_channel(operand.shape, result):
        roles = zip(("scale", "shift"), line, strict=True)
        scale, shift = (float_initializer(node, role, np.broadcast_to(v.reshape(-1), result[1:2])) for role, v in roles)
        return become(node, "Affine", (source, scale, shift))
    if first and node.op_type == "Sub":
        minus = insert(node, "Mul", (source, float_initializer(node, "sign", np.array(-1.0))), result)
        return _lower_spread(node, "Add", minus, line[1])
    op_type, value = ("Mul", line[0]) if node.op_type in ("Mul", "Div") else ("Add", line[1])
    return _lower_spread(node, op_type, source, value)


def _lower_spread(node: ir.Node, op_type: str, source: ir.Value | None, value: np.ndarray) -> bool:
    """The node becomes `op_type` of `source`, which has the result's shape, and a constant that broadcasts to it."""
    shape = float_shape(node.outputs[0])
    assert shape is not None
    if value.size == 1:
        value = value.reshape(())
    elif value.shape != shape:
        if math.prod(shape) > _LARGEST_OPERAND:
            return False
        value = np.broadcast_to(value, shape)
    return become(node, op_type, (source, float_initializer(node, "operand", value)))


def _per_channel(operand: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `operand` has one value in all, or one per channel (axis 1) of `shape`."""
    if math.prod(operand) == 1:
        return True
    padded = (1,) * (len(shape) - len(operand)) + operand
    return padded == (1, shape[1], *(1,) * (len(shape) - 2))


def lower_gemm(node: ir.Node) -> bool:
    """Gemm with a constant matrix becomes Dense with a weight of M,K; its addend becomes bias or residual."""
    shape, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    matrix = constant(argument(node, 1))
    if shape is None or result is None or matrix is None or node.attributes.get_int("transA", 0) != 0:
        return False
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    bias: ir.Value | None = None
    residual: ir.Value | None = None
    addend = argument(node, 2)
    if addend is not None and beta != 0.0:
        array = constant(addend)
        if array is None:
            if float_shape(addend) != result or beta != 1.0:
                return False
            residual = addend
        else:
            rows = np.broadcast_to(array, result)
            if not (rows == rows[:1]).all():
                return False
            if rows[0].any():
                is_it = beta == 1.0 and array.shape == rows[0].shape
                bias = addend if is_it else float_initializer(node, "bias", beta * rows[0])
    weight = _weight(node, matrix, alpha, transposed=not node.attributes.get_int("transB", 0))
    return become(node, "Dense", (node.inputs[0], weight, bias, residual))


def _weight(node: ir.Node, matrix: np.ndarray, alpha: float = 1.0, *, transposed: bool = True) -> ir.Value:
    """The weight M,K from the node's, K,M if it is `transposed`: its own value where that is it already."""
    own = node.inputs[1]
    assert own is not None
    if alpha != 1.0:
        return float_initializer(node, "weight", alpha * (matrix.T if transposed else matrix))
    if not transposed:
        return own
    return transposed_weight(node, own) or float_initializer(node, "weight", matrix.T)


def lower_matmul(node: ir.Node) -> bool:
    """MatMul with a constant matrix becomes Dense with a weight of M,K, between reshapes if x has more than two axes."""
    source, matrix = node.inputs[0], constant(argument(node, 1))
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if shape is None or result is None or matrix is None or matrix.ndim != 2 or len(shape) < 2 or not math.prod(shape):
        return False
    if len(shape) == 2:
        return become(node, "Dense", (source, _weight(node, matrix), None, None))
    rows = math.prod(shape[:-1])
    flat = insert(node, "Reshape", (source,), (rows, shape[-1]))
    bias = _take_bias(node, matrix.shape[1])
    product = insert(node, "Dense", (flat, _weight(node, matrix), bias, None), (rows, matrix.shape[1]))
    return become(node, "Reshape", (product,))


def _take_bias(node: ir.Node, columns: int) -> ir.Value | None:
    """The constant row that the only reader of `node` adds; that Add becomes a Reshape."""
    value = node.outputs[0]
    reader = next(iter(value.consumers()), None) if sole_use(value) else None
    if not is_onnx(reader, "Add") or reader.graph is not node.graph:  # bodies of control flow stay as they are
        return None
    row = constant(reader.inputs[1 if reader.inputs[0] is value else 0])
    if row is None or row.size != columns or row.shape[-1:] != (columns,) or row.ndim > len(value.shape or ()):
        return None
    become(reader, "Reshape", (value,))
    return float_initializer(node, "bias", row.reshape(-1))


def lower_product(node: ir.Node) -> bool:
    """MatMul of tensors of two axes or more, one of which may be constant, becomes canonical and takes transpositions in."""
    if float_shape(node.outputs[0]) is None or len(node.inputs) != 2:
        return False
    operands, swapped = [], []
    for value in node.inputs:
        shape = float_shape(value)
        if shape is None or len(shape) < 2:
            return False
        mover, last = producer_of(value), len(shape) - 1
        swaps = is_canonical(mover, "Transpose") and integers(mover, "perm", ()) == (*range(last - 1), last, last - 1)
        operands.append(mover.inputs[0] if swaps and mover is not None else value)
        swapped.append(int(swaps))
    if all(constant(value) is not None for value in operands):
        return False
    return become(node, "MatMul", operands, {"transpose_x": swapped[0], "transpose_y": swapped[1]})


LOWERINGS: Lowerings = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), (lower_elementwise,)),
    **dict.fromkeys(("Max", "Min"), (lower_elementwise, lower_chain)),
    **dict.fromkeys(("Pow", "Neg", "Abs"), (lower_function,)),
    "Sum": (lower_chain,),
    "Gemm": (lower_gemm,),
    "MatMul": (lower_matmul, lower_product),
}
