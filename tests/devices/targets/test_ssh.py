"""Boards: the real ssh, and a real sshd on the loopback address that runs as another user."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nnstretch.devices.targets import device as device_module
from nnstretch.devices.targets.base import TargetError, TargetTimeoutError, TransientTargetError
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.devices.targets.schemes import open_device
from nnstretch.devices.targets.ssh import SshTransport
from tests.kits.boards.ssh_board import DROP, Board
from tests.kits.processes.ended import has_ended

QUICK = BenchOptions(seconds=0, warmup=0, patience=30)

Write = Callable[[str], Path]


@pytest.fixture
def address(board: Board) -> str:
    return board.target.removeprefix("ssh:")


def test_commands_arrive_as_they_are(board: Board, address: str) -> None:
    with SshTransport(address) as transport:
        assert transport.name == board.target
        assert transport.machine() == "aarch64"
        words = ["a b", "c'd", '"$HOME"', "*", "", "é\n", "-n"]
        found = transport.run(["printf", "%s|", *words], timeout=20)
        assert found.stdout.decode() == "".join(f"{word}|" for word in words)
        lines: list[str] = []
        found = transport.run(
            ["sh", "-c", "echo out; echo one >&2; printf two >&2; exit 255"], timeout=20, on_stderr=lines.append
        )
        assert (found.status, found.text, found.reason) == (255, "out", "two")
        assert lines == ["one", "two"]
        content = os.urandom(700_001)
        transport.write("a file", content, executable=True)
        assert (board.home / "a file").read_bytes() == content
        assert (board.home / "a file").stat().st_mode & 0o777 == 0o755
        assert transport.read("a file") == content
        if os.getuid() == 0:
            assert transport.run(["id", "-u"], timeout=20).text == "65534"
        with pytest.raises(TargetError, match=r"cannot read .*No such file"):
            transport.read("none")
        with pytest.raises(TargetTimeoutError, match="no answer within 1 s"):
            transport.run(["sleep", "2"], timeout=1)
        (board.home / "a file").unlink()


def test_models_run_and_nothing_is_left(fake_runner: Path, board: Board, model: Write) -> None:
    with open_device(board.target) as device:
        assert device.isa.name == "aarch64"
        assert [one.p50_ms for one in device.bench([model("one"), model("two")], QUICK).models] == [1.0, 1.0]
        assert list(board.home.glob(".cache/nnstretch-*/*.run"))
    assert not list(board.home.glob(".cache/*"))


def test_hosts_that_refuse(board: Board, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = address.partition(":")
    with pytest.raises(TargetError, match=r"there is no host of this name.*no\.such\.host"):
        SshTransport("no.such.host.invalid")
    with pytest.raises(TransientTargetError, match=r"does not answer .*refused"):
        SshTransport(f"{host}:1")
    with pytest.raises(TargetError, match="accepts no key of this user; copy one by `ssh-copy-id somebody@"):
        SshTransport(f"somebody@{host}:{port}")
    monkeypatch.setenv("PATH", f"{board.client('stranger')}:{os.environ['PATH']}")
    with pytest.raises(TargetError, match="accepts no key of this user"):
        SshTransport(address)
    known = (board.keys / "known").read_text()
    (board.keys / "known").write_text("")
    try:
        with pytest.raises(TargetError, match="key is not known or has changed; log in once by `ssh "):
            SshTransport(address)
    finally:
        (board.keys / "known").write_text(known)


def test_a_connection_that_breaks_during_a_run(fake_runner: Path, board: Board, model: Write) -> None:
    board.before(
        f"case $SSH_ORIGINAL_COMMAND in *--progress*) [ -f {board.home}/broke ] || "
        f"{{ touch {board.home}/broke; {DROP}; }} ;; esac"
    )
    with open_device(board.target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert (board.home / "broke").exists()
    (board.home / "broke").unlink()


def test_a_file_that_arrives_in_part_does_not_appear(board: Board, address: str) -> None:
    board.before("case $SSH_ORIGINAL_COMMAND in *part*) head -c 1000 >/dev/null ;; esac")
    with SshTransport(address) as transport:
        with pytest.raises(TargetError, match="cannot write model"):
            transport.write("model", os.urandom(5000))
        assert not list(board.home.glob("model*"))
        board.before("")
        transport.write("model", b"12345")
        assert (board.home / "model").read_bytes() == b"12345"
    (board.home / "model").unlink()


FULL = """
case $SSH_ORIGINAL_COMMAND in *.nnm.*.part*)
  ln -s /dev/full "$(printf %s "$SSH_ORIGINAL_COMMAND" | grep -o '[^ >]*[.]nnm[.][^ >]*[.]part' | head -n 1)" ;;
