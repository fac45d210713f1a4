"""The comparison with OpenMP measures the same work on both sides."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from nnstretch.devices.base.spec import usable_cores
from nnstretch.errors import DeviceError
from scripts.engine.pool_benchmark import join_ns
from tests.kits.c_libraries import c_library, runtime_files
from tests.kits.graphs.graphs import RandomNetwork

SCRIPT = Path(__file__).resolve().parents[4] / "scripts" / "engine" / "pool_benchmark.py"


def benchmark(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    cores = "+".join(map(str, usable_cores()[:2]))
    model = folder / "model.onnx"
    onnx.save(RandomNetwork(0, processors=0, nodes=3, size=8).model, model)
    arguments = ["--model", str(model), "--cores", cores, "--rounds", "1", "--no-tune", "--json"]
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
def test_both_pools_are_measured_and_agree(tmp_path: Path) -> None:
    done = benchmark(tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    threads = {"1", str(len(usable_cores()[:2]))}
    for pool in ("nnstretch", "openmp"):
        for key in ("join_ns", "min_ms", "p50_ms", "speedup"):
            assert set(report["pools"][pool][key]) == threads
            assert all(value > 0 for value in report["pools"][pool][key].values())
    assert set(report["openmp_over_nnstretch"]["p50_ms"]) == threads


def test_it_says_so_if_there_is_no_openmp(tmp_path: Path) -> None:
    done = benchmark(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 2
    assert "no compiler with OpenMP" in done.stderr


def test_pools_meet_and_report_cores_that_they_cannot_have() -> None:
    sources = [*runtime_files(), SCRIPT.with_name("pool_join.c")]
    library = ctypes.CDLL(str(c_library(Path(__file__).with_name("pool_join.c"), includes=sources)))
    cores = usable_cores()
    assert join_ns(library, cores[:2], 200) > 0
    assert join_ns(library, (cores[0],) * 3, 1) > 0
    for wrong in ((cores[0], 1023), (-1,), (1 << 20,), ()):
        with pytest.raises(DeviceError, match="no thread pool"):
            join_ns(library, wrong, 200)
