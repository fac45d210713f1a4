"""Pads of convolutions and pools, which ONNX may give per end of an axis, and torch takes per axis."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from torch import fx, nn
from torch.nn import functional

from nnstretch.frontends.torch_from_onnx.builder import Builder
from nnstretch.passes.rewriting import integers


def pads_of(
    node: ir.Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements that a window operator pads before and after each axis, also where it says so by a mode.

    Args:
        node: Conv or a pool.
        sizes: of the map.
        kernel: sizes of the window.
        strides: of the window.
        dilations: of the window.
    """
    rank = len(sizes)
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max(0, ((size + stride - 1) // stride - 1) * stride + (length - 1) * dilation + 1 - size)
            for size, length, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        less, more = (tuple(total // 2 for total in totals), tuple((total + 1) // 2 for total in totals))
        return (less, more) if mode == "SAME_UPPER" else (more, less)
    pads = integers(node, "pads", (0,) * (2 * rank))
    return pads[:rank], pads[rank:]


def padded(
    build: Builder, node: ir.Node, x: fx.Node, before: Sequence[int], after: Sequence[int], value: float = 0.0
) -> fx.Node:
    """`x` with elements of `value` around its map."""
    pads = tuple(n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair)
    if value == 0.0 and len(before) == 2:
        left, right, top, bottom = pads
        return build.layer(node, nn.ZeroPad2d((left, right, top, bottom)), x)
    return build.call(functional.pad, x, pads, value=value)
