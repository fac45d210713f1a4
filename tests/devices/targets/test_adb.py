"""Phones: the real adb, and a stand-in for the daemon of the phone."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nnstretch.devices.targets import device as device_module
from nnstretch.devices.targets.adb import AdbTransport
from nnstretch.devices.targets.base import TargetError, TargetTimeoutError
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.devices.targets.schemes import open_device
from nnstretch.errors import MissingExtraError
from tests.kits.boards.adb_daemon import AdbDaemon
from tests.kits.processes.ended import has_ended

QUICK = BenchOptions(seconds=0, warmup=0, patience=30)
PLACE = "/data/local/tmp"

Write = Callable[[str], Path]
PlugIn = Callable[..., AdbDaemon]


def test_commands_arrive_as_they_are(plug_in: PlugIn, tmp_path: Path) -> None:
    phone = plug_in(abi="x86_64")
    with AdbTransport(phone.serial) as transport:
        assert transport.name == f"adb:{phone.serial}"
        assert transport.machine() == "x86_64"
        words = ["a b", "c'd", '"$HOME"', "*", "", "é\n"]
        lines: list[str] = []
        found = transport.run(["printf", "%s|", *words], timeout=20)
        assert found.stdout.decode() == "".join(f"{word}|" for word in words)
        found = transport.run(
            ["sh", "-c", "echo out; echo one >&2; printf two >&2; exit 3"], timeout=20, on_stderr=lines.append
        )
        assert (found.status, found.text, found.reason) == (3, "out", "two")
        assert lines == ["one", "two"]
        content = os.urandom(700_001)
        transport.write(f"{PLACE}/a file", content, executable=True)
        (stored,) = phone.phone.folder.iterdir()
        assert stored.read_bytes() == content
        assert stored.stat().st_mode & 0o777 == 0o755
        assert transport.read(f"{PLACE}/a file") == content
        with pytest.raises(TargetError, match=r"cannot read .*No such file"):
            transport.read(f"{PLACE}/none")
        with pytest.raises(TargetTimeoutError, match="no answer within 1 s"):
            transport.run(["sleep", "30"], timeout=1)


def test_models_run_and_nothing_is_left(fake_runner: Path, plug_in: PlugIn, model: Write) -> None:
    phone = plug_in()
    with open_device(f"adb:{phone.serial}") as device:
        assert device.isa.name == "aarch64"
        assert [one.p50_ms for one in device.bench([model("one"), model("two")], QUICK).models] == [1.0, 1.0]
        assert device.outputs(model("one"), {}, patience=20)[1] == [b"\0\0\x80\x3f"]
    assert not list(phone.phone.folder.iterdir())


def test_the_only_phone_needs_no_name_and_one_of_several_does(plug_in: PlugIn, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="no device is attached"):
        AdbTransport()
    first = plug_in()
    AdbTransport(first.serial).close()
    with AdbTransport() as transport:
        assert transport.name == "adb"
        assert transport.run(["echo", "1"], timeout=20).text == "1"
    with pytest.raises(TargetError, match=f"there is no device R58M12 .attached: {first.serial}"):
        AdbTransport("R58M12")
    second = plug_in()
    AdbTransport(second.serial).close()
    with pytest.raises(TargetError, match=r"several devices are attached .*; name one as adb:SERIAL"):
        AdbTransport()
    monkeypatch.setenv("ANDROID_SERIAL", second.serial)
    AdbTransport().close()


def test_phones_that_are_offline_or_locked(adb_server: str, plug_in: PlugIn) -> None:
    phones = {state: plug_in(state=state) for state in ("offline", "unauthorized")}
    waiting = [
        subprocess.Popen([adb_server, "connect", one.serial], stdout=subprocess.DEVNULL) for one in phones.values()
    ]
    listed = ""
    while not all(phone.serial in listed for phone in phones.values()):
        time.sleep(0.1)
        listed = subprocess.run([adb_server, "devices"], capture_output=True, text=True, check=True).stdout
    with pytest.raises(TargetError, match=r"is (offline|connecting)"):
        AdbTransport(phones["offline"].serial)
    with pytest.raises(TargetError, match=r"is (unauthorized|authorizing); unlock it and allow debugging"):
        AdbTransport(phones["unauthorized"].serial)
    for one in waiting:
        one.kill()
        one.wait()


def test_a_phone_that_is_unplugged_while_a_file_is_pushed(fake_runner: Path, plug_in: PlugIn, tmp_path: Path) -> None:
    phone = plug_in()
    file = tmp_path / "large.nnm"
    file.write_bytes(b"fine" + os.urandom(600_000))
    with open_device(f"adb:{phone.serial}") as device:
        assert device.probe.cpus
        phone.phone.unplugged_after = 200_000
        assert device.bench([file], QUICK).models[0].p50_ms == 1.0
        assert phone.phone.unplugged_after is None
    assert not list(phone.phone.folder.iterdir())


def test_a_phone_that_is_unplugged_during_a_run(fake_runner: Path, plug_in: PlugIn, model: Write) -> None:
    phone = plug_in()
    unplugged: list[str] = []

    def rewrite(script: str) -> str:
        if ".nnm" in script and "--progress" in script and not unplugged:
            unplugged.append(script)
            phone.unplug()
        return script

    with open_device(f"adb:{phone.serial}") as device:
        assert device.probe.cpus
        phone.phone.rewrite = rewrite
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert unplugged
    assert not list(phone.phone.folder.iterdir())


def test_a_phone_that_restarts_gets_its_files_again(fake_runner: Path, plug_in: PlugIn, model: Write) -> None:
    """Its folder is empty then, and the connection is lost in the middle of a run."""
    phone = plug_in()
    restarts: list[str] = []

    def rewrite(script: str) -> str:
        if ".nnm" in script and "--progress" in script and not restarts:
            restarts.append(script)
            for folder in phone.phone.folder.iterdir():
                shutil.rmtree(folder)
            phone.unplug()
        return script

    with open_device(f"adb:{phone.serial}") as device:
        assert device.probe.cpus
        phone.phone.rewrite = rewrite
        phone.phone.commands.clear()
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    stored = [script for script in phone.phone.commands if "mv -f" in script]
    assert [".run" in script for script in stored] == [False, True, False]
    assert restarts
    assert not list(phone.phone.folder.iterdir())


FOR_ANOTHER_PROCESSOR = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 0xF7, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)
"""The header of an executable for a processor that this machine is not."""


def test_a_program_for_another_processor_is_one_line(
    plug_in: PlugIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(FOR_ANOTHER_PROCESSOR)
    monkeypatch.setattr(device_module, "build_runner", lambda _: wrong)
    phone = plug_in()
    with (
        open_device(f"adb:{phone.serial}") as device,
        pytest.raises(
            TargetError, match=r"does not run the runner, which is built for aarch64-linux-musl: .*Exec format"
        ) as caught,
    ):
        assert device.probe.cpus
    assert "\n" not in str(caught.value)
    assert not list(phone.phone.folder.iterdir())


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"capacity": 2000}, "No space left on device; free some space there"),
        (
            {"refuses": "couldn't create file: Read-only file system"},
            "Read-only file system; remount it writable there",
        ),
        ({"noexec": True}, "does not run programs in /data/local/tmp .*; mount it without noexec"),
        ({"abi": "x86"}, "is i686; the engine has no kernels for its CPU"),
        ({"launcher": "/bin/false"}, "does not run the runner, which is built for aarch64-linux-musl"),
    ],
)
def test_a_phone_that_cannot_be_used_is_one_line(
    fake_runner: Path, plug_in: PlugIn, model: Write, behaviour: dict[str, object], message: str
) -> None:
    phone = plug_in(**behaviour)
    with open_device(f"adb:{phone.serial}") as device, pytest.raises(TargetError, match=message) as caught:
        device.bench([model("one" + 3000 * " ")], QUICK)
    assert "\n" not in str(caught.value)
    assert not list(phone.phone.folder.iterdir())
    for name in behaviour:
        setattr(phone.phone, name, type(phone.phone).__dataclass_fields__[name].default)
    with open_device(f"adb:{phone.serial}") as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert not list(phone.phone.folder.iterdir())


def test_a_runner_that_hangs_is_ended_on_the_phone(fake_runner: Path, plug_in: PlugIn, model: Write) -> None:
    phone = plug_in()
    with open_device(f"adb:{phone.serial}") as device:
        assert device.probe.cpus
        with pytest.raises(TargetTimeoutError, match="the runner hung for 2 s and was ended"):
            device.bench([model("hang")], BenchOptions(seconds=0, warmup=0, patience=-8))
        assert has_ended(fake_runner.parent / "alive")
    assert not list(phone.phone.folder.iterdir())


def test_without_adb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(__import__("sys").modules, "adbutils", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nnstretch\[adb\]'"):
        AdbTransport()
