"""Softmax."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.passes.rewriting import become, float_shape, graph_of, integer, is_onnx


def lower_softmax(node: ir.Node) -> bool:
    """Softmax over one axis becomes canonical; before opset 13 it was over all axes from one on."""
    shape = float_shape(node.outputs[0])
    if not is_onnx(node, "Softmax") or not shape:
        return False
    opset = graph_of(node).opset_imports.get("", 0)
    axis = integer(node, "axis", -1 if opset >= 13 else 1) % len(shape)
    if opset < 13 and any(length != 1 for length in shape[axis + 1 :]):
        return False
    return become(node, "Softmax", node.inputs[:1], {"axis": axis})
