"""Pools as modules of torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.nn import functional

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.frontends.torch_from_onnx.windows import padded, pads_of
from nnstretch.passes.rewriting import integers

_MAX: dict[int, Any] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_AVERAGE: dict[int, Any] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_ADAPTIVE: dict[int, tuple[Any, Any]] = {
    1: (nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}


def _window(
    build: Builder, node: ir.Node
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]:
    """Kernel, strides, dilations, pads before and after, and whether sizes are rounded up."""
    kernel = integers(node, "kernel_shape", ())
    rank = len(kernel)
    if rank not in _MAX or build.axes(node.inputs[0]) != rank + 2:
        raise UnsupportedError(f"it pools over {rank} axes")
    strides, dilations = integers(node, "strides", (1,) * rank), integers(node, "dilations", (1,) * rank)
    before, after = pads_of(node, build.shape(node.inputs[0])[2:], kernel, strides, dilations)
    return kernel, strides, dilations, before, after, bool(node.attributes.get_int("ceil_mode", 0))


def _max_pool(build: Builder, node: ir.Node) -> Built:
    """MaxPool; pads that torch does not take are added before it."""
    if any(output.uses() for output in node.outputs[1:]):
        raise UnsupportedError("the indices of its maxima are read")
    kernel, strides, dilations, before, after, ceil = _window(build, node)
    x = build.tensor(node.inputs[0])
    if before != after or any(2 * pad > length for pad, length in zip(before, kernel, strict=True)):
        x, before = padded(build, node, x, before, after, -math.inf), (0,) * len(kernel)
    return build.layer(node, _MAX[len(kernel)](kernel, strides, before, dilations, ceil_mode=ceil), x)


def _average_pool(build: Builder, node: ir.Node) -> Built:
    """AveragePool; where the pads of both ends differ, sums are divided by the number of elements that count."""
    kernel, strides, dilations, before, after, ceil = _window(build, node)
    counts_pads = bool(node.attributes.get_int("count_include_pad", 0))
    if any(length != 1 for length in dilations):
        raise UnsupportedError("its window is dilated")
    rank, x = len(kernel), build.tensor(node.inputs[0])
    if before == after and all(2 * pad <= length for pad, length in zip(before, kernel, strict=True)):
        return build.layer(node, _AVERAGE[rank](kernel, strides, before, ceil, counts_pads), x)
    pool = _AVERAGE[rank](kernel, strides, 0, ceil)
    summed = build.layer(node, pool, padded(build, node, x, before, after))
    if counts_pads:
        return summed
    pads = tuple(n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair)
    ones = functional.pad(torch.ones(1, 1, *build.shape(node.inputs[0])[2:]), pads)
    counted: np.ndarray = np.asarray(1.0 / pool(ones).numpy(), np.float32)
    shares = build.attribute(f"{node.name or 'pool'}.shares", counted, learnable=False)
    return build.call(torch.mul, summed, shares)


def _global_pool(build: Builder, node: ir.Node) -> Built:
    rank = build.axes(node.inputs[0]) - 2
    if rank not in _ADAPTIVE:
        raise UnsupportedError(f"it pools over {rank} axes")
    kind = _ADAPTIVE[rank][node.op_type == "GlobalMaxPool"]
    return build.layer(node, kind(1), build.tensor(node.inputs[0]))


OPERATORS: Converters = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
}
