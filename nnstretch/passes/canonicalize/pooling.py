"""Pooling over N,C,H,W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from nnstretch.passes.canonicalize.convolution import explicit_pads, extent
from nnstretch.passes.rewriting import (
    axes_of,
    become,
    float_shape,
    insert,
    integer,
    integers,
    is_onnx,
)

_GLOBAL_MODES = {
    "GlobalAveragePool": "average",
    "GlobalMaxPool": "max",
    "ReduceMean": "average",
    "ReduceMax": "max",
}


def lower_pooling(node: ir.Node) -> bool:
    """MaxPool, AveragePool, global pools and means over H and W become canonical.

    Ceil mode becomes larger pads at the bottom and right, which give the shape and do not change the values.
    """
    if is_onnx(node, "MaxPool", "AveragePool"):
        return _lower_window(node)
    if is_onnx(node, *_GLOBAL_MODES):
        return _lower_global(node)
    return False


@dataclass(frozen=True)
class _Window:
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, int, int, int]


def _lower_window(node: ir.Node) -> bool:
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None or len(source) != 4:
        return False
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    kernel = integers(node, "kernel_shape", ())
    strides, dilations = integers(node, "strides", (1, 1)), integers(node, "dilations", (1, 1))
    stated = explicit_pads(node, source[2:], kernel, strides, dilations)
    pads = _pads_for(source[2:], result[2:], _Window(kernel, strides, dilations, stated))
    if pads is None:
        return False
    maximum, counts_pads = node.op_type == "MaxPool", integer(node, "count_include_pad", 0)
    if not any(pads) and kernel == source[2:] and result[2:] == (1, 1):
        return become(node, "GlobalPool", node.inputs[:1], {"mode": "max" if maximum else "average"})
    if maximum:
        return become(
            node,
            "MaxPool",
            node.inputs[:1],
            {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations},
        )
    # What ceil mode adds behind the pads is never counted in a mean, which pads cannot say.
    if dilations != (1, 1) or (counts_pads and pads != stated):
        return False
    # Without pads both ways of counting are the same, and a layer should have one name.
    return become(
        node,
        "AveragePool",
        node.inputs[:1],
        {
            "kernel": kernel,
            "strides": strides,
            "pads": pads,
            "count_include_pad": counts_pads if any(pads) else 0,
        },
    )


def _pads_for(size: Sequence[int], result: Sequence[int], window: _Window) -> tuple[int, int, int, int] | None:
    """The pads of `window`, those at bottom and right made large enough for `result`; None if none are sound.

    Every window must hold at least one pixel of the image, or a mean would divide by zero.
    """
    begins, ends = window.pads[:2], list(window.pads[2:])
    for axis in range(2):
        span = extent(window.kernel[axis], window.dilations[axis])
        last = (result[axis] - 1) * window.strides[axis] - begins[axis]
        ends[axis] = max(ends[axis], last + span - size[axis])
        steps = (size[axis] + begins[axis] + ends[axis] - span) // window.strides[axis] + 1
        if steps != result[axis] or begins[axis] >= span or last >= size[axis] or min(begins[axis], ends[axis]) < 0:
            return None
        # Taps of a dilated window can all miss the image although its extent covers it.
        if window.dilations[axis] > 1 and (begins[axis] or ends[axis]) and span > size[axis]:
            return None
    return begins[0], begins[1], ends[0], ends[1]


def _lower_global(node: ir.Node) -> bool:
    source, result = float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or result is None or len(source) != 4:
        return False
    if node.op_type.startswith("Reduce") and axes_of(node, 4) != (2, 3):
        return False
    attributes = {"mode": _GLOBAL_MODES[node.op_type]}
    pooled = (*source[:2], 1, 1)
    if result == pooled:
        return become(node, "GlobalPool", node.inputs[:1], attributes)
    value = insert(node, "GlobalPool", node.inputs[:1], pooled, attributes)
    return become(node, "Reshape", (value,))
