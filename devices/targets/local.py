"""The local machine as a target (`local`), and emulated ones (`qemu:aarch64[:CPU]`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nnstretch.devices.targets.base import Finished, OnLine, TargetError, Transport
from nnstretch.devices.targets.processes import run_process
from nnstretch.errors import FileError, UsageError, first_line
from nnstretch.support.settings import atomic_write


class LocalTransport(Transport):
    """The local machine."""

    system: str | None = ""
    is_here = True

    def __init__(self, argument: str = "") -> None:
        """Takes no argument.

        Raises:
            UsageError: there is one.
        """
        if argument:
            raise UsageError(f"target local:{argument} is not understood; write local")
        self.name = "local"
        self.folders = (tempfile.gettempdir(),)

    def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
        try:
            return run_process(command, timeout=timeout, on_stderr=on_stderr)
        except OSError as error:
            raise TargetError(f"{self.name} cannot run {command[0]}: {error.strerror}") from error

    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        try:
            with atomic_write(Path(path)) as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file)
            if executable:
                Path(path).chmod(0o755)
        except OSError as error:
            raise TargetError(f"{self.name} cannot write {path}: {error.strerror}") from error
        except FileError as error:
            raise TargetError(f"{self.name}: {first_line(error)}") from error

    def read(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise TargetError(f"{self.name} cannot read {path}: {error.strerror}") from error


_EMULATED = {"aarch64": "qemu-aarch64", "armv7": "qemu-arm", "riscv64": "qemu-riscv64"}
"""Architectures that the engine can be built for, and QEMU's programs for them."""


class QemuTransport(LocalTransport):
    """An emulated processor of another architecture (QEMU's user mode). Its system calls are this machine's."""

    system = None

    def __init__(self, argument: str) -> None:
        """Finds the emulator.

        Args:
            argument: ARCHITECTURE[:CPU], such as "aarch64:cortex-a53".

        Raises:
            UsageError: there is no such architecture, or the emulator does not know the CPU.
            TargetError: the emulator is not installed.
        """
        super().__init__()
        self._machine, _, cpu = argument.partition(":")
        if self._machine not in _EMULATED:
            raise UsageError(
                f"target qemu:{argument} is not understood; write qemu:ARCHITECTURE[:CPU] with one of {', '.join(_EMULATED)}"
            )
        self.name = f"qemu:{argument}"
        program = _EMULATED[self._machine]
        found = shutil.which(f"{program}-static") or shutil.which(program)
        if found is None:
            raise TargetError(
                f"{self.name} needs {program}, which is not installed (Debian, Ubuntu: apt-get install qemu-user-static)"
            )
        self.launcher = (found, "-cpu", cpu) if cpu else (found,)
        if cpu:
            self._check_cpu(found, cpu)

    def machine(self) -> str:
        return self._machine

    def library_system(self) -> str | None:
        return "linux-gnu" if "QEMU_LD_PREFIX" in os.environ else None  # where the emulator looks for libraries

    def _check_cpu(self, program: str, cpu: str) -> None:
        model = cpu.partition(",")[0]
        shown = self.run([program, "-cpu", "help"], timeout=10.0).text
        known = [line.split()[0] for line in shown.splitlines() if line.startswith(" ") and line.split()]
        if known and model not in known:
            raise UsageError(f"{self.name}: the emulator does not know the CPU {model}; it knows {', '.join(known)}")
