"""Elementwise operators, comparisons, reductions, and what is left of products, as functions of torch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.passes.rewriting import argument, constant, constant_integers

_BINARY: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Pow": torch.pow,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}
_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Neg": torch.neg,
    "Sqrt": torch.sqrt,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sign": torch.sign,
    "Floor": torch.floor,
    "Ceil": torch.ceil,
    "Round": torch.round,
    "Reciprocal": torch.reciprocal,
    "Erf": torch.erf,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tan": torch.tan,
    "Atan": torch.atan,
    "Not": torch.logical_not,
    "IsNaN": torch.isnan,
    # Where they are of other types than float32 they are no activations.
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMean": torch.mean,
    "ReduceSum": torch.sum,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceLogSumExp": torch.logsumexp,
}
_DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT64: torch.int64,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT8: torch.int8,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.BOOL: torch.bool,
}


def torch_dtype(dtype: ir.DataType | None) -> torch.dtype:
    """Type of a tensor's elements. Raises UnsupportedError."""
    if dtype not in _DTYPES:
        raise UnsupportedError(f"a tensor has elements of type {dtype.name if dtype else 'unknown'}")
    return _DTYPES[dtype]


def _binary(build: Builder, node: ir.Node) -> Built:
    left, right = _operands(build, node)
    return build.call(_BINARY[node.op_type], left, right)


def _operands(build: Builder, node: ir.Node) -> tuple[Any, Any]:
    """Both operands; constants of one element as numbers, unless both would be, or the number has the higher rank."""
    axes = build.axes(node.outputs[0])
    found = [
        build.operand(value) if value is not None and build.axes(other) == axes else build.tensor(value)
        for value, other in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0]))
    ]
    if not any(isinstance(value, fx.Node) for value in found):
        found[0] = build.tensor(node.inputs[0])
    if not isinstance(found[0], fx.Node) and node.op_type not in ("Add", "Sub", "Mul", "Div"):
        found[0] = build.tensor(node.inputs[0])
    return found[0], found[1]


def _divide(build: Builder, node: ir.Node) -> Built:
    left, right = _operands(build, node)
    dtype = node.outputs[0].dtype
    if dtype is not None and dtype.is_integer():
        return build.call(torch.div, left, right, rounding_mode="trunc")
    return build.call(operator.truediv, left, right)


def _modulo(build: Builder, node: ir.Node) -> Built:
    function = torch.fmod if node.attributes.get_int("fmod", 0) else torch.remainder
    return build.call(function, build.tensor(node.inputs[0]), build.operand(node.inputs[1]))


def _unary(build: Builder, node: ir.Node) -> Built:
    return build.call(_UNARY[node.op_type], build.tensor(node.inputs[0]))


def _several(build: Builder, node: ir.Node) -> Built:
    """Max, Min, Sum and Mean of any number of tensors."""
    function: Callable[..., Any] = {"Max": torch.maximum, "Min": torch.minimum}.get(node.op_type, operator.add)
    if node.op_type in ("Max", "Min") and len(node.inputs) == 2:
        for value, other in (node.inputs, tuple(reversed(node.inputs))):
            bound = constant(other)
            if bound is not None and bound.size == 1 and build.axes(value) == build.axes(node.outputs[0]):
                limit = {"min" if node.op_type == "Max" else "max": bound.reshape(()).item()}
                return build.call(torch.clamp, build.tensor(value), **limit)
    total = functools.reduce(lambda a, b: build.call(function, a, b), map(build.tensor, node.inputs))
    return build.call(operator.truediv, total, len(node.inputs)) if node.op_type == "Mean" else total


def _clip(build: Builder, node: ir.Node) -> Built:
    low, high = (None if argument(node, index) is None else build.operand(argument(node, index)) for index in (1, 2))
    if isinstance(low, fx.Node) != isinstance(high, fx.Node) and None not in (low, high):
        raise UnsupportedError("one of its bounds is computed in the run")
    return build.call(torch.clamp, build.tensor(node.inputs[0]), low, high)


