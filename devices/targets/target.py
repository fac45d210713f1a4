"""The contract of a target: files go there and back, commands run there, and it says what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnstretch.errors import DeviceError


class TransientError(DeviceError):
    """A target could not be reached, or did not answer in time: trying again may help. All other errors are final."""


@dataclass(frozen=True)
class Finished:
    """A command that ended: its exit status, what it printed, and how long it took in seconds."""

    status: int
    output: str
    errors: str
    seconds: float


@dataclass(frozen=True)
class TargetInfo:
    """What a target is.

    Attributes:
        cpu: the CPU's name.
        cores: those that commands may use.
        clocks_mhz: highest clock of each of these cores, 0 where the system does not say.
        memory_bytes: installed memory.
        architecture: as `uname -m` prints it.
    """

    cpu: str
    cores: tuple[int, ...]
    clocks_mhz: tuple[float, ...]
    memory_bytes: int
    architecture: str


class Target(ABC):
    """A machine with a folder of its own for our files."""

    name: str

    @abstractmethod
    def push(self, source: Path, name: str) -> None:
        """Copies the local file `source` to `name` in the target's folder, complete or not at all.

        Raises:
            UsageError: `name` leads out of the folder.
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
            DeviceError: there is no such command, or the target has not got those cores.
            TransientError: it took longer than `timeout` seconds (it is ended then), or the target cannot be reached.
        """

    @abstractmethod
    def probe(self) -> TargetInfo:
        """What the target is."""
