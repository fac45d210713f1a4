"""Quantised layers whose results stay float32: int8 layers where a processor can compute these, and never left to others."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

import nnstretch as nns

CONV = "(float[1,16,8,8] x) => (float[1,8,8,8] y)", "y = Conv<pads = [1, 1, 1, 1]>(d, v)"
DENSE = "(float[2,{0}] x) => (float[2,8] y)", "y = MatMul(d, v)"


def quantised(head: str, layer: str, shape: tuple[int, ...], axis: int) -> onnx.ModelProto:
    """One layer that reads rounded values and whose result is not rounded."""
    lines = f"q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = {axis}>(w, t, u)"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> network {head} {{ {lines} {layer} }}')
    constants = {
        "s": np.float32(0.02),
        "z": np.uint8(120),
        "t": np.full(8, 0.01, np.float32),
        "u": np.zeros(8, np.int8),
        "w": np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8),
    }
    model.graph.initializer.extend(from_array(np.asarray(value), name) for name, value in constants.items())
    return model


@pytest.mark.parametrize(
    ("model", "processors", "routine"),
    [
        pytest.param(quantised(*CONV, (8, 16, 3, 3), 0), "cpu:0", "cpu:int8/", id="cpu"),
        pytest.param(
            quantised(*CONV, (8, 16, 3, 3), 0), "opencl:0", "opencl:float32/", id="opencl", marks=pytest.mark.opencl
        ),
        pytest.param(quantised(DENSE[0].format(700), DENSE[1], (700, 8), 1), "cpu:0", "cpu:int8/", id="dense"),
        pytest.param(
            quantised(DENSE[0].format(70_000), DENSE[1], (70_000, 8), 1),
            "cpu:0",
            "cpu:float32/",
            id="sums beyond int32",
        ),
    ],
)
def test_the_layer_has_a_native_routine(model: onnx.ModelProto, processors: str, routine: str) -> None:
    with nns.compile(model, processors=processors, tune=False) as session:
        (step,) = (step for step in session.plan.steps if step.op in ("Conv", "Dense"))
        assert step.routine.startswith(routine) and not step.routine.endswith("onnxruntime")
        (given,) = session.get_inputs()
        x = np.random.default_rng(1).standard_normal(given.shape).astype(np.float32)
        (found,) = session.run(None, {"x": x})
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # sums do not saturate
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (wanted,) = reference.run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
