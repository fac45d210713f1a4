"""Peak memory of a process that runs a package, beside that of one that runs the same file on ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import nnstretch as nns

CHANNELS, LAYERS = 512, 6
WEIGHTS = LAYERS * CHANNELS * CHANNELS * 9 * 4
"""Bytes, beside which those of the libraries and of the images count little."""

# The peak of this program alone: a process that is started takes the peak of its parent over in `ru_maxrss`.
PEAK = """
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10)
"""
OURS = f"""
import sys, numpy as np, nnstretch as nns
with nns.compile(sys.argv[1]) as session:
    (given,) = session.get_inputs()
    session.run(None, {{given.name: np.zeros(given.shape, np.float32)}})
{PEAK}"""
ONNX_RUNTIME = f"""
import sys, numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
session.run(None, {{given.name: np.zeros(given.shape, np.float32)}})
{PEAK}"""


def network() -> onnx.ModelProto:
    """Convolutions in a row, with large weights and small images."""
    shape = f"float[1,{CHANNELS},7,7]"
    names = ["x", *(f"h{number}" for number in range(1, LAYERS)), "y"]
    nodes = " ".join(
        f"{names[number + 1]} = Conv<pads=[1,1,1,1]>({names[number]}, w{number})" for number in range(LAYERS)
    )
    text = f'<ir_version: 8, opset_import: ["": 17]> net ({shape} x) => ({shape} y) {{ {nodes} }}'
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for number in range(LAYERS):
        weight = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32) / 70
        proto.graph.initializer.append(numpy_helper.from_array(weight, f"w{number}"))
    return proto


def peak(code: str, path: Path) -> int:
    """Peak memory of a process of its own that runs a model, bytes."""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of processes")
def test_a_package_takes_no_more_memory_than_onnx_runtime(tmp_path: Path) -> None:
    """Its weights are mapped from the file, and are there once."""
    onnx.save(network(), tmp_path / "net.onnx")
    with nns.compile(tmp_path / "net.onnx", processors="cpu:0", tune=False) as session:
        session.save(tmp_path / "net.nns")
    ours, theirs = peak(OURS, tmp_path / "net.nns"), peak(ONNX_RUNTIME, tmp_path / "net.onnx")
    assert WEIGHTS < ours <= theirs
