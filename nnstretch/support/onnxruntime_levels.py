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
        if node.op_type == "Constant" and node.attribute:
            sizes[node.output[0]] = _numbers_of(node)
        if all(name in constants for name in node.input):
            constants.update(node.output)
            # As many as casts and arithmetic make of constants, and at least those of a part, which loses fusions only.
            most = max((sizes.get(name, 1) for name in node.input), default=1)
            sizes.update((name, most) for name in node.output if name not in sizes)
        elif node.op_type in _ROUNDING and sizes.get(node.input[1], 1) > 1:
            return True
    return False


def _numbers_of(constant: onnx.NodeProto) -> int:
    """How many numbers a Constant has."""
    value = constant.attribute[0]
    return math.prod(value.t.dims) if value.name == "value" else max(1, len(value.floats))
