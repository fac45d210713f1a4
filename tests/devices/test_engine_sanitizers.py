"""The engine built with the compiler's sanitizers, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.devices.engine.build import build_engine, sanitizer_preload
from tests.devices.c_libraries import c_library

SCRIPT = Path(__file__).parent / "engine_scenarios.py"
DOUBLE = Path(__file__).parent / "opencl_double.c"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("gcc"), reason="sanitizers need gcc")]


@pytest.mark.parametrize(
    ("sanitize", "scenario", "examples"),
    [
        ("address,undefined", "fuzz", 500),
        ("address,undefined", "lanes", 20),
        ("address,undefined", "lists", 40),
        ("thread", "lanes", 40),
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
    command = [sys.executable, str(SCRIPT), scenario, str(build_engine(sanitize=sanitize)), str(examples)]
    if scenario == "lanes":
        command.append(str(c_library(DOUBLE, sanitize)))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
