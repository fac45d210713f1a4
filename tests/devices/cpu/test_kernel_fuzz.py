"""Every kernel under the address and undefined-behaviour sanitizers: alone with random parameters, and in the parity tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, Isa, local_isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, make_toolchain, sanitizer_preload

HERE = Path(__file__).parent
SANITIZE = "address,undefined"
ROUNDS = 300
KERNELS = [
    *engine_library.c_files("kernels/**/*.c"),
    *(ENGINE_FOLDER / "runtime" / name for name in ("registry.c", "cpu_features.c")),
]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa.features <= local_isa().features], ids=lambda isa: isa.name)
def test_no_access_outside_on_memory_of_exactly_the_sizes_checked(isa: Isa) -> None:
    """Random parameters, among them hostile ones, for every kernel that the engine has."""
    # Other tests build the same objects of sanitized engines.
    toolchain = make_toolchain(BuildTarget(isa), SANITIZE)
    tested = [file for file in engine_library.engine_sources(BuildTarget(isa), SANITIZE) if file.path in KERNELS]
    hidden = {feature for file in tested for feature in engine_library.variant_features(file.path)}
    tested += engine_library.source_files(toolchain, [HERE / "kernel_fuzz.c"], ("include", "runtime", "kernels"))
    program = engine_library.build_file(f"{isa.name}-kernel-fuzz", "", tested, toolchain)
    for mask in dict.fromkeys(("", ",".join(f"-{feature}" for feature in sorted(hidden)))):
        environment = {**os.environ, "NNSTRETCH_CPU_FEATURES": mask}
        command = [str(program), str(ROUNDS), "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        ran = dict(line.split() for line in done.stdout.splitlines())
        if isa == local_isa():
            assert set(ran) == set(engine().kernel_names())


@pytest.mark.parametrize(
    "tests", sorted(path.name for path in HERE.glob("test_*_parity.py") if "opencl" not in path.name)
)
def test_kernels_agree_with_their_references_under_sanitizers(tests: str) -> None:
    """The parity tests of this machine's instruction set with a sanitized engine."""
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer_preload(SANITIZE),
        "NNSTRETCH_TEST_EXAMPLES_DIVISOR": "6",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves memory behind on purpose
    }
    command = [
        sys.executable,
        str(HERE.parent / "engine" / "engine_scenarios.py"),
        "parity",
        SANITIZE,
        str(HERE / tests),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
