"""Other OpenCL drivers: Intel's for CPUs, Mesa's rusticl, and Oclgrind, a simulator that reports invalid accesses and races."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.opencl.sources import kernel_files
from tests.kits.opencl.small_layers import IMAGES

OCLGRIND = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
RUSTICL = next(Path("/usr/lib").glob("*/libRusticlOpenCL.so.1"), None)
INTEL = Path(sys.prefix) / "intel-opencl" / "lib" / "libintelocl.so"
CASES = ["-m", "tests.kits.opencl.driver_cases"]
INCLUDED = {
    "common.cl",
    "gemm_tile.cl",
    "int8.cl",
    "lanes.cl",
    "pool_windows.cl",
    "strides.cl",
    "tile.cl",
    "winograd_transform.cl",
}
READ_IMAGES = {name for name in kernel_files() if "READ_WEIGHTS(" in kernel_files()[name].read_text()} - INCLUDED
SEMAPHORE = "semaphore.cl"  # needs a host that runs meanwhile
WRITES_BEHIND = """
import numpy as np, pyopencl as cl
(device,) = cl.get_platforms()[0].get_devices()
context = cl.Context([device])
queue = cl.CommandQueue(context)
program = cl.Program(context, "kernel void f(global int *x) { x[get_global_id(0)] = 1; }").build()
cl.Kernel(program, "f")(queue, (5,), (1,), cl.Buffer(context, cl.mem_flags.READ_WRITE, 16))
queue.finish()
"""

PROBE = (
    "from nnstretch.devices.opencl.drivers import probe\nfor device in probe(): print(device.platform, device.why_not)"
)

CHECKS = (
    """
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.opencl.drivers import device_info, probe
from nnstretch.devices.opencl.probe_worker import check_kernels, check_loops
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.errors import DeviceError
runtime = OpenCLRuntime(ProcessorSpec("opencl", 0), info=device_info(0))
for check in (check_kernels, check_loops):
    try:
        check(runtime)
        print("right")
    except DeviceError as error:
        print(error)
