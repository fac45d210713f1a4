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
from nnstretch.devices.engine.build.toolchains import make_toolchain
from tests.kits.c_libraries import c_library, sanitizer_preload, thread_sanitized_sources

SCRIPT = Path(__file__).parent / "engine_scenarios.py"
DOUBLE = Path(__file__).parents[2] / "kits" / "opencl" / "opencl_double.c"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


def library(sanitize: str) -> Path:
    if sanitize != "thread":
        return engine_library.build_engine(sanitize=sanitize)
    target = BuildTarget(local_isa())
    sources = thread_sanitized_sources(target)
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
