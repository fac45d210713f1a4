"""MeanVarianceNormalization, whose shapes ONNX cannot infer in older operator sets."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from nnstretch.frontends.onnx_file import load
from nnstretch.graph.reference import run_proto


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("axes", [None, [1, 3], [0, 1, 2, 3]])
def test_it_becomes_what_it_stands_for(tmp_path: Path, opset: int, axes: list[int] | None) -> None:
    attributes: dict[str, Any] = {} if axes is None else {"axes": axes}
    nodes = [
        onnx.helper.make_node("MeanVarianceNormalization", ["x"], ["m"], **attributes),
        onnx.helper.make_node("MeanVarianceNormalization", ["m"], ["y"]),
    ]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3, 4, 5]) for n in "xy")
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", opset)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "m.onnx")
    found = load(tmp_path / "m.onnx")
    assert "MeanVarianceNormalization" not in {node.op_type for node in found.graph}
    assert [value.name for value in found.graph.outputs] == ["y"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    (made,), (wanted,) = run_proto(ir.to_proto(found), feeds), run_proto(model, feeds)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5)
