"""Operators that only change how the elements, in row-major order, are counted into axes."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.passes.rewriting import (
    absorb,
    become,
    bypass,
    float_shape,
    integers,
    is_canonical,
    is_onnx,
    sole_use,
)


def lower_reshape(node: ir.Node) -> bool:
    """Reshape, Flatten, Squeeze, Unsqueeze, and Transpose that only moves axes of length 1, become Reshape.

    So does an Identity that is left because both of its ends have names that callers know.
    """
    if not is_onnx(node, "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"):
        return False
    source, shape = node.inputs[0], float_shape(node.inputs[0])
    if source is None or source.is_initializer() or shape is None or float_shape(node.outputs[0]) is None:
        return False
    if node.op_type == "Transpose":
        order = integers(node, "perm", tuple(reversed(range(len(shape)))))
        long_axes = [axis for axis in order if shape[axis] != 1]
        if long_axes != sorted(long_axes):
            return False
    return become(node, "Reshape", (source,))


def merge_reshapes(node: ir.Node) -> bool:
    """Of two reshapes in a row one is enough, of one to the same shape none."""
    if not is_canonical(node, "Reshape"):
        return False
    source = node.inputs[0]
    if float_shape(source) == float_shape(node.outputs[0]) and bypass(node):
        return True
    producer = None if source is None else source.producer()
    if producer is None or not is_canonical(producer, "Reshape") or not sole_use(source):
        return False
    absorb(producer, node)
    return True
