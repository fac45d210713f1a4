"""Tables of nearest source pixels are those of ONNX Runtime, also where float32 positions miss the middle of two pixels."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from nnstretch.devices.algorithms.resize import resize_tables
from nnstretch.graph.layer import Attribute, Layer, TensorType

SIZES = ((7, 16), (14, 16), (7, 4), (10, 24), (13, 14), (11, 26), (14, 19), (5, 8), (3, 7))


def sources(size: int, result: int, rounding: str, coordinates: str) -> np.ndarray:
    """The source pixel of every pixel of a row, by ONNX Runtime."""
    attributes: dict[str, Any] = {"nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", **attributes)
    ends = [helper.make_tensor_value_info("x", 1, (1, 1, 1, size)), helper.make_tensor_value_info("y", 1, None)]
    sizes = numpy_helper.from_array(np.array([1, 1, 1, result]), "sizes")
    graph = helper.make_graph([node], "row", ends[:1], ends[1:], [sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)})[0]
    return found.reshape(-1).astype(int)


@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
def test_nearest_pixels(rounding: str, coordinates: str) -> None:
    for size, result in SIZES:
        attributes: dict[str, Attribute] = {
            "mode": "nearest",
            "coordinates": coordinates,
            "nearest": rounding,
        }
        attributes["scales"] = (1.0, result / size)
        before, after = (TensorType((1, 1, 1, length)) for length in (size, result))
        layer = Layer("row", "Resize", (before,), (after,), MappingProxyType(attributes))
        _, columns = resize_tables(layer)
        assert columns.indices[:, 0].tolist() == sources(size, result, rounding, coordinates).tolist(), (size, result)
