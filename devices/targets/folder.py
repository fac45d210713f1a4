"""The folder of a session on a target: where it is, what it holds, and what earlier sessions left."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nnstretch.devices.targets.base import SHORT, Finished, TargetError, TransientTargetError, Transport

NOT_EXECUTABLE = (126, 127)
"""Statuses of a shell that cannot run a program."""
_PREFIX = "nnstretch-"
_numbers = itertools.count()
"""Numbers of the devices of this process, which have folders of their own."""


@dataclass(frozen=True)
class RunnerProgram:
    """The runner as a program for a target.

    Attributes:
        file: on this machine.
        name: on the target.
        built_for: the system that it is built for.
    """

    file: Path
    name: str
    built_for: str


@dataclass
class _Place:
    """The folder, once there is one.

    Attributes:
        path: of the folder; "" until one is made.
        found: whether it was there already, with files that may be those to push.
        pushed: remote paths of the files that it holds.
    """

    path: str = ""
    found: bool = False
    pushed: set[str] = field(default_factory=set)


class TargetFolder:
    """A folder on a target with the runner and with files that are pushed once."""

    def __init__(self, transport: Transport, *, keep: bool) -> None:
        """Makes nothing yet.

        Args:
            transport: reaches the target.
            keep: the folder is the one that sessions with `keep` share, and stays.
        """
        self._transport = transport
        self._keep = keep
        self._number = next(_numbers)
        self._place = _Place()

    @property
    def path(self) -> str:
        """Of the folder; "" until one is made."""
        return self._place.path

    @property
    def owner(self) -> str:
        """What tells files of this session from those of others in a folder that they share."""
        return f"{_owner().removeprefix(_PREFIX)}-{self._number}"

    def forget(self) -> None:
        """What the folder holds is no longer known: a device that has restarted may have lost its files."""
        self._place.pushed.clear()

    def ready(self, runner: RunnerProgram) -> str:
        """The folder's path, with the runner in it; made on first use and after `forget`.

        Raises:
            TransientTargetError: the connection was lost.
            TargetError: the runner cannot be stored or run anywhere.
        """
        if not self._place.pushed:
            self._place = self._made(runner)
        return self._place.path

    def store(self, name: str, file: Path, *, executable: bool = False) -> str:
        """Writes a file into the folder, which is ready, unless it is there; returns its path.

        Names are hashes of contents, and files appear complete.
        """
        return self._store(self._place, name, file, executable=executable)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files that were stored.

        Raises:
            TargetError: they cannot be removed.
        """
        there = sorted(self._place.pushed.intersection(f"{self._place.path}/{name}" for name in names))
        if there:
            self._place.pushed.difference_update(there)
            succeed(self._transport, "rm", "-f", *there)

    def clean(self) -> None:
        """Removes the folder unless it is kept. Raises TargetError if that fails."""
        if self._place.path and not self._keep:
            succeed(self._transport, "rm", "-rf", self._place.path)

    def _made(self, runner: RunnerProgram) -> _Place:
        """A folder in the first place where the runner can be stored and run."""
        failures: list[str] = []
        for place in self._transport.folders:
            try:
                return self._folder_in(place, runner)
            except TransientTargetError:
                raise
            except TargetError as error:
                failures.append(str(error))
        raise TargetError(failures[0] if len(set(failures)) == 1 else "; ".join(dict.fromkeys(failures)))

    def _folder_in(self, place: str, runner: RunnerProgram) -> _Place:
        """A folder in a place, with the runner.

        Raises:
            TargetError: files cannot be stored there, or programs not be run.
        """
        self._remove_stale(place)
        path = f"{place}/{_PREFIX}kept" if self._keep else f"{place}/{_owner()}-{self._number}"
        folder = _Place(path, found=self._take(place, path))
        try:
            program = self._store(folder, runner.name, runner.file, executable=True)
            found = self._transport.run([*self._transport.launcher, program, "--probe"], timeout=SHORT)
            if found.status in NOT_EXECUTABLE or (found.status and not found.stdout):
                raise TargetError(self._not_executable(place, found, runner))
        except TransientTargetError:
            raise
        except TargetError:
            if not folder.found:  # else it is that of other sessions, too
                with suppress(TargetError):
                    succeed(self._transport, "rm", "-rf", path)
            raise
        return folder

    def _not_executable(self, place: str, found: Finished, runner: RunnerProgram) -> str:
        reason = found.reason
        if "Permission denied" in reason or "can't execute" in reason:
            return f"{self._transport.name} does not run programs in {place} ({reason}); mount it without noexec"
        return f"{self._transport.name} does not run the runner, which is built for {runner.built_for}: {reason}"

    def _take(self, place: str, path: str) -> bool:
        """Makes a folder that only this user may enter, or takes one that is this user's; returns whether it was there."""
        self._transport.run(["mkdir", "-p", place], timeout=SHORT)
        made = self._transport.run(["mkdir", "-m", "700", path], timeout=SHORT)
        if not made.status:
            return False
        owner = self._transport.run(
            ["sh", "-c", '[ -d "$0" ] && [ -O "$0" ] && [ ! -L "$0" ] && [ -w "$0" ]', path], timeout=SHORT
        )
        if owner.status:
            reason = made.reason.rpartition(": ")[2]
            advice = "; remount it writable there" if "Read-only" in reason else ""
            raise TargetError(f"{self._transport.name} cannot make a folder in {place}: {reason}{advice}")
        return True

    def _remove_stale(self, place: str) -> None:
        """Removes folders of sessions of this computer that have ended without cleaning up."""
        computer = _owner().rpartition("-")[0]
        listed = self._transport.run(["ls", place], timeout=SHORT).text.split()
        for name in listed:
            form = re.fullmatch(rf"{computer}-(\d+)-\d+", name)
            if form is not None and not Path(f"/proc/{form[1]}").exists():
                self._transport.run(["rm", "-rf", f"{place}/{name}"], timeout=SHORT)

    def _store(self, folder: _Place, name: str, file: Path, *, executable: bool) -> str:
        """Writes a file into a folder unless it is there. Names are hashes of contents, and files appear complete."""
        path = f"{folder.path}/{name}"
        if path not in folder.pushed:
            if not folder.found or self._transport.run(["test", "-f", path], timeout=SHORT).status:
                self._transport.write(path, file, executable)
            folder.pushed.add(path)
        return path


def succeed(transport: Transport, *command: str) -> None:
    """Runs a short command. Raises TargetError if it fails."""
    found = transport.run(command, timeout=SHORT)
    if found.status:
        raise TargetError(f"{transport.name}: {command[0]} failed: {found.reason}")


def remote_name(file: Path) -> str:
    """The name of a file on targets, which begins with a hash of its content."""
    with file.open("rb") as content:
        return f"{hashlib.file_digest(content, 'sha256').hexdigest()[:20]}{file.suffix}"


def _owner() -> str:
    """Begin of the names of this process's folders on targets: it says which computer and process they belong to."""
    who: list[object] = [socket.gethostname(), os.getuid()]
    with suppress(OSError):  # containers with one host name number their processes each for itself
        who.append(Path("/proc/self/ns/pid").readlink())
    computer = hashlib.sha256(" ".join(map(str, who)).encode()).hexdigest()[:8]
    return f"{_PREFIX}{computer}-{os.getpid()}"
