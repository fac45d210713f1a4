"""Assignment to a part of a tensor, `x[:, 1:, 1:] = y`, as concatenations."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from nnstretch.passes.rewriting import (
    constant,
    float_initializer,
    float_shape,
    initializer,
    insert,
    reshaped,
    set_inputs,
)

_Range = tuple[int, int]
"""First index along an axis, and the one after the last."""


def expand_assignment(node: ir.Node) -> bool:
    """ScatterND whose constant indices are all of a box, in order, becomes Slice and Concat; all still of ONNX."""
    if node.attributes.get_string("reduction", "none") != "none":
        return False
    shape, indices = float_shape(node.inputs[0]), constant(node.inputs[1])
    updates = node.inputs[2]
    if shape is None or indices is None or updates is None or float_shape(updates) is None:
        return False
    box = _box(indices, shape)
    if box is None:
        return False
    made = [end - begin for begin, end in box]
    current = reshaped(node, updates, tuple(made))
    for axis in reversed(range(len(shape))):
        begin, end = box[axis]
        if made[axis] == shape[axis]:
            continue
        # Axes behind this one are whole by now; those before it have the box's range.
        sides = [
            [*box[:axis], side, *((0, size) for size in shape[axis + 1 :])] for side in ((0, begin), (end, shape[axis]))
        ]
        before, after = (_part(node, side) if side[axis][0] < side[axis][1] else None for side in sides)
        made[axis] = shape[axis]
        parts = [part for part in (before, current, after) if part is not None]
        current = insert(node, "Concat", parts, tuple(made), {"axis": axis}, domain="")
    node.op_type = "Identity"
    node.attributes.clear()
    set_inputs(node, (current,))
    return True


def _box(indices: np.ndarray, shape: tuple[int, ...]) -> list[_Range] | None:
    """The range of every axis, if the indices, shape (…, axes), are those of a box in row-major order."""
    count = indices.shape[-1]
    rows = indices.reshape(-1, count)
    if not rows.size or count == 0:
        return None
    rows = np.where(rows < 0, rows + np.array(shape[:count]), rows)
    begins, ends = rows.min(axis=0), rows.max(axis=0) + 1
    if math.prod((ends - begins).tolist()) != len(rows):
        return None
    grid = np.indices(tuple(ends - begins)).reshape(count, -1).T + begins
    if not np.array_equal(grid, rows):
        return None
    return [*zip(begins.tolist(), ends.tolist(), strict=True), *((0, size) for size in shape[count:])]


def _part(node: ir.Node, box: list[_Range]) -> ir.Value:
    """The part of the tensor that is assigned to which this box holds."""
    source = node.inputs[0]
    assert source is not None
    known = constant(source)
    if known is not None:
        return float_initializer(node, "part", known[tuple(slice(*bounds) for bounds in box)])
    starts, ends = (np.array(numbers) for numbers in zip(*box, strict=True))
    bounds = (initializer(node, "starts", starts), initializer(node, "ends", ends))
    return insert(node, "Slice", (source, *bounds), tuple(end - begin for begin, end in box), domain="")
