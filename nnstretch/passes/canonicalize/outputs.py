"""Outputs of the graph that no node computes."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.passes.rewriting import unused_name


class KeepOutputs(ir.passes.InPlacePass):
    """An output that is a constant gets an Identity, so that every output is computed by a node."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite `model` in place."""
        graph, modified = model.graph, False
        for index, value in enumerate(tuple(graph.outputs)):
            if not value.is_initializer():
                continue
            name = value.name
            assert name is not None
            del graph.initializers[name]
            value.name = unused_name(graph, f"{name}/constant")
            graph.register_initializer(value)
            result = ir.Value(name=name, shape=value.shape, type=value.type)
            graph.append(ir.Node("", "Identity", (value,), outputs=[result], name=f"{name}/Identity"))
            graph.outputs[index] = result
            modified = True
        return ir.passes.PassResult(model, modified)
