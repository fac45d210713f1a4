"""Reference interpreter of fused graphs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from nnstretch.graph.layers import graph_outputs, layers
from nnstretch.graph.reference import run_layer


def run_layers(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a fused graph, layer by layer; asserts that each computes the types it promises."""
    values = dict(feeds)
    for node in layers(model):
        layer = node.layer
        results = run_layer(layer, *(values[str(node.inputs[index])] for index in layer.activations))
        for name, kind, result in zip(node.outputs, layer.outputs, results, strict=True):
            assert (result.shape, str(result.dtype)) == (kind.shape, kind.dtype), f"{layer.name} ({layer.op})"
            values[name] = result
    return [values[name] for name, _ in graph_outputs(model)]
