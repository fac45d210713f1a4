"""A driver that crashes is named in one line, and the signal still ends the process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from nnstretch.devices.opencl.drivers import probe
from tests.kits.opencl.opencl_faults import Fault, library

NETWORK = """<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,8,8] x) => (float[1,16,8,8] y) { a = Relu (x) y = Add (a, x) }"""

COMMAND = """
import ctypes, os, sys
from nnstretch.cli.main import main
from nnstretch.devices.engine.binding.program import opencl_library
faults = ctypes.CDLL(os.environ["LD_PRELOAD"])
assert faults.faults_open(opencl_library().encode())
function, number, *command = sys.argv[1:]
faults.faults_set.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int)
faults.faults_set(function.encode(), 1, 1, KIND, int(number))
raise SystemExit(main(command))
""".replace("KIND", str(int(Fault.CRASH)))


def run(*command: str, preload: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A process without core dumps."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if preload is not None:
        environment["LD_PRELOAD"] = str(preload)
    limited = ["sh", "-c", 'ulimit -c 0; exec "$@"', "sh", sys.executable, "-c", *command]
    return subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120, env=environment)


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("function", "number", "what"),
    [
        ("clBuildProgram", signal.SIGSEGV, r"compiled \w+\.cl; update that driver, or leave opencl:0 out"),
        ("clBuildProgram", signal.SIGABRT, r"compiled \w+\.cl; update that driver, or leave opencl:0 out"),
        ("clCreateKernel", signal.SIGSEGV, "was in use; if the same command works without opencl:0, update"),
    ],
)
def test_a_command_names_the_driver_that_crashed(
    function: str, number: signal.Signals, what: str, tmp_path: Path
) -> None:
    device = probe()[0]
    onnx.save(onnx.parser.parse_model(NETWORK), tmp_path / "net.onnx")
    command = ("run", str(tmp_path / "net.onnx"), "-p", "opencl:0", "--no-tune", "--runs", "1")
    done = run(COMMAND, function, str(int(number)), *command, preload=library())
    assert done.returncode == -number, done.stderr
    (line,) = done.stderr.splitlines()
    driver = re.escape(f"the OpenCL driver {device.platform} {device.driver} of opencl:0 ({device.name})")
    assert re.match(f"error: {number.name} while {driver} {what}", line)


SET = "from nnstretch.devices.engine.binding.library import engine\nengine().set_crash_line('{}')\n"
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def test_the_last_text_is_written_once() -> None:
    done = run(SET.format("one") + SET.format("x" * 1000) + SET.format("two") + CRASH)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr == "error: SIGSEGV two\n"


def test_a_long_text_is_one_line() -> None:
    done = run(SET.format("x" * 1000) + CRASH)
    assert done.returncode == -signal.SIGSEGV
    assert len(done.stderr) == 511
    assert done.stderr.index("\n") == 510


FAULT = "import ctypes\nctypes.string_at(1, 9)\n"


@pytest.mark.parametrize("crash", [CRASH, FAULT, "import os\nos.abort()\n"])
def test_a_handler_that_there_was_runs_next(crash: str) -> None:
    done = run("import faulthandler\nfaulthandler.enable()\n" + SET.format("here") + crash)
    number = signal.SIGABRT if "abort" in crash else signal.SIGSEGV
    assert done.returncode == -number
    line, *rest = done.stderr.splitlines()
    assert line == f"error: {number.name} here"
    assert rest[0].startswith("Fatal Python error")


# A handler that puts back what it found when it was installed, as LLVM's does, and returns.
RESTORING = """
import ctypes, signal
libc = ctypes.CDLL(None)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
found = 0
@handler
def restore(number):
    libc.signal(number, found)
found = libc.signal(signal.SIGSEGV, ctypes.cast(restore, ctypes.c_void_p))
"""


@pytest.mark.parametrize("crash", [CRASH, FAULT])
def test_handlers_that_put_each_other_back_do_not_hang(crash: str) -> None:
    done = run(SET.format("first") + RESTORING + SET.format("again") + crash)
    assert done.returncode == -signal.SIGSEGV
    assert done.stderr == "error: SIGSEGV again\n"


@pytest.mark.opencl
def test_a_program_that_imports_the_library_keeps_its_handlers() -> None:
    script = """
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.opencl.runtime import OpenCLRuntime
OpenCLRuntime(ProcessorSpec("opencl", 0))
"""
    done = run(script + FAULT)
    assert done.returncode == -signal.SIGSEGV
    assert not done.stderr