"""
    + PROBE
)

needs_intel = pytest.mark.skipif(not INTEL.exists(), reason="Intel's OpenCL driver is not installed")
needs_rusticl = pytest.mark.skipif(RUSTICL is None, reason="Mesa's rusticl is not installed")
needs_oclgrind = pytest.mark.skipif(not OCLGRIND.exists(), reason="Oclgrind is not installed")


def output_of(arguments: list[str], library: Path, folder: Path, settings: dict[str, str]) -> str:
    """What a Python process prints whose only OpenCL driver is `library`."""
    (folder / "vendors").mkdir()
    (folder / "vendors" / "driver.icd").write_text(f"{library}\n")
    vendors = {name: str(folder / "vendors") for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")}
    environment = os.environ | vendors | settings | {"PYOPENCL_NO_CACHE": "1"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reports(arguments: list[str], folder: Path, check: str = "DATA_RACES") -> tuple[str, str]:
    """What a Python process prints, and what Oclgrind reports."""
    log = folder / "log"
    settings = {f"OCLGRIND_{check}": "1", "OCLGRIND_LOG": str(log)}
    return output_of(arguments, OCLGRIND, folder, settings), log.read_text()


def check_cases(output: str, least: int, without: frozenset[str] = frozenset(), *, images: bool = False) -> None:
    """The findings of `driver_cases` have no wrong case, all files but `without`, and a least number of comparisons.

    With `images`, all kernels that may read images have read some.
    """
    findings = json.loads(output)
    assert not findings["wrong"], "\n".join(findings["wrong"])
    assert findings["compared"] >= least
    assert not findings["refused"] or without, findings["refused"]
    assert set(findings["image_sources"]) == (READ_IMAGES if images else set())
    assert set(findings["sources"]) == kernel_files().keys() - INCLUDED - {SEMAPHORE} - without


@pytest.mark.slow
@needs_intel
def test_all_kernels_and_networks_are_right_on_intels_driver(tmp_path: Path) -> None:
    """One network with optimisation, for which the driver takes longer than for all else."""
    networks = ["--optimised", "squeezenet1_1", "--networks", "mobilenetv3_small"]
    chosen = ["--kinds", "device", "groups", *IMAGES, "--settings", "2", *networks, "--option=-cl-opt-disable"]
    check_cases(output_of([*CASES, *chosen], INTEL, tmp_path, {}), 250, images=True)


@pytest.mark.slow
@needs_rusticl
def test_small_layers_are_right_on_rusticl(tmp_path: Path) -> None:
    """The product refuses it, because it ends loops that only large layers have. Its compiler takes long for a CPU's tiles.

    For one kernel of Winograd's it states smaller work groups than it runs, so that is compared in another form. LLVM's passes
    behind Mesa's own compiler are left out: PoCL and Intel's driver have them, too, and they take two fifths of the time.
    """
    assert RUSTICL is not None
    settings = {"RUSTICL_ENABLE": "llvmpipe", "GALLIVM_PERF": "nopt"}
    output = output_of([*CASES, "--once", "--kinds", "groups", "plain", *IMAGES], RUSTICL, tmp_path, settings)
    check_cases(output, 25, without=frozenset({"conv_strassen.cl"}), images=True)


@pytest.mark.slow  # its compiler takes seconds per kernel
@needs_rusticl
def test_rusticl_computes_the_right_results_and_is_refused_where_it_ends_loops(tmp_path: Path) -> None:
    assert RUSTICL is not None
    settings = {"RUSTICL_ENABLE": "llvmpipe", "NNSTRETCH_CACHE_DIR": str(tmp_path / "cache")}
    found = output_of(["-c", CHECKS], RUSTICL, tmp_path, settings)
    kernels, loops, probed = found.splitlines()
    assert kernels == "right"
    assert re.fullmatch(
        r"a loop of 262144 iterations ended after \d+, so large layers would be computed wrongly|right", loops
    )
    assert probed.startswith("rusticl")
    assert (loops in probed) == (loops != "right")


@needs_oclgrind
def test_invalid_writes_are_reported(tmp_path: Path) -> None:
    _, report = reports(["-c", WRITES_BEHIND], tmp_path)
    assert "Invalid write of size 4" in report


@pytest.mark.slow
@needs_oclgrind
def test_all_kernels_are_right_stay_within_their_tensors_and_have_no_races(tmp_path: Path) -> None:
    chosen = ["--guard", "0", "--kinds", "cpu", "plain", "groups", *IMAGES, "--parts", "--settings", "2"]
    findings, report = reports([*CASES, *chosen], tmp_path)
    check_cases(findings, 400, images=True)
    assert not report, report


READS_UNWRITTEN = WRITES_BEHIND.replace("x[get_global_id(0)] = 1", "int a[4]; a[0] = 1; x[0] = a[x[1] & 3]").replace(
    ".build()", ".build(['-cl-opt-disable'])"
)


@needs_oclgrind
def test_reads_of_unwritten_numbers_are_reported(tmp_path: Path) -> None:
    _, report = reports(["-c", READS_UNWRITTEN], tmp_path, "UNINITIALIZED")
    assert "ninitialized" in report


@pytest.mark.slow
@needs_oclgrind
def test_no_kernel_uses_numbers_that_were_not_written(tmp_path: Path) -> None:
    """Without optimisation: Oclgrind's check knows no `freeze`, an instruction that optimised kernels have.

    On conversions between int8 and floats it then ends by a segmentation fault; its other checks have them.
    """
    chosen = ["--guard", "0", "--kinds", "cpu", "plain", "groups", "--settings", "1", "--option=-cl-opt-disable"]
    chosen.append("--no-conversions")
    findings, report = reports([*CASES, *chosen], tmp_path, "UNINITIALIZED")
    check_cases(findings, 300)
    assert not report, report
