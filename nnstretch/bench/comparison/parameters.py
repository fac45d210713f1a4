"""Counts the parameters of a graph."""

from __future__ import annotations

import onnx_ir as ir

_STATISTICS = (3, 4)  # inputs of BatchNormalization that are measured, not learnt


def count_parameters(model: ir.Model) -> int:
    """Learnable scalars of an unfused graph: floating-point initializers without batch-norm statistics."""
    statistics = {
        node.inputs[i]
        for node in model.graph
        if node.op_type == "BatchNormalization"
        for i in _STATISTICS
        if i < len(node.inputs)
    }
    learnt = [v for v in model.graph.initializers.values() if v not in statistics and v.const_value is not None]
    return sum(
        v.const_value.size for v in learnt if v.const_value is not None and v.const_value.dtype.is_floating_point()
    )
