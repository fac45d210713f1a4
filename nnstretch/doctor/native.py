"""The native engine: its compiler, its kernels, and a small network that it computes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime import InferenceSession

from nnstretch.api.compile import compile_graph
from nnstretch.api.options import CompileOptions
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa
from nnstretch.devices.engine.build.toolchains import make_toolchain
from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import NNStretchError

_TOLERANCE = 1e-5
_REPORT = "report it with the output of this command"


def native_engine() -> Iterator[Finding]:
    """The compiler, the engine that it builds, and a small network on it beside ONNX Runtime."""
    try:
        toolchain = make_toolchain(BuildTarget(local_isa()))
        kernels = len(engine().kernel_names())
    except NNStretchError as error:
        remedy = "unset NNSTRETCH_CC, or name a clang or gcc that works; pip install --force-reinstall ziglang"
        yield Finding("engine", State.PROBLEM, str(error), remedy)
        return
    yield Finding("compiler", State.OK, " ".join(toolchain.command))
    yield Finding("engine", State.OK, f"{kernels} kernels for {local_isa().name}")
    yield _small_network()


def _small_network() -> Finding:
    """A convolution by the engine and by ONNX Runtime."""
    model = _convolution()
    x = np.linspace(-1, 1, 8 * 12 * 12, dtype=np.float32).reshape(1, 8, 12, 12)
    reference = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = reference.run(None, {"x": x})
    try:
        with compile_graph(ir.from_proto(model), CompileOptions(tune=False)) as session:
            (found,) = session.run(None, {"x": x})
    except NNStretchError as error:
        return Finding("a small network", State.PROBLEM, str(error), _REPORT)
    error_share = float(np.abs(found - expected).max() / np.abs(expected).max())
    if error_share > _TOLERANCE:
        found_text = f"differs from ONNX Runtime by {error_share:.1e} of the range"
        return Finding("a small network", State.PROBLEM, found_text, _REPORT)
    return Finding("a small network", State.OK, f"computes what ONNX Runtime computes (error {error_share:.1e})")


def _convolution() -> onnx.ModelProto:
    """A 3×3 convolution of 8 channels of 12×12 pixels, with ReLU."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        doctor (float[1, 8, 12, 12] x) => (float[1, 16, 12, 12] y) <float[1, 16, 12, 12] z> {
            z = Conv <pads = [1, 1, 1, 1]> (x, w)
            y = Relu (z)
        }
    """)
    weights = np.sin(np.arange(16 * 8 * 9, dtype=np.float32)).reshape(16, 8, 3, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model
