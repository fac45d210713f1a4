"""Networks with recurrent layers on all kinds of processors, in float32, bfloat16 and between int8 layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from tests.kits.graphs.any_graph import assert_equal, expected, random_feeds, run_compiled
from tests.kits.graphs.textual_graphs import normal

ROUTINE = "cpu:float32/recurrence"


def recogniser(*, rounded: bool = False, batch: int = 2) -> onnx.ModelProto:
    """Columns of an image's features are the steps of an LSTM, whose last states a GRU begins with; with int8 features."""
    quantized = (
        "u = QuantizeLinear(r, step, zero) d = DequantizeLinear(u, step, zero)" if rounded else "d = Identity(r)"
    )
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{batch},3,4,9] x) => (float[9,{batch},5] y, float[2,{batch},6] last) {{
            c = Conv(x, k) r = Relu(c) {quantized}
            q = Squeeze(d, two) t = Transpose<perm=[2,0,1]>(q)
            a, h = LSTM<direction="bidirectional", hidden_size=6>(t, w1, r1, b1)
            b = Transpose<perm=[0,2,1,3]>(a) e = Reshape(b, channels)
            f, last = GRU<direction="bidirectional", hidden_size=6, linear_before_reset=1>(e, w2, r2, b2, , h)
            l = Transpose<perm=[0,2,1,3]>(f) m = Reshape(l, channels)
            y = MatMul(m, classes)
        }}"""
    )
    weights = {
        "k": normal(16, 3, 4, 1),
        "two": np.array([2]),
        "channels": np.array([0, 0, -1]),
        "step": np.array(0.05, np.float32),
        "zero": np.array(0, np.uint8),
        "w1": normal(2, 24, 16) / 4,
        "r1": normal(2, 24, 6, seed=2) / 2,
        "b1": normal(2, 48, seed=3),
        "w2": normal(2, 18, 12) / 4,
        "r2": normal(2, 18, 6, seed=4) / 2,
        "b2": normal(2, 36, seed=5),
        "classes": normal(12, 5),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("processors", ["cpu:0", "cpu:0-1", "cpu:0,opencl:0@1"])
def test_a_cpu_computes_recurrent_layers(tmp_path: Path, processors: str, batch: int) -> None:
    proto = recogniser(batch=batch)
    feeds = random_feeds(proto)
    references = expected(proto, feeds)
    assert references is not None
    outputs, routines = run_compiled(tmp_path / "model.onnx", proto, feeds, processors=processors)
    assert_equal(outputs, references)
    assert routines.count(ROUTINE) == 2
    assert not any("onnxruntime" in name for name in routines)


def test_an_opencl_device_leaves_them_to_onnx_runtime(tmp_path: Path) -> None:
    proto = recogniser()
    feeds = random_feeds(proto)
    references = expected(proto, feeds)
    assert references is not None
    outputs, routines = run_compiled(tmp_path / "model.onnx", proto, feeds, processors="opencl:0@1")
    assert_equal(outputs, references)
    assert ROUTINE not in routines
    assert any("onnxruntime" in name for name in routines)


@pytest.mark.parametrize(("rounded", "dtype"), [(True, "int8"), (True, "float32"), (False, "bfloat16")])
def test_other_types_around_them(tmp_path: Path, dtype: str, *, rounded: bool) -> None:
    proto = recogniser(rounded=rounded)
    feeds = random_feeds(proto)
    references = expected(proto, feeds)
    assert references is not None
    outputs, routines = run_compiled(tmp_path / "model.onnx", proto, feeds, dtype=dtype)
    assert_equal(outputs, references, 3e-2)
    assert routines.count(ROUTINE) == 2
