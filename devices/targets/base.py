"""Contracts of targets: how one is reached, what a command there gave, and the errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnstretch.errors import DeviceError
from nnstretch.support.closing import Closing

OTHER_MACHINES = "ssh:[USER@]HOST[:PORT] or adb[:SERIAL] or qemu:aarch64[:CPU]"
"""How users write targets other than `local`."""

OnLine = Callable[[str], None]
"""Receives a line of a running command's standard error."""


class TargetError(DeviceError):
    """A target that cannot be used, or a command that failed there. Trying again does not help."""


class TransientTargetError(TargetError):
    """A connection that was lost or not accepted. The device may come back."""


class TargetTimeoutError(TargetError):
    """A command that did not end in time."""


class RunnerEndedError(TargetError):
    """A runner that ended without an answer: it crashed, was killed, or could do nothing."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        status: exit status; negative for the number of a signal.
        stdout, stderr: what it wrote.
    """

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """The standard output as text, without white space at its ends."""
        return self.stdout.decode(errors="replace").strip()

    @property
    def reason(self) -> str:
        """The last line of the standard error; the status if there is none."""
        lines = [line.strip() for line in self.stderr.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"status {self.status}"


class Transport(Closing):
    """Reaches one target. A new kind of target implements this; `nnstretch.devices.targets.device` does the rest.

    Attributes:
        name: as on the command line, such as "ssh:pi@board".
        folders: where a folder may be made on the target, the best first.
        launcher: command that runs an executable of the target; empty where it runs by itself.
        system: for which programs are built, as in `BuildTarget`; None: `library_system` where libraries are opened and
            there is one, else static ones.
        is_here: whether its programs run on the cores of this machine.
    """

    name: str
    folders: Sequence[str]
    launcher: tuple[str, ...] = ()
    system: str | None = None
    is_here: bool = False

    @abstractmethod
    def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
        """Runs a command and waits for its end.

        Args:
            command: the program and its arguments, which arrive as they are.
            timeout: seconds after which the command counts as hung.
            on_stderr: called with each line of the standard error while the command runs.

        Raises:
            TransientTargetError: the connection was lost or not accepted.
            TargetTimeoutError: it did not end in time. It may still run there.
            TargetError: the target cannot be used.
        """

    @abstractmethod
    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        """Writes a file of the target. It appears complete or not at all.

        Args:
            path: where, in a folder that exists.
            content: bytes, or the local file that holds them.
            executable: whether it is a program.

        Raises:
            TransientTargetError: the connection was lost.
            TargetError: the file cannot be written there.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a file of the target.

        Raises:
            TransientTargetError: the connection was lost.
            TargetError: the file cannot be read.
        """

    def machine(self) -> str:
        """The architecture as `uname -m` writes it. Raises as `run` does."""
        found = self.run(["uname", "-m"], timeout=SHORT)
        if found.status:
            raise TargetError(f"{self.name} does not say what it is (uname -m): {found.reason}")
        return found.text

    def library_system(self) -> str | None:
        """The system for which programs are built that can open libraries there, such as OpenCL, as in `BuildTarget`.

        None if there is none.

        Raises as `run` does.
        """
        return None if self.run(["getconf", "GNU_LIBC_VERSION"], timeout=SHORT).status else "linux-gnu"

    def reconnect(self) -> None:
        """Prepares for another attempt after a lost connection."""

    def close(self) -> None:
        """Ends the connection."""


SHORT = 60.0
"""Seconds that a short command may take."""
