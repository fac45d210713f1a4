"""The comparison with OpenMP measures the same work on both sides."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.base.spec import usable_cores

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "pool_benchmark.py"


def benchmark(**environment: str) -> subprocess.CompletedProcess[str]:
    cores = "+".join(map(str, usable_cores()[:2]))
    arguments = ["--model", "squeezenet", "--cores", cores, "--rounds", "1", "--no-tune", "--json"]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=os.environ | environment,
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc"), reason="OpenMP comes with gcc")
def test_both_pools_are_measured_and_agree() -> None:
    done = benchmark()
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    threads = {"1", str(len(usable_cores()[:2]))}
    for pool in ("nnstretch", "openmp"):
        for key in ("join_ns", "min_ms", "p50_ms", "speedup"):
            assert set(report["pools"][pool][key]) == threads
            assert all(value > 0 for value in report["pools"][pool][key].values())
    assert set(report["openmp_over_nnstretch"]["p50_ms"]) == threads


def test_it_says_so_if_there_is_no_openmp(tmp_path: Path) -> None:
    done = benchmark(PATH=str(tmp_path))
    assert done.returncode == 2
    assert "no compiler with OpenMP" in done.stderr
