"""How far ONNX Runtime may optimise a model.

Its fusions of quantised layers take one scale per activation for granted: where activations have a scale per channel, it
accepts the model and fails in the first run. Without these fusions, every node is computed as the graph says.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import onnx

_ROUNDING = ("QuantizeLinear", "DequantizeLinear")


def limit_optimisations(options: Any, model: onnx.ModelProto | bytes | str | Path) -> None:
    """Leaves out the fusions of ONNX Runtime that a model cannot have.

    Args:
        options: `SessionOptions`; their level is lowered where that is needed.
        model: the model, serialised or not, or its file.
    """
    import onnxruntime

    if has_activation_scales_per_channel(model):
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC


def has_activation_scales_per_channel(model: onnx.ModelProto | bytes | str | Path) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear of what a model computes has several scales."""
    if isinstance(model, str | Path):
        model = Path(model).read_bytes()
    if isinstance(model, bytes):
        if not any(name.encode() in model for name in _ROUNDING):
            return False
        model = onnx.load_model_from_string(model)
    return _has_several_scales(model.graph)


def _has_several_scales(graph: onnx.GraphProto) -> bool:
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer}
    constants = set(sizes)
    for node in graph.node:  # in topological order
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            sizes[node.output[0]] = math.prod(node.attribute[0].t.dims)
        if all(name in constants for name in node.input):
            constants.update(node.output)
        elif node.op_type in _ROUNDING and sizes.get(node.input[1], 1) > 1:
            return True
    return False
