"""Ctrl-C while a command begins, and in a library that makes another error of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nnstretch.api import devices
from nnstretch.cli.main import main
from nnstretch.support.interrupts import check_interrupted


def test_an_interrupted_import_is_no_failure_of_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> devices.DeviceInfo:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return devices.DeviceInfo(name, name, name, 1, ("float32",), usable=False, why_not="it is not installed")

    monkeypatch.setattr(devices, "_opencl", list)
    monkeypatch.setattr(devices, "_external", interrupted)
    assert main(["devices"]) == 130
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "interrupted"
    assert said.out == ""
    check_interrupted()  # the next command begins without the interrupt


PASSED_ON = """
import signal
signal.raise_signal(signal.SIGINT)
"""
MADE_ANOTHER = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ValueError("it is not installed") from None
"""


def loaded_with(typer: str, entry: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command whose first library does what is given."""
    (folder / "typer.py").write_text(typer)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", entry, "zoo"]
    return subprocess.run(command, check=False, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("typer", [PASSED_ON, MADE_ANOTHER])
@pytest.mark.parametrize("entry", ["nnstretch", "nnstretch.cli.main"])
def test_an_interrupt_while_a_command_is_loaded_is_one_line(tmp_path: Path, typer: str, entry: str) -> None:
    done = loaded_with(typer, entry, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_error_while_a_command_is_loaded_is_shown(tmp_path: Path) -> None:
    done = loaded_with("raise ValueError('of the library')", "nnstretch", tmp_path)
    assert done.returncode == 1
    assert "ValueError: of the library" in done.stderr
