"""Every kernel under the address and undefined-behaviour sanitizers: alone with random parameters, and in the parity tests."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.engine import build
from nnstretch.devices.engine.binding import engine

HERE = Path(__file__).parent
SANITIZE = "address,undefined"
ROUNDS = 300

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


@pytest.mark.parametrize(
    "isa", [isa for isa in build.ISAS if isa.features <= build.local_isa().features], ids=lambda isa: isa.name
)
def test_no_access_outside_on_memory_of_exactly_the_sizes_checked(isa: build.Isa, tmp_path: Path) -> None:
    """Random parameters, among them hostile ones, for every kernel that the engine has."""
    if isa.name.startswith("aarch64") != (platform.machine() == "aarch64"):
        pytest.skip("another architecture's instructions")
    sources = [*sorted((build.HERE / "kernels").glob("*.c")), build.HERE / "src" / "registry.c"]
    program = tmp_path / "kernel_fuzz"
    flags = [
        "-O0",
        "-std=c11",
        f"-fsanitize={SANITIZE}",
        *build.SANITIZERS[SANITIZE],
        "-D_GNU_SOURCE",
        *isa.flags,
    ]
    flags = [flag for flag in flags if not flag.startswith("-mprefer")]
    includes = [f"-DNNS_BLOCK={isa.block}", f"-I{build.HERE / 'include'}", f"-I{build.HERE / 'src'}"]
    command = ["gcc", *flags, *includes, str(HERE / "kernel_fuzz.c"), *map(str, sources), "-lm", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program), str(ROUNDS), "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = dict(line.split() for line in done.stdout.splitlines())
    if isa == build.local_isa():
        assert set(ran) == set(engine().kernel_names())


@pytest.mark.parametrize(
    "tests", sorted(path.name for path in HERE.glob("test_*_parity.py") if "opencl" not in path.name)
)
def test_kernels_agree_with_their_references_under_sanitizers(tests: str) -> None:
    """The parity tests of this machine's instruction set once more, with an engine that finds errors in itself."""
    environment = {
        **os.environ,
        "LD_PRELOAD": build.sanitizer_preload(SANITIZE),
        "NNSTRETCH_TEST_EXAMPLES_DIVISOR": "6",
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves memory behind on purpose
    }
    command = [sys.executable, str(HERE / "engine_scenarios.py"), "parity", SANITIZE, str(HERE / tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
