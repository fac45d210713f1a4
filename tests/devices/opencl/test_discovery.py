"""OpenCL drivers that crash or hang while they are listed are named and left out; the others work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnstretch.devices.opencl import discovery
from nnstretch.devices.opencl.discovery import environment_without, failing_drivers, icd_files
from tests.kits.c_libraries import c_library

SOURCE = """
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void load(void) {
    const char *log = getenv("LOADS");
    int file = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0 && write(file, ".", 1) == 1)
        close(file);
    HOW;
}
"""
ENDS = {"crash": "raise(SIGSEGV)", "hang": "for (;;) pause()", "exit": "_exit(7)", "nothing": "(void)0"}


@pytest.fixture
def vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which OpenCL looks for drivers; nothing is known of them."""
    folder = tmp_path / "vendors"
    folder.mkdir()
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("LOADS", str(tmp_path / "loads"))
    return folder


def add(vendors: Path, name: str) -> Path:
    """Adds a driver that ends as `ENDS` says when it is loaded; its .icd file."""
    source = vendors.parent / f"{name}.c"
    source.write_text(SOURCE.replace("HOW", ENDS[name]))
    file = vendors / f"{name}.icd"
    file.write_text(f"{c_library(source)}\n")
    return file


def loads(vendors: Path) -> int:
    """How often the drivers of `add` were loaded, together."""
    log = vendors.parent / "loads"
    return len(log.read_text()) if log.exists() else 0


@pytest.fixture
def own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of results. The engine's stays, since it takes long to build."""
    monkeypatch.setattr(discovery, "cache_dir", lambda inside="": made(tmp_path / "cache" / inside))


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.usefixtures("own_results")
@pytest.mark.parametrize(("name", "reason"), [("crash", "killed by signal 11"), ("exit", "ended with status 7")])
def test_a_driver_that_ends_the_process_is_named_once(name: str, reason: str, vendors: Path) -> None:
    good, bad = add(vendors, "nothing"), add(vendors, name)
    (failing,) = failing_drivers().items()
    assert failing[0] == bad
    assert failing[1].startswith(reason)
    before = loads(vendors)
    assert failing_drivers() == dict([failing])
    assert loads(vendors) == before
    left = Path(environment_without({bad: reason})["OCL_ICD_VENDORS"])
    assert [file.name for file in left.iterdir()] == [good.name]
    assert (left / good.name).read_text() == good.read_text()


@pytest.mark.usefixtures("own_results")
def test_a_driver_that_hangs_is_named(vendors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_SECONDS", 1)
    bad = add(vendors, "hang")
    assert failing_drivers() == {bad: "no answer within 1 s"}


def test_a_process_that_a_driver_hangs_ends_with_its_parent(vendors: Path) -> None:
    add(vendors, "hang")
    code = "import os, subprocess, sys; subprocess.run([*sys.argv[1:], str(os.getpid())])"
    parent = subprocess.Popen([sys.executable, "-c", code, *discovery.WORKER])
    while not loads(vendors):
        assert parent.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    child = Path("/proc") / children.read_text().strip() / "stat"
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child still runs")


@pytest.mark.usefixtures("own_results")
def test_a_mended_driver_is_tested_again(vendors: Path) -> None:
    file = add(vendors, "crash")
    assert list(failing_drivers()) == [file]
    file.write_text(add(vendors, "nothing").read_text())
    assert not failing_drivers()
    assert environment_without({}) == {}


@pytest.mark.usefixtures("own_results")
def test_drivers_that_work_are_listed_in_one_process_once(vendors: Path) -> None:
    add(vendors, "nothing")
    assert not failing_drivers()
    assert loads(vendors) == 1
    assert not failing_drivers()
    assert loads(vendors) == 1


@pytest.mark.usefixtures("own_results")
def test_failures_are_tested_again_later(vendors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(vendors, "crash")
    before = [*failing_drivers(), loads(vendors)]
    monkeypatch.setattr(discovery, "_FAILURE_COUNTS", 0)
    assert [*failing_drivers(), loads(vendors) // 2] == before


def test_no_driver_is_no_work(vendors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "WORKER", ("false",))
    assert icd_files() == ()
    assert failing_drivers() == {}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of nnstretch in a process of its own."""
    command = [sys.executable, "-m", "nnstretch.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)


@pytest.mark.opencl
def test_devices_lists_the_others_beside_a_driver_that_crashes(vendors: Path) -> None:
    known = Path("/etc/OpenCL/vendors")
    if not known.is_dir():
        pytest.skip("the drivers of this machine are not named in the usual folder")
    for file in known.glob("*.icd"):
        (vendors / file.name).write_text(file.read_text())
    bad = add(vendors, "crash")
    done = run("devices", "--json")
    assert done.returncode == 0, done.stderr
    assert any(one["kind"] == "opencl" for one in json.loads(done.stdout)["processors"])
    (line,) = (line for line in done.stderr.splitlines() if "crash.icd" in line)
    assert line == (
        f"warning: OpenCL driver {bad} is left out: killed by signal 11 (Segmentation fault); update or remove it"
    )


def test_opencl_is_refused_in_one_line_if_all_drivers_crash(vendors: Path) -> None:
    bad = add(vendors, "crash")
    done = run("run", "resnet18", "-p", "opencl:0", "--no-tune", "--runs", "1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: no OpenCL driver works: {bad} (killed by signal 11 (Segmentation fault)); update it, or leave opencl "
        "out of the processors"
    )
