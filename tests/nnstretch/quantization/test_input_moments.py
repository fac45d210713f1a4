"""Moments of layers' inputs: they give the norms of what ONNX Runtime computes with any weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from nnstretch.graph.reference import run_proto
from nnstretch.quantization.input_moments import WeightMatrix
from tests.kits.graphs.float_networks import normal

LAYERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "strides and pads": ("Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1]}, (2, 4, 9, 8), (6, 4, 3, 3)),
    "groups": ("Conv", {"group": 2}, (1, 4, 7, 7), (6, 2, 3, 2)),
    "depthwise": ("Conv", {"group": 4, "dilations": [2, 1], "pads": [2, 1, 2, 1]}, (2, 4, 9, 8), (8, 1, 3, 3)),
    "same, above": ("Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (1, 3, 8, 7), (5, 3, 3, 4)),
    "same, below": ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 3, 8, 7), (5, 3, 3, 4)),
    "valid": ("Conv", {"auto_pad": "VALID"}, (1, 3, 8, 7), (5, 3, 3, 4)),
    "a line": ("Conv", {"pads": [1, 1]}, (2, 3, 11), (5, 3, 3)),
    "a volume": ("Conv", {"strides": [1, 2, 1]}, (1, 2, 4, 5, 6), (3, 2, 2, 2, 3)),
    "Gemm": ("Gemm", {}, (7, 5), (5, 3)),
    "turned Gemm": ("Gemm", {"transB": 1}, (7, 5), (3, 5)),
    "MatMul": ("MatMul", {}, (2, 3, 4, 5), (5, 6)),
}


def outputs(node: onnx.NodeProto, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Output of a layer from ONNX Runtime, output channels first."""
    described = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        for name, array in (("x", x), ("w", weights))
    ]
    graph = helper.make_graph([node], "layer", described, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    (y,) = run_proto(model, {"x": x, "w": weights})
    return np.moveaxis(y, 1 if node.op_type == "Conv" else -1, 0).reshape(
        y.shape[1 if node.op_type == "Conv" else -1], -1
    )


@pytest.mark.parametrize("name", LAYERS)
def test_moments_give_the_norms_of_outputs(name: str) -> None:
    operator, attributes, images, shape = LAYERS[name]
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    matrix, weights = WeightMatrix(node, shape), normal(*shape)
    exact, near = [[normal(*images, seed=seed + i) for i in range(3)] for seed in (1, 10)]
    hessian, cross = matrix.moments(exact, near)
    matrices = matrix.of(weights)
    np.testing.assert_array_equal(matrix.back(matrices), weights)
    pairs = [(outputs(node, x, weights), outputs(node, other, weights)) for x, other in zip(exact, near, strict=True)]
    for moments, wanted in (
        (hessian, sum((other * other).sum(axis=1) for _, other in pairs)),
        (cross, sum((one * other).sum(axis=1) for one, other in pairs)),
    ):
        found = np.einsum("gko,gkl,glo->go", matrices, moments, matrices).reshape(-1)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_places_of_large_maps_are_a_sample() -> None:
    """Moments of a map of 200 × 200 places are, up to their number, near those of all of them."""
    matrix = WeightMatrix(helper.make_node("Conv", ["x", "w"], ["y"]), (1, 3, 1, 1))
    x = [normal(1, 3, 200, 200, seed=seed) * np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1) for seed in range(3)]
    hessian, _ = matrix.moments(x, x)
    places = hessian[0, 0, 0]
    assert 8000 < places < 8400
    np.testing.assert_allclose(hessian[0] / places, np.diag([1, 4, 9]), atol=0.3)
