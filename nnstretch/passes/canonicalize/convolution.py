"""2-D convolutions with constant weights, and the arithmetic of windows that pooling shares."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    argument,
    become,
    constant,
    float_shape,
    integer,
    integers,
    is_onnx,
    text,
)


def lower_convolution(node: ir.Node) -> bool:
    """Conv over N,C,H,W with constant weights becomes canonical; `auto_pad` becomes explicit pads."""
    if not is_onnx(node, "Conv"):
        return False
    source, weight, bias = node.inputs[0], constant(argument(node, 1)), constant(argument(node, 2))
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if shape is None or result is None or len(shape) != 4 or weight is None:
        return False
    if argument(node, 2) is not None and bias is None:
        return False
    strides, dilations = integers(node, "strides", (1, 1)), integers(node, "dilations", (1, 1))
    pads = explicit_pads(node, shape[2:], weight.shape[2:], strides, dilations)
    if min(pads) < 0:
        return False
    attributes: dict[str, Attribute] = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": integer(node, "group", 1),
    }
    # Exporters write a bias of zeros where there was none.
    bias_value = argument(node, 2) if bias is not None and bias.any() else None
    return become(node, "Conv", (source, argument(node, 1), bias_value, None), attributes)


def explicit_pads(
    node: ir.Node,
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, int, int, int]:
    """Pads (top, left, bottom, right) of a convolution or pooling node over images of `size` (h, w)."""
    mode = text(node, "auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        top, left, bottom, right = integers(node, "pads", (0, 0, 0, 0))
        return top, left, bottom, right
    if mode == "VALID":
        return 0, 0, 0, 0
    begins, ends = [], []
    for length, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        steps = -(-length // stride)
        total = max((steps - 1) * stride + extent(taps, dilation) - length, 0)
        begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
        begins.append(begin)
        ends.append(total - begin)
    return begins[0], begins[1], ends[0], ends[1]


def extent(taps: int, dilation: int) -> int:
    """Pixels from the first to the last tap of a window, both counted."""
    return (taps - 1) * dilation + 1
