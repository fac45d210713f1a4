"""Android devices (`adb[:SERIAL]`), reached by Android's own client.

The client is the `adb` of the PATH, or that of the wheel adbutils (extra `adb`). ANDROID_ADB_SERVER_PORT and ANDROID_SERIAL
apply. A serial HOST:PORT is connected to first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from nnstretch.devices.targets.base import (
    SHORT,
    Finished,
    OnLine,
    TargetError,
    TargetTimeoutError,
    TransientTargetError,
)
from nnstretch.devices.targets.processes import run_process
from nnstretch.devices.targets.shell import ShellTransport, is_storage_error, lost, part_of
from nnstretch.support.extras import extras_named
from nnstretch.support.settings import android_ndk

_ABIS = {"arm64-v8a": "aarch64", "armeabi-v7a": "armv7", "x86_64": "x86_64", "x86": "i686", "riscv64": "riscv64"}
"""Android's names of architectures -> those of `uname -m`. A 32-bit system may run on a 64-bit kernel."""
_ADDRESS = re.compile(r".+:\d+")
_ADVICE = {
    "offline": "unplug it and plug it in again",
    "unauthorized": "unlock it and allow debugging from this computer",
    "authorizing": "unlock it and allow debugging from this computer",
    "no permissions": "this user may not open its USB device; add a udev rule",
}
_BRIEF = 20.0
"""Seconds that the client's own commands may take."""


class AdbTransport(ShellTransport):
    """One Android device."""

    folders = ("/data/local/tmp",)

    def __init__(self, argument: str = "") -> None:
        """Finds the device.

        Args:
            argument: its serial or HOST:PORT; empty for the only one, or for that of ANDROID_SERIAL.

        Raises:
            TargetError: there is no such device, it cannot be used, or several are there and none is named.
            MissingExtraError: there is no adb.
        """
        self.name = f"adb:{argument}" if argument else "adb"
        self._adb = client()
        wanted = argument or os.environ.get("ANDROID_SERIAL", "")
        if _ADDRESS.fullmatch(wanted) and wanted not in self._devices():
            self._client("connect", wanted)
        try:
            self._serial = self._chosen(wanted)
        except TransientTargetError as error:
            raise TargetError(str(error)) from error

    def machine(self) -> str:
        abi = self.run(["getprop", "ro.product.cpu.abi"], timeout=SHORT).text
        return _ABIS.get(abi, abi) or super().machine()

    def library_system(self) -> str | None:
        return None if android_ndk() is None else "android"

    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        if isinstance(content, bytes):
            with NamedTemporaryFile(prefix="nnstretch-") as file:
                file.write(content)
                file.flush()
                self.write(path, Path(file.name), executable)
            return
        temporary = part_of(path)
        pushed = self._client("-s", self._serial, "push", str(content), temporary, timeout=_PUSH)
        if pushed.status:
            said = pushed.stdout + pushed.stderr
            # The client may report a small file as pushed after it has said why the device did not store it.
            refusal = next(filter(is_storage_error, said.decode(errors="replace").splitlines()), None)
            if refusal is None:
                raise self._lost(Finished(pushed.status, b"", said).reason)
            self.run(["rm", "-f", temporary], timeout=SHORT)
            raise self.refused(path, refusal.strip())
        self._move(temporary, path, "755" if executable else "644", content.stat().st_size)

    def reconnect(self) -> None:
        if _ADDRESS.fullmatch(self._serial):
            self._client("disconnect", self._serial)
            self._client("connect", self._serial)
        self._chosen(self._serial)

    def _call(self, script: str, content: bytes | Path, timeout: float, on_stderr: OnLine | None) -> Finished:
        return self._process(("-s", self._serial, "shell", "-T", script), content, timeout, on_stderr)

    def _lost(self, reason: str) -> TargetError:
        return lost(self.name, reason.removeprefix("error: ").removeprefix("adb: "))

    def _client(self, *arguments: str, timeout: float = _BRIEF) -> Finished:
        """Runs one of the client's own commands."""
        try:
            return self._process(arguments, b"", timeout, None)
        except TargetTimeoutError as error:
            raise TransientTargetError(
                f"{self.name}: adb does not answer ({arguments[0]}); check the device"
            ) from error

    def _process(
        self, arguments: Sequence[str], content: bytes | Path, timeout: float, on_stderr: OnLine | None
    ) -> Finished:
        try:
            return run_process([self._adb, *arguments], timeout=timeout, content=content, on_stderr=on_stderr)
        except OSError as error:
            raise TargetError(f"{self.name}: cannot run {self._adb}: {error.strerror}") from error

    def _devices(self) -> Mapping[str, str]:
        """Serial -> state of every device that the adb server knows."""
        found = self._client("devices")
        if found.status:
            raise TargetError(f"{self.name}: adb cannot list devices: {found.reason}")
        lines = [line.split(None, 1) for line in found.text.splitlines()[1:] if not line.startswith("*")]
        return {line[0]: line[1] for line in lines if len(line) == 2}

    def _chosen(self, wanted: str) -> str:
        """The serial of the device that is meant. Raises as the constructor does."""
        states = self._devices()
        listed = ", ".join(states) or "none"
        if not wanted and len(states) > 1:
            raise TargetError(f"adb: several devices are attached ({listed}); name one as adb:SERIAL")
        serial = wanted or next(iter(states), "")
        if not serial:
            raise TargetError("adb: no device is attached; plug one in and enable USB debugging, or name adb:HOST:PORT")
        if serial not in states:
            raise TransientTargetError(f"adb: there is no device {serial} (attached: {listed}); check `adb devices`")
        state = states[serial]
        if state != "device":
            advice = next((text for word, text in _ADVICE.items() if state.startswith(word)), "check `adb devices`")
            kind = TransientTargetError if state == "offline" else TargetError
            raise kind(
                f"adb:{serial} is {state.split(maxsplit=1)[0] if 'permissions' not in state else 'not accessible'}; {advice}"
            )
        return serial


_PUSH = 1800.0


def client() -> str:
    """Android's client program.

    Raises:
        MissingExtraError: there is none.
    """
    found = shutil.which("adb")
    if found is not None:
        return found
    with extras_named():
        import adbutils

        return str(adbutils.adb_path())