esac
"""
"""Has the system itself refuse the bytes of a model file, as it does on a full disk."""


@pytest.mark.parametrize(
    ("before", "program", "script", "message"),
    [
        (
            FULL,
            *("uname", "echo aarch64"),
            r"cannot write \.cache/nnstretch-\S+\.nnm: No space left on device; free some space there$",
        ),
        (
            "",
            "chmod",
            'exec /bin/chmod 644 "$2"',
            r"does not run programs in \.cache \(.*denied.*; mount it without noexec",
        ),
        (
            "",
            "mkdir",
            "echo 'mkdir: cannot create directory: Read-only file system' >&2; exit 1",
            "remount it writable",
        ),
        ("", "uname", "echo ppc64le", "is ppc64le; the engine has no kernels"),
    ],
)
def test_a_board_that_cannot_be_used_is_one_line(
    fake_runner: Path, board: Board, model: Write, before: str, program: str, script: str, message: str
) -> None:
    with open_device(board.target) as device:
        board.before(before)
        board.replace(program, script)
        with pytest.raises(TargetError, match=message) as caught:
            device.bench([model("one" + 3000 * " ")], QUICK)
    assert "\n" not in str(caught.value)
    board.restore()
    with open_device(board.target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0


def test_a_program_for_another_processor_is_one_line(
    board: Board, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The board's processor, an emulated one, refuses a program of this machine."""
    if Path("/bin/true").read_bytes()[18:20] == b"\xb7\0":
        pytest.skip("this machine has the processor of the board")
    monkeypatch.setattr(device_module, "build_runner", lambda _: Path("/bin/true"))
    with (
        open_device(board.target) as device,
        pytest.raises(TargetError, match=r"runner, which is built for aarch64-linux-musl: .*ELF image") as caught,
    ):
        assert device.probe.cpus
    assert "\n" not in str(caught.value)


def test_a_board_that_restarts_gets_its_files_again(fake_runner: Path, board: Board, model: Write) -> None:
    """Its folder is empty then, and the connection is lost in the middle of a run."""
    board.before(
        f"""case $SSH_ORIGINAL_COMMAND in
*chmod*) echo stored >>{board.home}/log ;;
*--progress*) grep -q restarted {board.home}/log || {{
  echo restarted >>{board.home}/log; rm -rf .cache/nnstretch-*; {DROP}; }} ;;
esac"""
    )
    with open_device(board.target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert (board.home / "log").read_text().split() == ["stored", "stored", "restarted", "stored", "stored"]
    (board.home / "log").unlink()


def test_the_connection_ends_with_the_device(board: Board, address: str) -> None:
    transport = SshTransport(address)
    assert transport.run(["true"], timeout=20).status == 0
    folder = transport._folder
    transport.close()
    assert not folder.exists()
    found = subprocess.run(["pgrep", "-f", str(folder)], capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_a_runner_that_hangs_is_ended_on_the_board(fake_runner: Path, board: Board, model: Write) -> None:
    fake_runner.write_text(
        fake_runner.read_text().replace(str(fake_runner.parent / "alive"), str(board.home / "alive"))
    )
    with open_device(board.target) as device:
        assert device.probe.cpus
        with pytest.raises(TargetTimeoutError, match="the runner hung for 2 s and was ended"):
            device.bench([model("hang")], BenchOptions(seconds=0, warmup=0, patience=-8))
        assert has_ended(board.home / "alive")
    (board.home / "alive").unlink()
