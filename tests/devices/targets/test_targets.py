"""Targets: files there and back, commands on chosen cores, and errors that tell final from transient."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.targets import LocalTarget, TransientError
from nnstretch.errors import DeviceError, FileError, UsageError

AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    folder = tmp_path / "target"
    folder.mkdir()
    return LocalTarget(folder)


def test_files_go_there_and_back(target: LocalTarget, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 1000)
    target.push(source, "deep/copy")
    target.pull("deep/copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".", "a/../../b"])
def test_names_stay_in_the_folder(target: LocalTarget, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="folder"):
        target.pull(name, tmp_path / "back")


def test_a_missing_file_is_named(target: LocalTarget, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nothing"):
        target.pull("nothing", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_commands_run_in_the_folder_on_their_cores(target: LocalTarget) -> None:
    core = usable_cores()[-1]
    done = target.run([sys.executable, "-c", AFFINITY], cores=[core])
    assert (done.status, done.output.strip()) == (0, str([core]))
    assert target.run([sys.executable, "-c", "raise SystemExit(3)"]).status == 3


def test_errors_are_final_or_transient(target: LocalTarget) -> None:
    with pytest.raises(TransientError, match="ended"):
        target.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.3)
    with pytest.raises(DeviceError, match="no-such-command"):
        target.run(["no-such-command"])
    with pytest.raises(DeviceError, match="9999"):
        target.run([sys.executable], cores=[9999])


def test_probe_says_what_this_machine_is(target: LocalTarget) -> None:
    info = target.probe()
    assert info.cores == usable_cores()
    assert len(info.clocks_mhz) == len(info.cores)
    assert info.memory_bytes > 1 << 28
    assert info.cpu
