"""The engine built with the compiler's sanitizers, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa
from nnstretch.devices.engine.build.toolchains import make_toolchain, sanitizer_preload
from tests.kits.c_libraries import c_library

SCRIPT = Path(__file__).parent / "engine_scenarios.py"
DOUBLE = Path(__file__).parents[2] / "kits" / "opencl_double.c"
RUN_BY_SCENARIOS = ("eltwise.c", "reorder.c")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


def library(sanitize: str) -> Path:
    """A sanitized engine.

    Races lie between what queues and threads run. So of the kernels only those that the scenarios run watch for them; to
    build the others so would take longer than all scenarios.
    """
    if sanitize != "thread":
        return engine_library.build_engine(sanitize=sanitize)
    target = BuildTarget(local_isa())
    sources = [
        one if one.path.parent.name == "runtime" or one.path.name in RUN_BY_SCENARIOS else other
        for one, other in zip(
            engine_library.engine_sources(target, sanitize), engine_library.engine_sources(target), strict=True
        )
    ]
    return engine_library.build_file(f"{target}-scenarios", ".so", sources, make_toolchain(target, sanitize), "-shared")


@pytest.mark.parametrize(
    ("sanitize", "scenario", "examples"),
    [
        ("address,undefined", "fuzz", 500),
        ("address,undefined", "queues", 20),
        ("address,undefined", "lists", 40),
        ("thread", "queues", 40),
        ("thread", "lists", 60),
    ],
)
def test_no_sanitizer_reports_anything(sanitize: str, scenario: str, examples: int) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": sanitizer_preload(sanitize),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaves memory behind on purpose
        "TSAN_OPTIONS": f"halt_on_error=1 suppressions={SCRIPT.with_name('thread_sanitizer.supp')}",
    }
    command = [sys.executable, str(SCRIPT), scenario, str(library(sanitize)), str(examples)]
    if scenario == "queues":
        command.append(str(c_library(DOUBLE, sanitize)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