def _cast(build: Builder, node: ir.Node) -> Built:
    return build.method("to", build.tensor(node.inputs[0]), torch_dtype(node.outputs[0].dtype))


def _where(build: Builder, node: ir.Node) -> Built:
    chosen = [build.operand(value) for value in node.inputs[1:3]]
    if not any(isinstance(value, fx.Node) for value in chosen):
        chosen[0] = build.tensor(node.inputs[1])
    return build.call(torch.where, build.tensor(node.inputs[0]), *chosen)


def _axes(build: Builder, node: ir.Node) -> list[int] | None:
    """The axes that a reduction is over, from the first; None where it reduces nothing."""
    rank = build.axes(node.inputs[0])
    axes = constant_integers(node, "axes", 1, ())
    if axes is None:
        raise UnsupportedError("its axes are computed in the run")
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return None
    return sorted(axis % rank for axis in axes) if axes else list(range(rank))


def _reduce(build: Builder, node: ir.Node) -> Built:
    axes, x = _axes(build, node), build.tensor(node.inputs[0])
    if axes is None:
        return x
    return build.call(_REDUCTIONS[node.op_type], x, axes, bool(node.attributes.get_int("keepdims", 1)))


def _reduce_other(build: Builder, node: ir.Node) -> Built:
    """Reductions that torch writes with two functions."""
    axes, x, keep = _axes(build, node), build.tensor(node.inputs[0]), bool(node.attributes.get_int("keepdims", 1))
    if axes is None:
        raise UnsupportedError("it reduces no axis")
    if node.op_type == "ReduceProd":
        for axis in reversed(axes):
            x = build.call(torch.prod, x, axis, keep)
        return x
    before, after = {
        "ReduceL1": (torch.abs, None),
        "ReduceL2": (torch.square, torch.sqrt),
        "ReduceSumSquare": (torch.square, None),
        "ReduceLogSum": (None, torch.log),
    }[node.op_type]
    total = build.call(torch.sum, x if before is None else build.call(before, x), axes, keep)
    return total if after is None else build.call(after, total)


def _arg(build: Builder, node: ir.Node) -> Built:
    """ArgMax and ArgMin: the first of equal elements."""
    if node.attributes.get_int("select_last_index", 0):
        raise UnsupportedError("it selects the last of equal elements")
    function: Callable[..., Any] = torch.argmax if node.op_type == "ArgMax" else torch.argmin
    keep = bool(node.attributes.get_int("keepdims", 1))
    return build.call(function, build.tensor(node.inputs[0]), node.attributes.get_int("axis", 0), keep)


def _top_k(build: Builder, node: ir.Node) -> Built:
    count = constant(argument(node, 1))
    if count is None:
        raise UnsupportedError("the number of elements is computed in the run")
    axis, largest = node.attributes.get_int("axis", -1), bool(node.attributes.get_int("largest", 1))
    return build.parts(build.call(torch.topk, build.tensor(node.inputs[0]), int(count.reshape(())), axis, largest), 2)


def _cumulative(build: Builder, node: ir.Node) -> Built:
    axis = build.constant(argument(node, 1), "the axis")
    if node.attributes.get_int("exclusive", 0) or node.attributes.get_int("reverse", 0):
        raise UnsupportedError("it sums backwards, or without the element itself")
    return build.call(torch.cumsum, build.tensor(node.inputs[0]), int(np.reshape(axis, ())))


def _einsum(build: Builder, node: ir.Node) -> Built:
    return build.call(torch.einsum, node.attributes.get_string("equation", ""), *map(build.tensor, node.inputs))


OPERATORS: Converters = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), _several),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceProd"), _reduce_other),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Div": _divide,
    "Mod": _modulo,
    "Clip": _clip,
    "Cast": _cast,
    "Where": _where,
    "TopK": _top_k,
    "CumSum": _cumulative,
    "Einsum": _einsum,
}
