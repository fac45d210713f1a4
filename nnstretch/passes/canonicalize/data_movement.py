"""Operators that move elements and change none: transpositions, slices, concatenations, splits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import onnx_ir as ir

from nnstretch.graph.dtypes import ELEMENT_TYPES
from nnstretch.passes.rewriting import (
    argument,
    become,
    constant,
    float_shape,
    graph_of,
    insert,
    integer,
    integers,
    is_onnx,
    quantization_of,
    set_quantization,
    shape_of,
)

_Shape = Callable[[ir.Value | None], tuple[int, ...] | None]
"""The shape of a value whose type a pass rewrites; None for other values."""


def lower_transpose(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Transpose becomes canonical; those that only move axes of length 1 are Reshapes already."""
    shape = shape_of_moved(node.inputs[0]) if is_onnx(node, "Transpose") else None
    if shape is None or constant(node.inputs[0]) is not None:
        return False
    order = integers(node, "perm", tuple(reversed(range(len(shape)))))
    return become(node, "Transpose", node.inputs[:1], {"perm": order})


def lower_slice(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Slice with constant bounds and steps forward becomes canonical."""
    if not is_onnx(node, "Slice"):
        return False
    shape, result = shape_of_moved(node.inputs[0]), shape_of_moved(node.outputs[0])
    if shape is None or not result or constant(node.inputs[0]) is not None or 0 in result:
        return False
    bounds = _bounds(node, len(shape))
    if bounds is None:
        return False
    starts, steps = [0] * len(shape), [1] * len(shape)
    for axis, (start, end, step) in bounds.items():
        if step < 1:
            return False
        taken = range(*slice(start, end, step).indices(shape[axis]))
        assert len(taken) == result[axis]
        starts[axis], steps[axis] = taken.start, step
    return become(node, "Slice", node.inputs[:1], {"starts": tuple(starts), "steps": tuple(steps)})


def _bounds(node: ir.Node, rank: int) -> dict[int, tuple[int, int, int]] | None:
    """Start, end and step per axis that is sliced: attributes up to opset 9, then inputs; None if not constant."""
    if "starts" in node.attributes:
        starts, ends = integers(node, "starts", ()), integers(node, "ends", ())
        axes, steps = integers(node, "axes", range(len(starts))), (1,) * len(starts)
    else:
        found = [_constant_integers(argument(node, index)) for index in (1, 2)]
        if found[0] is None or found[1] is None:
            return None
        starts, ends = found[0], found[1]
        optional: list[Sequence[int]] = []
        for index, default in ((3, range(len(starts))), (4, (1,) * len(starts))):
            stated = default if argument(node, index) is None else _constant_integers(argument(node, index))
            if stated is None:
                return None
            optional.append(stated)
        axes, steps = tuple(optional[0]), tuple(optional[1])
    sliced = zip(axes, starts, ends, steps, strict=True)
    return {axis % rank: (start, end, step) for axis, start, end, step in sliced}


def _constant_integers(value: ir.Value | None) -> tuple[int, ...] | None:
    array = constant(value)
    return None if array is None else tuple(int(element) for element in array.reshape(-1))


def lower_concat(node: ir.Node, shape_of_moved: _Shape = float_shape) -> bool:
    """Concat of run-time tensors becomes canonical."""
    shape = shape_of_moved(node.outputs[0])
    if not is_onnx(node, "Concat") or shape is None:
        return False
    if any(shape_of_moved(value) is None or constant(value) is not None for value in node.inputs):
        return False
    return become(node, "Concat", tuple(node.inputs), {"axis": integer(node, "axis", 0) % len(shape)})


def lower_other_types(node: ir.Node) -> bool:
    """Transpose, Slice and Concat of other types than float32 become canonical, once quantised layers are known.

    They move integers whatever these stand for; all of a node's tensors get the quantisation parameters that one of them has.
    """
    if not is_onnx(node, "Transpose", "Slice", "Concat"):
        return False
    values = [
        value for value in (*node.inputs[: None if node.op_type == "Concat" else 1], *node.outputs) if value is not None
    ]
    quantizations = {quantization for value in values if (quantization := quantization_of(value)) is not None}
    lowered = len(quantizations) <= 1 and any(
        lower(node, _shape_of_other_type) for lower in (lower_transpose, lower_slice, lower_concat)
    )
    if lowered:
        for value, quantization in itertools.product(values, quantizations):
            set_quantization(value, quantization)
    return lowered


def _shape_of_other_type(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value whose elements are of a type that the engine moves, but not of float32; not of an empty one."""
    shape = shape_of(value)
    if value is None or value.dtype in (None, ir.DataType.STRING, ir.DataType.FLOAT) or not shape or 0 in shape:
        return None
    row = ELEMENT_TYPES.get(value.dtype.numpy().name)
    return shape if row is not None and row.code else None


def lower_split(node: ir.Node) -> bool:
    """Split becomes one Slice for each of its outputs that is used."""
    if not is_onnx(node, "Split"):
        return False
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    parts = [float_shape(output) for output in node.outputs]
    if source is None or shape is None or constant(source) is not None:
        return False
    axis, start = integer(node, "axis", 0) % len(shape), 0
    if any(part is None or 0 in part for part in parts):
        return False
    for output, part in zip(tuple(node.outputs), parts, strict=True):
        assert part is not None
        starts = tuple(start if index == axis else 0 for index in range(len(shape)))
        start += part[axis]
        if output.uses() or output.is_graph_output():
            value = insert(node, "Slice", (source,), part, {"starts": starts, "steps": (1,) * len(shape)})
            output.replace_all_uses_with(value, replace_graph_outputs=True)
            value.name, output.name = output.name, None
    graph_of(node).remove(node, safe=True)
    return True
