"""The local machine as a target."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nnstretch.devices.base.spec import format_cores, usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.targets.target import Finished, Target, TargetInfo, TransientError
from nnstretch.errors import DeviceError, FileError, UsageError
from nnstretch.support.settings import atomic_write
from nnstretch.support.worker_process import start_here

_CLOCK = "/sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq"


class LocalTarget(Target):
    """The local machine; its folder is the working directory unless another one is given."""

    name = "local"

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` exists and is writable."""
        self._folder = (folder or Path.cwd()).resolve()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return start_here(command, environment, pass_fds, errors)

    def push(self, source: Path, name: str) -> None:
        _copy(source, self._inside(name))

    def pull(self, name: str, destination: Path) -> None:
        _copy(self._inside(name), destination)

    def run(self, command: Sequence[str], *, cores: Sequence[int] = (), timeout: float = 60.0) -> Finished:
        allowed = usable_cores()
        if not set(cores) <= set(allowed):
            raise DeviceError(f"cores {format_cores(tuple(cores))} cannot be used; there are {format_cores(allowed)}")
        start = time.perf_counter()
        try:
            done = subprocess.run(
                _pinned(command, cores), cwd=self._folder, capture_output=True, text=True, timeout=timeout, check=False
            )
        except OSError as error:
            raise DeviceError(f"cannot run {command[0]} on {self.name}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise TransientError(f"{command[0]} took more than {timeout:g} s on {self.name} and was killed") from error
        return Finished(done.returncode, done.stdout, done.stderr, time.perf_counter() - start)

    def probe(self) -> TargetInfo:
        cores = usable_cores()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return TargetInfo(cpu_model(), cores, tuple(map(_clock_mhz, cores)), memory, platform.machine())

    def _inside(self, name: str) -> Path:
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder) or path == self._folder:
            raise UsageError(f"{name!r} is outside the target's folder; give a name inside it")
        return path


def _pinned(command: Sequence[str], cores: Sequence[int]) -> list[str]:
    return ["taskset", "--cpu-list", ",".join(map(str, cores)), *command] if cores else list(command)


def _clock_mhz(core: int) -> float:
    path = Path(_CLOCK.format(core=core))
    return float(path.read_text()) / 1000 if path.exists() else 0.0


def _copy(source: Path, destination: Path) -> None:
    try:
        with source.open("rb") as file:
            destination.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(destination) as copy:
                shutil.copyfileobj(file, copy)
    except OSError as error:
        raise FileError(f"cannot copy {source} to {destination}: {error.strerror}") from error
