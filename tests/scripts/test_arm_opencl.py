"""OpenCL in the emulator of ARM: the script that unpacks a driver, and a model on it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from nnstretch.cli.main import main
from scripts.engine import arm_opencl

UNPACKED = "NNSTRETCH_ARM_OPENCL"
"""Environment variable with a folder that the script has made."""


def test_a_folder_with_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert arm_opencl.main([str(tmp_path)]) == 2
    assert re.fullmatch(
        r"error: (.* has files; name a new folder|.* is not there; install .*)\n", capsys.readouterr().err
    )
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.skipif(UNPACKED not in os.environ, reason=f"takes long; set {UNPACKED} to a folder of arm_opencl.py")
def test_an_emulated_device_computes_what_onnx_runtime_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runner for ARM opens the driver and builds the kernels there."""
    folder = Path(os.environ[UNPACKED])
    for line in (folder / "environment").read_text().splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        monkeypatch.setenv(name, value.replace("$PATH", os.environ["PATH"]))
    where = ("--target", "qemu:aarch64:max,sve=off", "-p", "opencl:0@0", "--runs", "1")
    assert main(["run", "squeezenet1_1", "--image-size", "32", *where, "--no-tune", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
