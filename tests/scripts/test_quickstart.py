"""The quickstart's choice of processors works wherever it runs, on a single core too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "quickstart.py"

CHOOSE_AND_RUN = """
import runpy, sys
import numpy as np, onnx_ir as ir
from onnx import parser
from nnstretch.compiler.compile import plan_model
from nnstretch.devices.opencl.drivers import probe
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.compiler.processors import build_processors
from nnstretch.scheduler.runtime.session import PlanSession

text = runpy.run_path(sys.argv[1])["choose_processors"](probe() if sys.argv[2] == "with" else [])
opened = build_processors(text)
names = ",".join(p.name for p in opened.named)
model = parser.parse_model('''<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,8,8] x) => (float[1,16,8,8] y) { a = Relu (x) b = Mul (x, x) y = Add (a, b) }''')
for node, place in zip(model.graph.node, "010"):
    entry = node.metadata_props.add()
    entry.key, entry.value = PLACEMENT_KEY, place
compiled = plan_model(ir.from_proto(model), build_processors(names), tune=False)
assert len(compiled.plan.queues) == 2, compiled.plan.queues
x = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)
with PlanSession(compiled) as session:
    for _ in range(20):
        (y,) = session.run(None, {"x": x})
        assert np.allclose(y, np.maximum(x, 0) + x * x, atol=1e-6)
print("chosen", text, names)
"""


def choose(cores: str, opencl: str) -> str:
    """What is printed where the process may use some cores, with OpenCL or as if there were none."""
    command = ["taskset", "--cpu-list", cores, sys.executable, "-c", CHOOSE_AND_RUN, str(SCRIPT), opencl]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("opencl", [pytest.param("with", marks=pytest.mark.opencl), "without"])
def test_two_processors_share_the_only_core_and_that_is_said(opencl: str) -> None:
    core = max(os.sched_getaffinity(0))
    printed = choose(str(core), opencl)
    other = "opencl:0" if opencl == "with" else "cpu"
    assert printed.endswith(f"chosen cpu:{core},{other} cpu:{core},{other}")
    assert "both processors share it and take turns" in printed
    assert ("no OpenCL device works" in printed) == (opencl == "without")


@pytest.mark.opencl
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processors need two cores")
def test_two_cores_are_split() -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    printed = choose(f"{one},{other}", "with")
    assert printed.endswith(f"chosen cpu:{one},opencl:0@{other} cpu:{one},opencl:0@{other}")
    assert "take turns" not in printed


@pytest.mark.opencl
def test_a_missing_device_is_named_before_the_training(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out"), "--processors", f"cpu:{core},opencl:99"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "error: there is no OpenCL device 99; this machine has opencl:0 (" in done.stderr
    assert "preparing" not in done.stderr


RUN = """
import runpy, sys
from dataclasses import replace
from nnstretch.cli.job import transform_and_train as job
from nnstretch.devices.base.spec import default_cores
from nnstretch.devices.opencl import drivers
from nnstretch.errors import DeviceError

listed = drivers.DeviceInfo(0, "broken", "p", "d", 1, True, True, True, True, True, False, True, "")
drivers.listed_devices = lambda: [listed]
drivers.probe = lambda: [replace(listed, usable=False, why_not="it computes nothing")]

def run(self):
    print(self.options.processors, self.options.redo)
    if "opencl" in self.options.processors:
        raise DeviceError("OpenCL device 0 (broken) does not work")
    measure = {"name": "top-1", "key": "top1"}
    return {"measure": measure, "original": {"name": "original", "test_top1": 1, "validation_top1": 1},
            "candidates": [], "int8": [], "chosen": "", "unbranched": None, "comparison": None, "seconds": {}}

job.TransformAndTrain.run = run
sys.exit(runpy.run_path(sys.argv[1])["main"](sys.argv[2:]))
"""


@pytest.mark.parametrize("given", [None, "cpu:0,opencl:0@1"])
def test_a_device_that_fails_its_test_is_replaced_unless_it_was_asked_for(tmp_path: Path, given: str | None) -> None:
    command = [sys.executable, "-c", RUN, str(SCRIPT), "--out", str(tmp_path)]
    options = [] if given is None else ["--processors", given]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=120)
    assert "OpenCL device 0 (broken) does not work" in done.stderr
    chosen = [line.split() for line in done.stderr.splitlines() if line.startswith("cpu:")]
    assert [redo for _, redo in chosen] == (["baseline"] if given else ["baseline", "designs"])
    assert "opencl" in chosen[0][0]
    assert done.returncode == (2 if given else 0), done.stderr
    if given is None:
        assert "opencl" not in chosen[1][0]
        assert "no OpenCL device works" in done.stdout + done.stderr
