"""Targets of the tests: this machine, a phone (real adb, a stand-in for its daemon) and a board (real ssh and sshd)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nnstretch.cli.main import main
from nnstretch.devices.engine.build.instruction_sets import BuildTarget
from nnstretch.devices.targets import device
from tests.kits.boards.adb_daemon import AdbDaemon, Phone
from tests.kits.boards.fake_runner import write_fake_runner
from tests.kits.boards.ssh_board import Board, find_sshd, ssh_board
from tests.kits.command_line import Answer, Cli


@pytest.fixture
def fake_runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runner that computes nothing, for every target; attempts follow each other at once."""
    folder = tmp_path / "runner"
    folder.mkdir()
    file = write_fake_runner(folder)

    def build(target: BuildTarget) -> Path:
        return file

    monkeypatch.setattr(device, "build_runner", build)
    monkeypatch.setattr(device, "BACK_OFF", (0.0, 0.0, 0.0))
    return file


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a model file for the fake runner."""

    def write(content: str = "fine") -> Path:
        file = tmp_path / f"{content[:20]}.nnm"
        file.write_text(content)
        return file

    return write


@pytest.fixture(scope="session")
def adb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the real adb on a port of its own; gives the program."""
    pytest.importorskip("adbutils")
    from nnstretch.devices.targets.adb import client

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("adb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        patch.delenv("ANDROID_SERIAL", raising=False)
        environment = {**os.environ, "HOME": str(home), "ADB_MDNS_AUTO_CONNECT": "0"}
        subprocess.run([client(), "start-server"], check=True, env=environment, capture_output=True, timeout=60)
        try:
            yield client()
        finally:
            subprocess.run([client(), "kill-server"], check=True, capture_output=True, timeout=60)


@pytest.fixture
def plug_in(adb_server: str, tmp_path: Path) -> Iterator[Callable[..., AdbDaemon]]:
    """Attaches phones that behave as asked for; they are detached at the end."""
    daemons: list[AdbDaemon] = []

    def attach(**behaviour: object) -> AdbDaemon:
        folder = tmp_path / f"phone-{len(daemons)}"
        folder.mkdir()
        daemons.append(AdbDaemon(Phone(folder, **behaviour)))  # type: ignore[arg-type]
        return daemons[-1]

    yield attach
    for daemon in daemons:
        subprocess.run([adb_server, "disconnect", daemon.serial], check=False, capture_output=True, timeout=60)
        daemon.close()


@pytest.fixture
def emulator() -> str:
    """The emulator of ARM processors; skips the test where there is none."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    return found


@pytest.fixture(scope="session")
def running_board() -> Iterator[Board]:
    """A board with an ARM processor."""
    sshd = find_sshd()
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("OpenSSH's server or client is not installed")
    with ssh_board(sshd, shutil.which("qemu-aarch64-static") or "") as board:
        yield board


@pytest.fixture
def board(running_board: Board, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """The board, with an `ssh` that knows it."""
    monkeypatch.setenv("PATH", f"{running_board.client()}:{os.environ['PATH']}")
    yield running_board
    running_board.restore()
    assert not list(running_board.home.rglob("nnstretch-*"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Calls a command in a folder of its own; returns exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
