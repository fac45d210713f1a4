"""Two sessions in one process, and two processes, on the same cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from nnstretch.devices.base.spec import usable_cores
from tests.kits.graphs.graphs import RandomNetwork

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "engine" / "sharing_benchmark.py"
CORES = usable_cores()


@pytest.mark.opencl
@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_sessions_that_share_cores_give_the_right_answers(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(RandomNetwork(3, processors=2, nodes=10, size=6).model, model)
    processors = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"
    arguments = ["--model", str(model), "--processors", processors, "--seconds", "0.2", "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    sharings = json.loads(done.stdout)["sharings"]
    assert {name: len(found["runs"]) for name, found in sharings.items()} == {
        "alone": 1,
        "two sessions in one process": 2,
        "two processes": 2,
    }
    for found in sharings.values():
        assert found["right"]
        assert min(found["runs"]) > 0
        assert min(found["p50_ms"]) > 0
        assert 0 < found["evenness"] <= 1
