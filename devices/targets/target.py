"""Interface of a target: a machine that files are copied to and commands run on."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nnstretch.errors import DeviceError


class TransientError(DeviceError):
    """A target could not be reached or did not answer in time; a retry may succeed. All other errors are final."""


@dataclass(frozen=True)
class Finished:
    """A finished command: exit status, standard output, standard error, and duration in seconds."""

    status: int
    output: str
    errors: str
    seconds: float


@dataclass(frozen=True)
class TargetInfo:
    """Description of a target.

    Attributes:
        cpu: name of the CPU.
        cores: the cores that commands may use.
        clocks_mhz: highest clock of each core in MHz, 0 if unknown.
        memory_bytes: installed memory.
        architecture: as `uname -m` prints it.
    """

    cpu: str
    cores: tuple[int, ...]
    clocks_mhz: tuple[float, ...]
    memory_bytes: int
    architecture: str


class Target(ABC):
    """A machine with a folder for files of nnstretch."""

    name: str

    @abstractmethod
    def push(self, source: Path, name: str) -> None:
        """Copies the local file `source` to `name` in the target's folder, complete or not at all.

        Raises:
            UsageError: `name` is outside the folder.
            FileError: it cannot be read or written.
            TransientError: the target cannot be reached.
        """

    @abstractmethod
    def pull(self, name: str, destination: Path) -> None:
        """Copies `name` from the target's folder to the local file `destination`; errors as for `push`."""

    @abstractmethod
    def run(self, command: Sequence[str], *, cores: Sequence[int] = (), timeout: float = 60.0) -> Finished:
        """Runs a command in the target's folder, on `cores` only if any are given.

        Raises:
            DeviceError: there is no such command or core.
            TransientError: it took longer than `timeout` seconds and was killed, or the target cannot be reached.
        """

    @abstractmethod
    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Starts a worker with pipes for its input and output (`nnstretch.support.worker_process.StartProcess`).

        Args:
            command: the command and its arguments.
            environment: environment variables; None for those of this process.
            pass_fds: file descriptors that the worker inherits; only the local target can pass them.
            errors: receives the standard error.

        Raises:
            OSError: the worker cannot be started.
        """

    @abstractmethod
    def probe(self) -> TargetInfo:
        """Describes the target."""
