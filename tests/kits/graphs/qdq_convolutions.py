"""A convolution between QuantizeLinear and DequantizeLinear whose scales a test chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def qdq_convolution(spatial: tuple[int, ...] = (9, 7), **values: Any) -> onnx.ModelProto:
    """x of 4 channels → y of 8, by a kernel of 3 along every axis.

    Args:
        spatial: extents of the image.
        values: in place of `xs`, `xz` (scale and zero point of the input), `w`, `ws`, `wz` (of the weights), `es` and `ez` (of
            the result). Several scales are those of channels.
    """
    rng, rank = np.random.default_rng(0), len(spatial)
    constants: dict[str, Any] = {
        "xs": np.float32(0.02),
        "xz": np.uint8(128),
        "w": rng.integers(-127, 128, (8, 4, *(3,) * rank)).astype(np.int8),
        "ws": rng.uniform(0.001, 0.004, 8).astype(np.float32),
        "wz": np.zeros(8, np.int8),
        "es": np.float32(0.05),
        "ez": np.uint8(120),
        **values,
    }

    def rounding(kind: str, source: str, name: str, axis: int = 1) -> onnx.NodeProto:
        scale = constants[f"{source[0]}s"]
        attributes: dict[str, Any] = {"axis": axis} if np.ndim(scale) else {}
        result = {"QuantizeLinear": "_steps", "DequantizeLinear": "_read"}[kind]
        operands = [name, f"{source[0]}s", f"{source[0]}z"]
        return helper.make_node(kind, operands, [source + result], name=f"{source}{result}", **attributes)

    nodes = [
        rounding("QuantizeLinear", "x", "x"),
        rounding("DequantizeLinear", "x", "x_steps"),
        rounding("DequantizeLinear", "w", "w", axis=0),
        helper.make_node("Conv", ["x_read", "w_read"], ["e"], name="conv", pads=[1] * 2 * rank),
        rounding("QuantizeLinear", "e", "e"),
        rounding("DequantizeLinear", "e", "e_steps"),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, channels, *spatial))
        for name, channels in (("x", 4), ("e_read", 8))
    ]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "qdq", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def scales_per_channel(spatial: tuple[int, ...] = (5, 9, 7)) -> onnx.ModelProto:
    """The convolution with a scale and a zero point for each channel of its input."""
    return qdq_convolution(
        spatial, xs=np.linspace(0.01, 0.05, 4).astype(np.float32), xz=np.array([0, 100, 128, 255], np.uint8)
    )


def with_scales_behind_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with scales as float64 and a Cast of each to float32, which changes no number."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    casts = []
    for tensor in made.graph.initializer:
        if tensor.name in ("xs", "ws", "es"):
            name, scale = tensor.name, numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(scale, f"{name}/double"))
            casts.append(helper.make_node("Cast", [f"{name}/double"], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made
