"""Matrix products with a constant matrix."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from nnstretch.passes.quantize.qdq import transposed_weight
from nnstretch.passes.rewriting import (
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    insert,
    integer,
    is_onnx,
    number,
)


def lower_dense(node: ir.Node) -> bool:
    """Gemm and MatMul with constant weights become Dense with a weight of M,K, between reshapes if need be."""
    if is_onnx(node, "Gemm"):
        return _lower_gemm(node)
    if is_onnx(node, "MatMul"):
        return _lower_matmul(node)
    return False


def _lower_gemm(node: ir.Node) -> bool:
    shape, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    matrix = constant(argument(node, 1))
    if shape is None or result is None or matrix is None or integer(node, "transA", 0):
        return False
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
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
    weight = _weight(node, matrix, alpha, transposed=not integer(node, "transB", 0))
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


def _lower_matmul(node: ir.Node) -> bool:
    source, matrix = node.inputs[0], constant(argument(node, 1))
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if shape is None or result is None or matrix is None or matrix.ndim != 2 or len(shape) < 2 or not math.prod(shape):
        return False
    if len(shape) == 2:
        return become(node, "Dense", (source, _weight(node, matrix), None, None))
    rows = math.prod(shape[:-1])
    flat = insert(node, "Reshape", (source,), (rows, shape[-1]))
    product = insert(node, "Dense", (flat, _weight(node, matrix), None, None), (rows, matrix.shape[1]))
    return become(node, "Reshape", (product,))
