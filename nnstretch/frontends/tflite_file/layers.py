"""Convolutions, dense layers, pools and resizing of TFLite as operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.frontends.tflite_file.flat import FlatOperator
from nnstretch.frontends.tflite_file.importer import FIRST_AXIS, TO_FIRST, Importer, UnsupportedError

Lowering = Callable[[Importer, FlatOperator], None]
"""Adds what an operator of TFLite computes. Raises UnsupportedError."""
_SAME = 0
"""Padding with which the result has the size of the map over the stride; 1 is none."""
_OIHW = (0, 3, 1, 2)
_IOHW = (3, 0, 1, 2)


def activated(build: Importer, value: ir.Value, kind: int) -> ir.Value:
    """The fused activation of an operator, by its number in the schema."""
    if kind == 0:
        return value
    if kind == 1:
        return build.add("Relu", [value])
    if kind in (2, 3):
        low, high = ((-1.0, 1.0), (0.0, 6.0))[kind - 2]
        return build.add("Clip", [value, build.number(low), build.number(high)])
    if kind == 4:
        return build.add("Tanh", [value])
    raise UnsupportedError(f"it ends with activation {kind}")


def same_pads(size: int, window: int, stride: int) -> tuple[int, int]:
    """Elements before and after an axis of `size` with which a window makes `size / stride` results."""
    total = max(0, ((size + stride - 1) // stride - 1) * stride + window - size)
    return total // 2, total - total // 2


def _conv(build: Importer, operator: FlatOperator) -> None:
    x, weight, options = operator.inputs[0], operator.inputs[1], operator.options
    out, height, width, per_group = build.tensor(weight).shape
    shape = build.tensor(x).shape
    if per_group == 0 or shape[3] % per_group:
        raise UnsupportedError(f"its kernel reads {per_group} of {shape[3]} channels")
    kernel = build.weight(weight, _OIHW, (out, per_group, height, width), 0, quantized=_is_quantised(build, x))
    groups = shape[3] // per_group
    _finish_conv(build, operator, kernel, (height, width), groups, (options.dilationHFactor, options.dilationWFactor))


def _depthwise(build: Importer, operator: FlatOperator) -> None:
    x, weight, options = operator.inputs[0], operator.inputs[1], operator.options
    _, height, width, out = build.tensor(weight).shape
    kernel = build.weight(weight, _IOHW, (out, 1, height, width), 0, quantized=_is_quantised(build, x))
    groups = build.tensor(x).shape[3]
    _finish_conv(build, operator, kernel, (height, width), groups, (options.dilationHFactor, options.dilationWFactor))


def _finish_conv(
    build: Importer,
    operator: FlatOperator,
    kernel: ir.Value,
    window: tuple[int, int],
    groups: int,
    dilations: tuple[int, int],
) -> None:
    x, options = operator.inputs[0], operator.options
    strides = (options.strideH, options.strideW)
    reach = [(length - 1) * dilation + 1 for length, dilation in zip(window, dilations, strict=True)]
    attributes: dict[str, Any] = {
        "kernel_shape": window,
        "strides": strides,
        "dilations": dilations,
        "group": groups,
        "pads": _pads(options.padding, build.tensor(x).shape[1:3], reach, strides),
    }
    y = build.add("Conv", [build.first(x), kernel, *_bias(build, operator, 2)], attributes)
    build.set_first(operator.outputs[0], activated(build, y, options.fusedActivationFunction))


def _transpose_conv(build: Importer, operator: FlatOperator) -> None:
    """TRANSPOSE_CONV: the shape of the result is its first input."""
    weight, x, options = operator.inputs[1], operator.inputs[2], operator.options
    out, height, width, channels = build.tensor(weight).shape
    kernel = build.weight(weight, _IOHW, (channels, out, height, width), 1, quantized=_is_quantised(build, x))
    sizes, results = build.tensor(x).shape[1:3], build.tensor(operator.outputs[0]).shape[1:3]
    strides = (options.strideH, options.strideW)
    whole = [(size - 1) * stride + length for size, stride, length in zip(sizes, strides, (height, width), strict=True)]
    cut = [max(0, full - result) for full, result in zip(whole, results, strict=True)]
    before = [total // 2 if options.padding == _SAME else 0 for total in cut]
    attributes: dict[str, Any] = {
        "kernel_shape": (height, width),
        "strides": strides,
        "pads": (*before, *(total - first for total, first in zip(cut, before, strict=True))),
        "output_padding": [max(0, result - full) for full, result in zip(whole, results, strict=True)],
    }
    y = build.add("ConvTranspose", [build.first(x), kernel, *_bias(build, operator, 3)], attributes)
    build.set_first(operator.outputs[0], activated(build, y, getattr(options, "fusedActivationFunction", 0)))


def _dense(build: Importer, operator: FlatOperator) -> None:
    """FULLY_CONNECTED: of the last axis, or of everything but the batch."""
    x, weight, options = operator.inputs[0], operator.inputs[1], operator.options
    out, inner = build.tensor(weight).shape
    if options.weightsFormat != 0:
        raise UnsupportedError("its weights are shuffled")
    shape, result = build.tensor(x).shape, build.tensor(operator.outputs[0]).shape
    quantized = _is_quantised(build, x)
    if len(result) == 2 and build.is_constant(weight):
        matrix = build.weight(weight, (0, 1), (out, inner), 0, quantized=quantized)
        rows = build.plain(x) if len(shape) == 2 else rows_of(build, x, (result[0], inner))
        y = build.add("Gemm", [rows, matrix, *_bias(build, operator, 2)], {"transB": 1})
    else:
        if build.is_constant(weight):
            matrix = build.weight(weight, (1, 0), (inner, out), 1, quantized=quantized)
        else:
            matrix = build.add("Transpose", [build.plain(weight)], {"perm": (1, 0)})
        y = build.add("MatMul", [build.plain(x), matrix])
        for bias in _bias(build, operator, 2):
            y = build.add("Add", [y, bias])
    build.set_plain(operator.outputs[0], activated(build, y, options.fusedActivationFunction))


def rows_of(build: Importer, number: int, shape: Sequence[int]) -> ir.Value:
    """A tensor reshaped in the file's order of elements; from N,C,H,W where that is the same order."""
    extents = build.tensor(number).shape
    is_same = build.is_map(number) and (extents[1] * extents[2] == 1 or extents[3] == 1)
    source = build.first(number) if is_same else build.plain(number)
    return build.add("Reshape", [source, build.integers(shape, "shape")])


