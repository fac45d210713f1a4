"""Transposed convolutions, as one convolution per phase of the output's pixels.

Output o of a transposed convolution with stride s sums x[i] * w[k] over all i * s + k = o + pad. So k is (o + pad) mod s plus
multiples of s: outputs of one phase, s apart, are a convolution of x with every s-th tap. Each has 1/s² of the taps of a
convolution over the input with zeros between its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    Lowerings,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    insert,
    integers,
)


@dataclass(frozen=True)
class _Phase:
    """A convolution along one axis that makes every s-th output.

    Attributes:
        taps: index of the transposed convolution's tap for each tap; -1 for a zero.
        begin: pixels of padding before the input.
        end: pixels of padding after it.
    """

    taps: tuple[int, ...]
    begin: int
    end: int


def _phases(size: int, taps: int, stride: int, pad: int, outputs: int) -> list[_Phase]:
    """The phases of an axis in the order of the outputs; each makes `outputs` pixels."""
    phases = []
    for first in range(stride):
        remainder = (first + pad) % stride
        own = list(range(remainder, taps, stride))[::-1] or [-1]
        lowest = (first + pad) // stride  # input that the last tap of output 0 reads
        begin, end = len(own) - 1 - lowest, lowest + outputs - size
        own = [-1] * max(0, -begin) + own + [-1] * max(0, -end)
        phases.append(_Phase(tuple(own), max(0, begin), max(0, end)))
    return phases


def lower_conv_transpose(node: ir.Node) -> bool:
    """ConvTranspose over N,C,H,W with equal strides becomes Conv, Concat and DepthToSpace, and Slice if the sizes need it."""
    source, weight, bias = node.inputs[0], constant(argument(node, 1)), constant(argument(node, 2))
    shape, result = float_shape(source), float_shape(node.outputs[0])
    if shape is None or result is None or len(shape) != 4 or weight is None:
        return False
    strides = integers(node, "strides", (1, 1))
    if (argument(node, 2) is not None and bias is None) or strides[0] != strides[1]:
        return False
    if set(integers(node, "dilations", (1, 1))) != {1}:
        return False
    stride, groups = strides[0], node.attributes.get_int("group", 1)
    begins = _begins(node, shape[2:], result[2:], weight.shape[2:], stride)
    if min(begins) < 0:
        return False
    sizes = tuple(-(-n // stride) for n in result[2:])
    axes = [_phases(shape[2 + axis], weight.shape[2 + axis], stride, begins[axis], sizes[axis]) for axis in range(2)]
    filters = _per_output(weight, groups)
    bias_value = argument(node, 2) if bias is not None and bias.any() else None
    if stride == 1:
        return become(node, "Conv", *_convolution(node, axes[0][0], axes[1][0], filters, bias_value, groups))
    phases = [(down, across) for down in axes[0] for across in axes[1]]
    made = (*shape[:1], result[1], *sizes)
    parts = (*made[:1], result[1] * stride * stride, *sizes)
    if groups == 1 and len({(len(d.taps), len(a.taps), d.begin, d.end, a.begin, a.end) for d, a in phases}) == 1:
        whole = np.concatenate([_taken(filters, down, across) for down, across in phases])
        rows = None if bias is None or bias_value is None else float_initializer(node, "bias", np.tile(bias, stride**2))
        inputs = (source, float_initializer(node, "weight", whole), rows, None)
        joined = insert(node, "Conv", inputs, parts, _attributes(*phases[0], 1))
    else:
        found = [_convolution(node, down, across, filters, bias_value, groups) for down, across in phases]
        joined = insert(node, "Concat", [insert(node, "Conv", i, made, a) for i, a in found], parts, {"axis": 1})
    tiles: dict[str, Attribute] = {"size": stride, "mode": "DCR"}
    full = (*shape[:1], result[1], *(n * stride for n in sizes))
    if full == result:
        return become(node, "DepthToSpace", (joined,), tiles)
    tiled = insert(node, "DepthToSpace", (joined,), full, tiles)
    return become(node, "Slice", (tiled,), {"starts": (0,) * 4, "steps": (1,) * 4})


def _begins(
    node: ir.Node, size: tuple[int, ...], result: tuple[int, ...], taps: tuple[int, ...], stride: int
) -> tuple[int, int]:
    """Padding before each axis: stated, or what makes the stated output."""
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    if mode in ("NOTSET", "") and "output_shape" not in node.attributes:
        top, left, *_ = integers(node, "pads", (0, 0, 0, 0))
        return top, left
    if mode == "VALID":
        return 0, 0
    more = integers(node, "output_padding", (0, 0))
    totals = [max(0, stride * (size[a] - 1) + more[a] + taps[a] - result[a]) for a in range(2)]
    top, left = (total // 2 if mode == "SAME_UPPER" else total - total // 2 for total in totals)
    return top, left


def _per_output(weight: np.ndarray, groups: int) -> np.ndarray:
    """Weights C,O/g,KH,KW of a transposed convolution as those O,C/g,KH,KW of a convolution."""
    inputs, outputs, *kernel = weight.shape
    apart = weight.reshape(groups, inputs // groups, outputs, *kernel)
    return apart.transpose(0, 2, 1, 3, 4).reshape(groups * outputs, inputs // groups, *kernel)


def _taken(filters: np.ndarray, down: _Phase, across: _Phase) -> np.ndarray:
    """The weights of the taps of two phases."""
    padded = np.pad(filters, ((0, 0), (0, 0), (0, 1), (0, 1)))  # tap -1 is a zero
    return padded[:, :, list(down.taps)][:, :, :, list(across.taps)]


def _attributes(down: _Phase, across: _Phase, groups: int) -> dict[str, Attribute]:
    return {
        "strides": (1, 1),
        "pads": (down.begin, across.begin, down.end, across.end),
        "dilations": (1, 1),
        "groups": groups,
    }


def _convolution(
    node: ir.Node, down: _Phase, across: _Phase, filters: np.ndarray, bias: ir.Value | None, groups: int
) -> tuple[tuple[ir.Value | None, ...], dict[str, Attribute]]:
    """Inputs and attributes of the Conv of two phases."""
    weight = float_initializer(node, "weight", _taken(filters, down, across))
    return (node.inputs[0], weight, bias, None), _attributes(down, across, groups)


LOWERINGS: Lowerings = {"ConvTranspose": (lower_conv_transpose,)}
