"""Convolutions and dense layers with constant weights, as modules of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx, nn
from torch.nn import functional

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.frontends.torch_from_onnx.names import is_named
from nnstretch.frontends.torch_from_onnx.windows import padded, pads_of
from nnstretch.passes.rewriting import argument, constant, integers, is_onnx, sole_use

_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def _conv(build: Builder, node: ir.Node) -> Built:
    """Conv; a sum with one constant per channel that follows becomes its bias."""
    weight = build.constant(argument(node, 1), "the kernel")
    rank, groups = weight.ndim - 2, node.attributes.get_int("group", 1)
    if rank not in _CONVOLUTIONS:
        raise UnsupportedError(f"its kernel has the shape {list(weight.shape)}")
    kernel, strides, dilations = weight.shape[2:], _each(node, "strides", rank), _each(node, "dilations", rank)
    before, after = pads_of(node, build.shape(node.inputs[0])[2:], kernel, strides, dilations)
    x = build.tensor(node.inputs[0])
    if before != after:
        x, before = padded(build, node, x, before, after), (0,) * rank
    bias, end = _bias(build, node, weight.shape[0], channel_axis=1)
    module = _CONVOLUTIONS[rank](
        weight.shape[1] * groups, weight.shape[0], kernel, strides, before, dilations, groups, bias is not None, device="meta"
    )  # fmt: skip
    return _ended(build, node, build.layer(node, module, x, {"weight": weight, "bias": bias}, node.inputs[1:3]), end)


def _conv_transpose(build: Builder, node: ir.Node) -> Built:
    """ConvTranspose. Pads that differ at both ends become a crop of the result."""
    weight = build.constant(argument(node, 1), "the kernel")
    rank, groups = weight.ndim - 2, node.attributes.get_int("group", 1)
    if rank not in _TRANSPOSED:
        raise UnsupportedError(f"its kernel has the shape {list(weight.shape)}")
    strides, dilations = _each(node, "strides", rank), _each(node, "dilations", rank)
    sizes, results = build.shape(node.inputs[0])[2:], build.shape(node.outputs[0])[2:]
    whole = [
        (size - 1) * stride + (length - 1) * dilation + 1
        for size, stride, length, dilation in zip(sizes, strides, weight.shape[2:], dilations, strict=True)
    ]
    begin = _first_pads(node, whole, results)
    ends = [full - result - first for first, full, result in zip(begin, whole, results, strict=True)]
    surplus = [max(0, first - last) for first, last in zip(begin, ends, strict=True)]
    if any(more >= max(pair) for more, pair in zip(surplus, zip(strides, dilations, strict=True), strict=True)):
        raise UnsupportedError("its result is larger than its kernel reaches")
    bias, end = _bias(build, node, weight.shape[1] * groups, channel_axis=1)
    module = _TRANSPOSED[rank](
        weight.shape[0], weight.shape[1] * groups, weight.shape[2:], strides, tuple(begin), tuple(surplus), groups,
        bias is not None, dilations, device="meta",
    )  # fmt: skip
    y = build.layer(node, module, build.tensor(node.inputs[0]), {"weight": weight, "bias": bias}, node.inputs[1:3])
    cut = [max(0, last - first) for first, last in zip(begin, ends, strict=True)]
    if any(cut):
        y = build.call(functional.pad, y, [n for length in reversed(cut) for n in (0, -length)])
    return _ended(build, node, y, end)


def _first_pads(node: ir.Node, whole: Sequence[int], results: Sequence[int]) -> list[int]:
    """Elements that are cut from the beginning of each axis of a transposed convolution."""
    rank = len(whole)
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * rank
    if mode == "NOTSET" and "output_shape" not in node.attributes:
        return list(integers(node, "pads", (0,) * (2 * rank))[:rank])
    cut = [full - result for full, result in zip(whole, results, strict=True)]
    return [total // 2 if mode == "SAME_UPPER" else (total + 1) // 2 for total in cut]


def _gemm(build: Builder, node: ir.Node) -> Built:
    """Gemm; with a constant matrix a dense layer."""
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    weight, bias = constant(argument(node, 1)), constant(argument(node, 2))
    turned = node.attributes.get_int("transA", 0)
    is_dense = weight is not None and not turned and (bias is not None or argument(node, 2) is None)
    if weight is not None and is_dense:
        matrix = weight if node.attributes.get_int("transB", 0) else weight.T
        shift = None if bias is None else _spread(bias * np.float32(beta), len(matrix))
        if bias is None or shift is not None:
            return _linear(build, node, matrix * np.float32(alpha), shift, node.inputs[1:3])
    left, right = build.tensor(node.inputs[0]), build.tensor(node.inputs[1])
    left = build.call(torch.t, left) if turned else left
    right = build.call(torch.t, right) if node.attributes.get_int("transB", 0) else right
    product = build.call(torch.matmul, left, right)
    if argument(node, 2) is None:
        return build.call(torch.mul, product, alpha) if alpha != 1.0 else product
    return build.call(torch.add, build.call(torch.mul, product, alpha), build.operand(node.inputs[2]), alpha=beta)


def _matmul(build: Builder, node: ir.Node) -> Built:
    """MatMul; with a constant matrix on the right a dense layer, whose bias may follow."""
    weight = constant(argument(node, 1))
    if weight is None or weight.ndim != 2 or constant(node.inputs[0]) is not None or build.axes(node.inputs[0]) < 2:
        return build.call(torch.matmul, build.tensor(node.inputs[0]), build.tensor(node.inputs[1]))
    axes = build.axes(node.outputs[0])
    bias, end = _bias(build, node, weight.shape[1], channel_axis=axes - 1)
    return _ended(build, node, _linear(build, node, weight.T, bias, (node.inputs[1],)), end)


def _linear(
    build: Builder, node: ir.Node, matrix: np.ndarray, bias: np.ndarray | None, weights: Sequence[ir.Value | None]
) -> fx.Node:
    module = nn.Linear(matrix.shape[1], matrix.shape[0], bias is not None, device="meta")
    tensors = {"weight": np.ascontiguousarray(matrix), "bias": bias}
    return build.layer(node, module, build.tensor(node.inputs[0]), tensors, weights)


def _gather(build: Builder, node: ir.Node) -> Built:
    """Gather along one axis; rows of a constant matrix are an embedding."""
    data, indices = node.inputs[0], node.inputs[1]
    axis = node.attributes.get_int("axis", 0) % build.axes(data)
    table, wanted = constant(data), constant(indices)
    if wanted is None:
        if table is None or axis != 0 or table.ndim != 2:
            raise UnsupportedError("it picks elements by indices that are computed in the run")
        module = nn.Embedding(table.shape[0], table.shape[1], device="meta")
        return build.layer(node, module, build.tensor(indices), {"weight": table}, (data,))
    wanted = np.where(wanted < 0, wanted + build.shape(data)[axis], wanted)
    x = build.tensor(data)
    if wanted.ndim == 0:
        return build.call(torch.select, x, axis, int(wanted))
    index = build.attribute(f"{node.name or 'gather'}.index", wanted.reshape(-1).astype(np.int64), learnable=False)
    picked = build.call(torch.index_select, x, axis, index)
    return picked if wanted.ndim == 1 else build.call(torch.unflatten, picked, axis, wanted.shape)


def _bias(build: Builder, node: ir.Node, length: int, channel_axis: int) -> tuple[np.ndarray | None, ir.Value | None]:
    """The bias of a layer: its own, or that of a sum with one constant per channel, its only reader.

    Returns:
        The bias, and the output of the sum if that is where it comes from.
    """
    own = argument(node, 2) if is_onnx(node, "Conv", "ConvTranspose") else None
    if own is not None:
        bias = build.constant(own, "the bias")
        # torch's exporter writes zeros where a convolution has no bias.
        return (bias if bias.any() or is_named(own) else None), None
    result = node.outputs[0]
    reader = next(iter(result.consumers()), None) if sole_use(result) else None
    if not is_onnx(reader, "Add"):
        return None, None
    (other,) = [value for value in reader.inputs if value is not result] or [None]
    array, axes = constant(other), build.axes(result)
    if array is None or array.dtype != np.float32 or array.size != length or array.ndim > axes:
        return None, None
    shape = (1,) * (axes - array.ndim) + array.shape
    if length == 1 or shape[channel_axis] != length:
        return None, None
    return array.reshape(-1), reader.outputs[0]


def _ended(build: Builder, node: ir.Node, built: fx.Node, end: ir.Value | None) -> fx.Node:
    """The layer; where a sum became its bias, that is the layer, too."""
    if end is not None:
        build.absorb(node, end, built)
    return built


def _each(node: ir.Node, name: str, rank: int) -> tuple[int, ...]:
    return integers(node, name, (1,) * rank)


def _spread(array: np.ndarray, length: int) -> np.ndarray | None:
    """A bias of Gemm with one element per output; None if it differs from row to row."""
    if array.size == 1:
        return np.full(length, array.reshape(()), np.float32)
    return array.reshape(-1) if array.size == length == array.shape[-1] else None


def _prelu(build: Builder, node: ir.Node) -> Built:
    """PRelu with a slope for each channel, or for other elements."""
    slope = build.constant(argument(node, 1), "the slope")
    x, axes = build.tensor(node.inputs[0]), build.axes(node.inputs[0])
    channels = build.shape(node.inputs[0])[1] if axes > 1 else 1
    shape = (1,) * (axes - slope.ndim) + slope.shape
    if (
        slope.size in (1, channels)
        and shape[1:2] in ((slope.size,), (1,))
        and (slope.size == 1 or shape[1] == channels)
    ):
        module = nn.PReLU(slope.size, device="meta")
        return build.layer(node, module, x, {"weight": slope.reshape(-1)}, (node.inputs[1],))
    scaled = build.call(torch.mul, x, build.tensor(node.inputs[1]))
    return build.call(torch.where, build.call(torch.lt, x, 0), scaled, x)


def _dropout(build: Builder, node: ir.Node) -> Built:
    ratio = constant(argument(node, 1))
    share = node.attributes.get_float("ratio", 0.5) if ratio is None else float(ratio)
    return build.layer(node, nn.Dropout(share), build.tensor(node.inputs[0]))


OPERATORS: Converters = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Gather": _gather,
    "PRelu": _prelu,
    "Dropout": _dropout,
}
