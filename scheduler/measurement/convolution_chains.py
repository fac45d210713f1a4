"""Parallel chains of convolutions, one per processor: the workload for measurements of several processors at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from nnstretch.graph.placement import PLACEMENT_KEY


def convolution_chains(
    processors: Sequence[int], layers: Sequence[tuple[int, int]], image: tuple[int, int, int, int], kernel: int = 3
) -> ir.Model:
    """A chain of convolutions for each processor; all read the input `x`, and a concat of their ends is the output `y`.

    Args:
        processors: indices of the processors; every node is placed on its chain's processor.
        layers: output channels and stride of each convolution.
        image: shape of the input, N,C,H,W.
        kernel: odd side length of the kernels.
    """
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    ends = []
    for processor in processors:
        source, channels = "x", image[1]
        for place, (width, stride) in enumerate(layers):
            name = f"p{processor}_{place}"
            values = rng.standard_normal((width, channels, kernel, kernel)) / np.sqrt(kernel**2 * channels)
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}_w"))
            node = helper.make_node("Conv", [source, f"{name}_w"], [name], pads=[kernel // 2] * 4, strides=[stride] * 2)
            entry = node.metadata_props.add()
            entry.key, entry.value = PLACEMENT_KEY, str(processor)
            nodes.append(node)
            source, channels = name, width
        ends.append(source)
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=1))
    graph = helper.make_graph(
        nodes,
        "chains",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))
