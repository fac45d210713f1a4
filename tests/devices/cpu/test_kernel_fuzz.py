"""Every kernel alone with random parameters, and in the parity tests under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.cpu.manifest import families
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, Isa, local_isa
from nnstretch.devices.engine.build.toolchains import make_toolchain
from tests.kits.c_libraries import runnable_sources, sanitizer_preload
from tests.kits.kernels.cpu_features import families_that_differ, runnable_isas, variant_masks

HERE = Path(__file__).parent
SANITIZE = "address,undefined"
ROUNDS, GUARDED_ROUNDS = 30, 400
KERNELS = [
    *engine_library.c_files("kernels/**/*.c"),
    *engine_library.c_files("runtime/program/registry.c", "runtime/cpu/cpu_features.c", "runtime/vectors/pieces.c"),
]

needs_sanitizers = pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")


RUNNABLE = runnable_isas()


@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=[pytest.mark.slow] * (isa != local_isa()), id=isa.name) for isa in RUNNABLE]
)
def test_no_access_beside_operands(isa: Isa) -> None:
    """Operands lie beside pages that cannot be accessed. The engine's own objects are tested.

    That is ten times faster than sanitizers, which see accesses of the stack and overflows, too.
    """
    fuzz(isa, None, GUARDED_ROUNDS)


@pytest.mark.slow
@needs_sanitizers
@pytest.mark.parametrize(
    "isa", [isa for isa in RUNNABLE if isa.block > 4 or len(RUNNABLE) == 1], ids=lambda isa: isa.name
)
def test_no_access_outside_on_memory_of_exactly_the_sizes_checked(isa: Isa) -> None:
    """Instruction sets of 4 lanes have the tiles of those of 8."""
    fuzz(isa, SANITIZE, ROUNDS)


def fuzz(isa: Isa, sanitize: str | None, rounds: int) -> None:
    """Random parameters, among them hostile ones, for every kernel that the engine has."""
    # Other tests build the same objects of engines.
    toolchain = make_toolchain(BuildTarget(isa), sanitize)
    masks = variant_masks(isa)
    tested = [file for file in runnable_sources(BuildTarget(isa), sanitize, masks) if file.path in KERNELS]
    tested += engine_library.engine_files(toolchain, [HERE / "kernel_fuzz.c"])
    program = engine_library.build_file(f"{isa.name}-kernel-fuzz", "", tested, toolchain)
    for mask in masks:
        environment = {**os.environ, "NNSTRETCH_CPU_FEATURES": mask}
        some = families_that_differ(mask) if mask else []  # others would draw and compute the same again
        command = [str(program), str(rounds), "1", *some]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, f"{done.stdout.rpartition(chr(10))[2]}: {done.stderr}"
        ran = dict(line.split() for line in done.stdout.splitlines())
        if isa == local_isa():
            of = {kernel.name: family.name for family in families().values() for kernel in family.kernels}
            assert set(ran) == {name for name in engine().kernel_names() if not some or of[name] in some}


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_sanitizers
def test_kernels_agree_with_their_references_under_sanitizers() -> None:
    """The parity tests of this machine's instruction set with a sanitized engine, in one process, whose start takes long."""
    # Kernels of other architectures run in an emulator, which no sanitizer sees.
    elsewhere = ("test_arm_parity.py", "test_opencl_parity.py")
    tests = sorted(str(path) for path in (HERE / "parity").glob("test_*_parity.py") if path.name not in elsewhere)
    assert len(tests) > 2
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer_preload(SANITIZE),
        "NNSTRETCH_TEST_CACHE_DIR": os.environ["NNSTRETCH_CACHE_DIR"],  # has the engine, or gets it for other tests
        "NNSTRETCH_TEST_EXAMPLES_DIVISOR": "10",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves memory behind on purpose
    }
    command = [sys.executable, str(HERE.parent / "engine" / "engine_scenarios.py"), "parity", SANITIZE, *tests]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