def _pool(build: Importer, operator: FlatOperator) -> None:
    x, options = operator.inputs[0], operator.options
    window, strides = (options.filterHeight, options.filterWidth), (options.strideH, options.strideW)
    attributes: dict[str, Any] = {
        "kernel_shape": window,
        "strides": strides,
        "pads": _pads(options.padding, build.tensor(x).shape[1:3], window, strides),
    }
    op_type = "MaxPool" if operator.name == "MAX_POOL_2D" else "AveragePool"
    if op_type == "AveragePool" and window == build.tensor(x).shape[1:3] and not any(attributes["pads"]):
        y = build.add("GlobalAveragePool", [build.first(x)])
    else:
        y = build.add(op_type, [build.first(x)], attributes)
    build.set_first(operator.outputs[0], activated(build, y, options.fusedActivationFunction))


def _resize(build: Importer, operator: FlatOperator) -> None:
    options, is_linear = operator.options, operator.name == "RESIZE_BILINEAR"
    shape = build.tensor(operator.outputs[0]).shape
    place = "half_pixel" if options.halfPixelCenters else "align_corners" if options.alignCorners else "asymmetric"
    attributes: dict[str, Any] = {
        "mode": "linear" if is_linear else "nearest",
        "coordinate_transformation_mode": place,
        "nearest_mode": "floor" if place == "asymmetric" else "round_prefer_ceil",
    }
    sizes = build.integers([shape[axis] for axis in TO_FIRST], "sizes")
    build.set_first(
        operator.outputs[0], build.add("Resize", [build.first(operator.inputs[0]), None, None, sizes], attributes)
    )


def _blocks(build: Importer, operator: FlatOperator) -> None:
    name = {"DEPTH_TO_SPACE": "DepthToSpace", "SPACE_TO_DEPTH": "SpaceToDepth"}[operator.name]
    y = build.add(name, [build.first(operator.inputs[0])], {"blocksize": operator.options.blockSize})
    build.set_first(operator.outputs[0], y)


def _prelu(build: Importer, operator: FlatOperator) -> None:
    x, slope = operator.inputs[0], build.array(operator.inputs[1])
    if len(build.tensor(x).shape) == 4:
        whole = slope.reshape((1,) * (4 - slope.ndim) + slope.shape).transpose(TO_FIRST)
        name = build.tensor(operator.inputs[1]).name
        factor = build.constant(whole[0] if whole.shape[0] == 1 else whole, name)
        build.set_first(operator.outputs[0], build.add("PRelu", [build.first(x), factor]))
    else:
        factor = build.constant(slope, build.tensor(operator.inputs[1]).name)
        build.set_plain(operator.outputs[0], build.add("PRelu", [build.plain(x), factor]))


def _batch_matmul(build: Importer, operator: FlatOperator) -> None:
    sides = []
    for number, turned in zip(operator.inputs, (operator.options.adjX, operator.options.adjY), strict=True):
        value, axes = build.plain(number), len(build.tensor(number).shape)
        if turned:
            value = build.add("Transpose", [value], {"perm": (*range(axes - 2), axes - 1, axes - 2)})
        sides.append(value)
    build.set_plain(operator.outputs[0], build.add("MatMul", sides))


def _bias(build: Importer, operator: FlatOperator, index: int) -> list[ir.Value]:
    """The bias of a layer, if it has one."""
    number = operator.inputs[index] if len(operator.inputs) > index else -1
    if number < 0:
        return []
    tensor = build.tensor(number)
    return [build.weight(number, range(len(tensor.shape)), tensor.shape, 0, quantized=tensor.dtype == "int32")]


def _is_quantised(build: Importer, number: int) -> bool:
    return build.tensor(number).quantization is not None


def _pads(padding: int, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    if padding != _SAME:
        return (0, 0, 0, 0)
    ends = [same_pads(*three) for three in zip(sizes, window, strides, strict=True)]
    return (ends[0][0], ends[1][0], ends[0][1], ends[1][1])


def axis_in_first(axis: int) -> int:
    """Where an axis of N,H,W,C is in N,C,H,W."""
    return FIRST_AXIS[axis % 4]


def numbers_of(array: np.ndarray) -> list[int]:
    """A constant of integers as a list."""
    return [int(n) for n in array.reshape(-1)]


LOWERINGS: Mapping[str, Lowering] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose_conv,
    "FULLY_CONNECTED": _dense,
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "DEPTH_TO_SPACE": _blocks,
    "SPACE_TO_DEPTH": _blocks,
    "PRELU": _prelu,
    "BATCH_MATMUL": _batch_matmul,
}
