"""The script that measures what meeting points cost."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.base.spec import usable_cores

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "engine" / "meeting_benchmark.py"
CORES = usable_cores()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--rounds", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)


@pytest.mark.opencl
@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_processors_meet_often_and_it_is_said_what_that_costs() -> None:
    first, *_, last = CORES
    pairs = [f"cpu:{first},cpu:{last}", f"cpu:{first},opencl:0@{last}"]
    done = run("-p", pairs[0], "-p", pairs[1], "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["pairs"]
    assert [pair["processors"] for pair in found] == [pair.split(",") for pair in pairs]
    for pair in found:
        assert min(pair["layer_us"]) > 0
        assert math.isfinite(pair["meeting_us"])


def test_one_processor_meets_nobody() -> None:
    done = run("-p", f"cpu:{CORES[0]}")
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: --processors cpu:{CORES[0]} names 1; two meet, as in cpu:0,opencl:0@1"
