"""Reductions over any axes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layer import Attribute
from nnstretch.passes.rewriting import (
    Lowerings,
    become,
    constant,
    constant_integers,
    float_initializer,
    float_shape,
    insert,
)

_MODES = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceSumSquare": "squares",
    "ReduceProd": "product",
}
_AFTER = {"l1": "sum", "squares": "sum"}
"""Mode of a reduction -> mode that joins its results; the mode itself for others, but for "l2"."""


def lower_reduction(node: ir.Node) -> bool:
    """Reductions become Reduce over neighbouring axes, one after another; a sum over H and W is a mean times their product."""
    source, shape, result = node.inputs[0], float_shape(node.inputs[0]), float_shape(node.outputs[0])
    if source is None or not shape or result is None or constant(source) is not None:
        return False
    axes = _axes(node, len(shape))
    if not axes:
        return False
    mode = _MODES[node.op_type]
    if mode == "sum" and len(shape) == 4 and axes == (2, 3):
        pooled = insert(node, "GlobalPool", (source,), (*shape[:2], 1, 1), {"mode": "average"})
        count = float_initializer(node, "pixels", np.array(shape[2] * shape[3]))
        total = insert(node, "Mul", (pooled, count), (*shape[:2], 1, 1))
        return become(node, "Reshape", (total,))
    groups = _neighbours(axes, shape)
    if mode == "l2" and len(groups) > 1:
        return False
    for group in groups[:-1]:
        shape = tuple(1 if axis in group else size for axis, size in enumerate(shape))
        source, mode = insert(node, "Reduce", (source,), shape, _attributes(group, mode)), _AFTER.get(mode, mode)
    return become(node, "Reduce", (source,), _attributes(groups[-1], mode))


def _attributes(axes: tuple[int, ...], mode: str) -> dict[str, Attribute]:
    return {"axes": axes, "mode": mode}


def _axes(node: ir.Node, rank: int) -> tuple[int, ...]:
    """The axes in order; none if they are not constant, or nothing is reduced."""
    axes = constant_integers(node, "axes", 1, ())
    if axes is None or (not axes and node.attributes.get_int("noop_with_empty_axes", False)):
        return ()
    return tuple(sorted({axis % rank for axis in axes})) or tuple(range(rank))


def _neighbours(axes: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes in groups of neighbours; an axis of length 1 between two belongs to their group."""
    groups = [[axes[0]]]
    for before, axis in itertools.pairwise(axes):
        if all(size == 1 for size in shape[before + 1 : axis]):
            groups[-1] += range(before + 1, axis + 1)
        else:
            groups.append([axis])
    return [tuple(group) for group in groups]


LOWERINGS: Lowerings = dict.fromkeys(_MODES, (lower_reduction,))
