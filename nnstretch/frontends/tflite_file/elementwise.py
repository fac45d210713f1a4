"""Elementwise operators, reductions and softmax of TFLite as operators of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from nnstretch.frontends.tflite_file.flat import FlatOperator
from nnstretch.frontends.tflite_file.importer import TO_FIRST, Importer, UnsupportedError
from nnstretch.frontends.tflite_file.layers import Lowering, activated, axis_in_first, numbers_of

_UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "DEQUANTIZE": "Identity",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGICAL_NOT": "Not",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "QUANTIZE": "Identity",
    "RELU": "Relu",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
_BINARY = {
    "ADD": "Add",
    "DIV": "Div",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "MUL": "Mul",
    "POW": "Pow",
    "SUB": "Sub",
}
_REDUCTIONS = {
    "MEAN": "ReduceMean",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "SUM": "ReduceSum",
}
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


def operands(build: Importer, numbers: Sequence[int], rank: int) -> tuple[list[ir.Value], bool]:
    """Operands of an operator that broadcasts, and whether they are N,C,H,W."""
    if rank != 4 or not any(build.is_map(number) for number in numbers):
        return [build.plain(number) for number in numbers], False
    found = []
    for number in numbers:
        shape = build.tensor(number).shape
        if len(shape) in (0, 4):
            found.append(build.first(number) if shape else build.plain(number))
        elif build.is_constant(number):
            array = build.array(number)
            whole = array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(TO_FIRST)
            found.append(build.constant(whole, build.tensor(number).name))
        else:
            padded = build.integers((1,) * (4 - len(shape)) + shape, "shape")
            reshaped = build.add("Reshape", [build.plain(number), padded])
            found.append(build.add("Transpose", [reshaped], {"perm": TO_FIRST}))
    return found, True


def set_result(build: Importer, number: int, value: ir.Value, *, is_first: bool) -> None:
    """Makes `value` a computed tensor, in the form in which its operands were."""
    (build.set_first if is_first else build.set_plain)(number, value)


def one(build: Importer, number: int) -> tuple[ir.Value, bool]:
    """A tensor in a form that is at hand, and whether it is N,C,H,W."""
    is_first = build.is_map(number)
    return (build.first(number) if is_first else build.plain(number)), is_first


def _unary(build: Importer, operator: FlatOperator) -> None:
    x, is_first = one(build, operator.inputs[0])
    set_result(build, operator.outputs[0], build.add(_UNARY[operator.name], [x]), is_first=is_first)


def _binary(build: Importer, operator: FlatOperator) -> None:
    number = operator.outputs[0]
    values, is_first = operands(build, operator.inputs, len(build.tensor(number).shape))
    y = build.add(_BINARY[operator.name], values)
    kind = getattr(operator.options, "fusedActivationFunction", 0)
    set_result(build, number, activated(build, y, kind), is_first=is_first)


def _squared_difference(build: Importer, operator: FlatOperator) -> None:
    number = operator.outputs[0]
    values, is_first = operands(build, operator.inputs, len(build.tensor(number).shape))
    difference = build.add("Sub", values)
    set_result(build, number, build.add("Mul", [difference, difference]), is_first=is_first)


def _activation(build: Importer, operator: FlatOperator) -> None:
    """Activations with constants, and functions that ONNX writes with two operators."""
    x, is_first = one(build, operator.inputs[0])
    name, options = operator.name, operator.options
    if name in _CLIPS:
        low, high = _CLIPS[name]
        y = build.add("Clip", [x, build.number(low), build.number(high)])
    elif name == "LEAKY_RELU":
        y = build.add("LeakyRelu", [x], {"alpha": float(options.alpha)})
    elif name == "ELU":
        y = build.add("Elu", [x])
    elif name == "GELU":
        y = build.add("Gelu", [x], {"approximate": "tanh" if options.approximate else "none"})
    elif name == "RSQRT":
        y = build.add("Reciprocal", [build.add("Sqrt", [x])])
    else:
        y = build.add("Mul", [x, x])
    set_result(build, operator.outputs[0], y, is_first=is_first)


def _softmax(build: Importer, operator: FlatOperator) -> None:
    """SOFTMAX and LOG_SOFTMAX over the last axis."""
    x, is_first = one(build, operator.inputs[0])
    beta = getattr(operator.options, "beta", 1.0)
    if beta not in (0.0, 1.0):
        x = build.add("Mul", [x, build.number(beta)])
    op_type = "LogSoftmax" if operator.name == "LOG_SOFTMAX" else "Softmax"
    set_result(build, operator.outputs[0], build.add(op_type, [x], {"axis": 1 if is_first else -1}), is_first=is_first)


def _reduce(build: Importer, operator: FlatOperator) -> None:
    source, number = operator.inputs[0], operator.outputs[0]
    rank, keep = len(build.tensor(source).shape), bool(operator.options.keepDims)
    axes = sorted({axis % rank for axis in numbers_of(build.array(operator.inputs[1]))})
    # Without the reduced axes, the order of those that stay must be that of the file: N,C without H and W is.
    use_first = build.is_map(source) and (keep or set(axes) >= {1, 2} or 3 in axes)
    x = build.first(source) if use_first else build.plain(source)
    over = sorted(map(axis_in_first, axes)) if use_first else axes
    attributes = {"keepdims": int(keep)}
    y = build.add(_REDUCTIONS[operator.name], [x, build.integers(over, "axes")], attributes)
    set_result(build, number, y, is_first=use_first and keep)


def _arg(build: Importer, operator: FlatOperator) -> None:
    source, number = operator.inputs[0], operator.outputs[0]
    rank = len(build.tensor(source).shape)
    (axis,) = numbers_of(build.array(operator.inputs[1]))
    op_type = "ArgMax" if operator.name == "ARG_MAX" else "ArgMin"
    is_first = build.is_map(source) and axis % rank == 3
    x = build.first(source) if is_first else build.plain(source)
    y = build.add(op_type, [x], {"axis": 1 if is_first else axis % rank, "keepdims": 0})
    build.set_plain(number, _cast(build, y, build.tensor(number).dtype))


def _cast_operator(build: Importer, operator: FlatOperator) -> None:
    x, is_first = one(build, operator.inputs[0])
    number = operator.outputs[0]
    set_result(build, number, _cast(build, x, build.tensor(number).dtype), is_first=is_first)


def _cast(build: Importer, value: ir.Value, dtype: str) -> ir.Value:
    types: dict[str, Any] = {
        "float32": ir.DataType.FLOAT, "int32": ir.DataType.INT32, "int64": ir.DataType.INT64, "bool": ir.DataType.BOOL,
    }  # fmt: skip
    if dtype not in types:
        raise UnsupportedError(f"it makes {dtype}")
    return build.add("Cast", [value], {"to": types[dtype].value})


def _select(build: Importer, operator: FlatOperator) -> None:
    number = operator.outputs[0]
    values, is_first = operands(build, operator.inputs, len(build.tensor(number).shape))
    set_result(build, number, build.add("Where", values), is_first=is_first)


def _normalize(build: Importer, operator: FlatOperator) -> None:
    """L2_NORMALIZATION over the last axis."""
    x, is_first = one(build, operator.inputs[0])
    y = build.add("LpNormalization", [x], {"axis": 1 if is_first else -1, "p": 2})
    set_result(build, operator.outputs[0], y, is_first=is_first)


LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys((*_CLIPS, "LEAKY_RELU", "ELU", "GELU", "RSQRT", "SQUARE"), _activation),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX"), _softmax),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg),
    **dict.fromkeys(("SELECT", "SELECT_V2"), _select),
    "SQUARED_DIFFERENCE": _squared_difference,
    "CAST": _cast_operator,
    "L2_NORMALIZATION": _normalize,
}
