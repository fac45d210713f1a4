"""Sums of convolutions and affine functions of one tensor become one convolution (RepVGG, arXiv:2101.03697, section 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Attribute
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes.rewriting import (
    activation_of,
    argument,
    become,
    constant,
    float_initializer,
    float_shape,
    graph_of,
    integers,
    is_canonical,
    producer_of,
    sole_use,
)

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Linear:
    """A convolution of `source`, or what equals one.

    Attributes:
        node: the layer; None for the source itself.
        source: what it reads.
        weight: float64, O,C/groups,KH,KW.
        bias: float64, O.
        strides, dilations: height and width.
        first: offset of the first tap from the pixel: the negative padding at the top and at the left.
        ends: padding at the bottom and at the right, at least.
        groups: of channels.
    """

    node: ir.Node | None
    source: ir.Value
    weight: np.ndarray
    bias: np.ndarray
    strides: Pair
    dilations: Pair
    first: Pair
    ends: Pair
    groups: int

    @property
    def last(self) -> Pair:
        """Offset of the last tap."""
        height, width = (
            (extent - 1) * step for extent, step in zip(self.weight.shape[2:], self.dilations, strict=True)
        )
        return self.first[0] + height, self.first[1] + width


def merge_parallel(node: ir.Node) -> bool:
    """A sum or difference of two convolutions, or of one and its input or an affine function of that, becomes a convolution.

    It must not take more multiply-adds than the two together.
    """
    shape = float_shape(node.outputs[0]) if is_canonical(node, "Add", "Sub") else None
    if shape is None or len(shape) != 4 or activation_of(node) != NO_ACTIVATION:
        return False
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None or float_shape(left) != shape or float_shape(right) != shape:
        return False
    pair = _with_one_source(left, right)
    place = node.metadata_props.get(PLACEMENT_KEY)
    parts = [part.node for part in pair or () if part.node is not None]
    if pair is None or any(part.metadata_props.get(PLACEMENT_KEY) != place for part in parts):
        return False
    if not any(part.op_type == "Conv" for part in parts):
        return False
    first, second = pair
    if node.op_type == "Sub":
        second = replace(second, weight=-second.weight, bias=-second.bias)
    merged = _sum(first, second)
    if merged is None:
        return False
    _become_convolution(node, merged, shape)
    for part in parts:
        graph_of(node).remove(part, safe=True)
    if merged.node is not None:
        node.name = merged.node.name
        node.metadata_props.clear()
        node.metadata_props.update(merged.node.metadata_props)
    return True


def _with_one_source(left: ir.Value, right: ir.Value) -> tuple[_Linear, _Linear] | None:
    """Both values as linear functions of one tensor; either may be that tensor itself."""
    first, second = _layer(left), _layer(right)
    if first is not None and second is not None and first.source is second.source:
        return first, second
    if first is not None and first.source is right:
        return first, _identity(right)
    if second is not None and second.source is left:
        return _identity(left), second
    return None


def _identity(value: ir.Value) -> _Linear:
    shape = float_shape(value)
    assert shape is not None
    return _diagonal(None, value, np.ones(shape[1]), np.zeros(shape[1]))


def _diagonal(node: ir.Node | None, source: ir.Value, scale: np.ndarray, shift: np.ndarray) -> _Linear:
    """A factor and a summand per channel."""
    weight = scale.astype(np.float64).reshape(-1, 1, 1, 1)
    return _Linear(node, source, weight, shift.astype(np.float64), (1, 1), (1, 1), (0, 0), (0, 0), scale.size)


def _layer(value: ir.Value) -> _Linear | None:
    """The convolution or affine function that nothing but the sum reads."""
    node = producer_of(value)
    if not is_canonical(node, "Conv", "Affine") or not sole_use(value) or activation_of(node) != NO_ACTIVATION:
        return None
    source, first, second = node.inputs[0], constant(node.inputs[1]), constant(argument(node, 2))
    if source is None or first is None or argument(node, 3) is not None:
        return None
    if node.op_type == "Affine":
        assert second is not None
        return _diagonal(node, source, first, second)
    bias = np.zeros(len(first)) if second is None else second.astype(np.float64)
    first = _with_all_inputs(first.astype(np.float64), source, node.attributes.get_int("groups", 1))
    pads, strides, dilations = (_pair(integers(node, name, ())) for name in ("pads", "strides", "dilations"))
    groups = node.attributes.get_int("groups", 1)
    begin, ends = (-pads[0], -pads[1]), (integers(node, "pads", ())[2], integers(node, "pads", ())[3])
    return _Linear(node, source, first, bias, strides, dilations, begin, ends, groups)


def _with_all_inputs(weight: np.ndarray, source: ir.Value, groups: int) -> np.ndarray:
    """The weight for all input channels, where one stands for all, as in predictions of branches."""
    shape = float_shape(source)
    channels = weight.shape[1] if shape is None else shape[1] // groups
    return np.broadcast_to(weight, (len(weight), channels, *weight.shape[2:]))


def _pair(values: tuple[int, ...]) -> Pair:
    return values[0], values[1]


def _sum(left: _Linear, right: _Linear) -> _Linear | None:
    """The convolution that is the sum of two; None if there is none, or it takes longer."""
    if left.strides != right.strides or len(left.bias) != len(right.bias):
        return None
    groups = math.gcd(left.groups, right.groups)
    wide, narrow = (
        (left, right) if math.prod(left.weight.shape[2:]) >= math.prod(right.weight.shape[2:]) else (right, left)
    )
    begin = (min(left.first[0], right.first[0]), min(left.first[1], right.first[1]))
    end = (max(left.last[0], right.last[0]), max(left.last[1], right.last[1]))
    ends = wide.ends if (begin, end) == (wide.first, wide.last) else (0, 0)
    spans = [last - first for first, last in zip(begin, end, strict=True)]
    if any(span % step for span, step in zip(spans, wide.dilations, strict=True)):
        return None
    extents = [span // step + 1 for span, step in zip(spans, wide.dilations, strict=True)]
    channels = left.weight.shape[1] * left.groups // groups
    total = np.zeros((len(left.bias), channels, *extents))
    if total.size > left.weight.size + right.weight.size:
        return None
    for part in (wide, narrow):
        rows, columns = (_places(part, axis, begin[axis], wide.dilations[axis]) for axis in (0, 1))
        if rows is None or columns is None:
            return None
        total[:, :, rows[:, None], columns] += _in_groups(part, groups)
    convolutions = [part.node for part in (wide, narrow) if is_canonical(part.node, "Conv")]
    convolutions.sort(key=lambda node: node.attributes.get_int("groups", 1) != groups)
    kept, bias = next(iter(convolutions), None), left.bias + right.bias
    return _Linear(kept, wide.source, total, bias, wide.strides, wide.dilations, begin, ends, groups)


def _places(part: _Linear, axis: int, begin: int, step: int) -> np.ndarray | None:
    """Where the taps of a convolution lie in a kernel whose first tap is at `begin`; None if between its taps."""
    offsets = part.first[axis] - begin + np.arange(part.weight.shape[2 + axis]) * part.dilations[axis]
    return offsets // step if not (offsets % step).any() else None


def _in_groups(part: _Linear, groups: int) -> np.ndarray:
    """The weights of a convolution with fewer groups, which divide its own."""
    outputs, each, height, width = part.weight.shape
    if groups == part.groups:
        return part.weight
    channels = each * part.groups // groups
    result = np.zeros((outputs, channels, height, width))
    output = np.arange(outputs)
    start = output // (outputs // part.groups) * each - output // (outputs // groups) * channels
    result[output[:, None], start[:, None] + np.arange(each)] = part.weight
    return result


def _become_convolution(node: ir.Node, merged: _Linear, shape: tuple[int, ...]) -> None:
    source_shape = float_shape(merged.source)
    assert source_shape is not None
    ends = [
        max(
            merged.ends[axis],
            (shape[2 + axis] - 1) * merged.strides[axis] + merged.last[axis] - source_shape[2 + axis] + 1,
        )
        for axis in (0, 1)
    ]
    weight = float_initializer(node, "weight", merged.weight)
    bias = float_initializer(node, "bias", merged.bias) if merged.bias.any() else None
    attributes: dict[str, Attribute] = {
        "strides": merged.strides,
        "pads": (-merged.first[0], -merged.first[1], *ends),
        "dilations": merged.dilations,
        "groups": merged.groups,
    }
    become(node, "Conv", (merged.source, weight, bias), attributes)
