"""Moves nodes with constant inputs, which folding has left, to their readers."""

from __future__ import annotations

import onnx_ir as ir


class LateConstants(ir.passes.InPlacePass):
    """Moves each such node before its first reader, so that groups of fallback layers contain it."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model`, which is in topological order, in place."""
        graph, modified = model.graph, False
        order = {node: position for position, node in enumerate(graph)}
        for node in reversed(tuple(graph)):
            if not all(value is None or value.is_initializer() for value in node.inputs):
                continue
            readers = [reader for output in node.outputs for reader in output.consumers() if reader in order]
            if readers and not any(output.is_graph_output() for output in node.outputs):
                first = min(readers, key=order.__getitem__)
                graph.remove(node)
                graph.insert_before(first, node)
                order[node] = order[first]
                modified = True
        return ir.passes.PassResult(model, modified)
