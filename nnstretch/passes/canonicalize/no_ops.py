"""Removal of nodes that compute what they are given."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.passes.rewriting import (
    argument,
    bypass,
    constant,
    integers,
    is_onnx,
    scalar,
    shape_of,
)

# Operators that change nothing when their result has the shape of their input.
_SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand")
_VARIADIC = ("Concat", "Sum", "Mean", "Max", "Min")


def remove_no_op(node: ir.Node) -> bool:
    """Identity, Dropout, and casts, reshapes, transpositions, pads, slices that change nothing."""
    return bool(node.inputs) and node.inputs[0] is not None and _changes_nothing(node) and bypass(node)


def _changes_nothing(node: ir.Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    if is_onnx(node, "Identity"):
        return True
    if is_onnx(node, "Dropout"):
        return not _trains(node)
    if is_onnx(node, "Cast", "CastLike"):
        return source.dtype is not None and source.dtype == result.dtype
    if is_onnx(node, *_VARIADIC):
        return len(node.inputs) == 1
    shape = shape_of(source)
    return shape is not None and shape == shape_of(result) and _moves_nothing(node, len(shape))


def _moves_nothing(node: ir.Node, rank: int) -> bool:
    """Whether a node whose result has the shape of its input leaves all elements where they were."""
    if is_onnx(node, "Transpose"):
        order = integers(node, "perm", tuple(reversed(range(rank))))
        return order == tuple(range(rank))
    if is_onnx(node, "Pad"):
        pads = constant(argument(node, 1))
        return pads is not None and not pads.any()
    if is_onnx(node, "Slice"):
        steps = constant(argument(node, 4))
        return argument(node, 4) is None or (steps is not None and bool((steps > 0).all()))
    if is_onnx(node, "AveragePool", "MaxPool"):
        # Adaptive pooling to the size that is there already.
        return set(integers(node, "kernel_shape", ())) == {1} and not any(integers(node, "pads", ()))
    return is_onnx(node, *_SHAPE_ONLY)


def _trains(node: ir.Node) -> bool:
    """Whether a Dropout is, or may be, in training mode."""
    mode = argument(node, 2)
    return mode is not None and scalar(mode) != 0.0
