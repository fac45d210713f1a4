"""Targets whose commands run in a POSIX shell at the other end of a connection."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from nnstretch.devices.targets.base import (
    SHORT,
    Finished,
    OnLine,
    TargetError,
    TargetTimeoutError,
    TransientTargetError,
    Transport,
)

_MARK = "nnstretch-status:"
"""Begins the last line of the standard error. Without that line the connection was lost before the command ended."""
_END = re.compile(rb"\n" + _MARK.encode() + rb"(\d+)\s*\Z")
_parts = itertools.count()


class ShellTransport(Transport):
    """A connection that runs scripts. A client program of this machine makes it, such as `ssh` or `adb`."""

    @abstractmethod
    def _call(self, script: str, content: bytes | Path, timeout: float, on_stderr: OnLine | None) -> Finished:
        """Runs a script through the client; the status may be the client's own.

        Raises:
            TransientTargetError: there is no connection.
            TargetTimeoutError: it did not end in time.
            TargetError: the target cannot be used.
        """

    @abstractmethod
    def _lost(self, reason: str) -> TargetError:
        """The error for a script that did not come to its end, from the last line of the client."""

    def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
        return self._script(shlex.join(command), timeout=timeout, on_stderr=on_stderr)

    def read(self, path: str) -> bytes:
        found = self.run(["cat", path], timeout=_TRANSFER)
        if found.status:
            raise TargetError(f"{self.name} cannot read {path}: {_cause(found.reason)}")
        return found.stdout

    def _script(
        self, script: str, content: bytes | Path = b"", *, timeout: float = SHORT, on_stderr: OnLine | None = None
    ) -> Finished:
        """Runs a script to its end. Raises as `run` does."""

        def pass_on(line: str) -> None:
            if on_stderr is not None and not line.startswith(_MARK):
                on_stderr(line)

        marked = f"({script}); printf '\\n{_MARK}%s\\n' $? >&2"
        try:
            found = self._call(marked, content, timeout, pass_on)
        except TargetTimeoutError as error:
            raise TargetTimeoutError(f"{self.name}: no answer within {timeout:.0f} s") from error
        end = _END.search(found.stderr)
        if end is None:
            raise self._lost(found.reason)
        return Finished(int(end[1]), found.stdout, found.stderr[: end.start()])

    def _move(
        self, temporary: str, path: str, mode: str, size: int, store: str = "true", content: bytes | Path = b""
    ) -> None:
        """Stores a file under a temporary name and renames it if it is complete; removes it otherwise.

        Args:
            temporary: name beside `path`.
            path: where it appears.
            mode: of the file, as `chmod` takes it.
            size: of the file in bytes.
            store: script that makes the temporary file from the standard input.
            content: the standard input.

        Raises:
            TransientTargetError: the connection was lost.
            TargetError: the target cannot store it.
        """
        new, final = shlex.quote(temporary), shlex.quote(path)
        script = (
            f"{store} && chmod {mode} {new} && [ $(wc -c <{new}) -eq {size} ] && mv -f {new} {final} || "
            f"{{ rm -f {new}; exit 1; }}"
        )
        found = self._script(script, content, timeout=_TRANSFER)
        if found.status:
            raise self.refused(path, found.reason)

    def refused(self, path: str, reason: str) -> TargetError:
        """The error for a file that cannot be written, from what the target says."""
        return TargetError(f"{self.name} cannot write {path}: {_cause(reason)}")


_TRANSFER = 1800.0
"""Seconds that a file may take to be copied."""

_CAUSES = (
    ("No space left on device", "; free some space there"),
    ("Read-only file system", "; remount it writable there"),
    ("Permission denied", "; the user there may not write to this folder"),
    ("Disk quota exceeded", "; free some space there"),
)


def _cause(reason: str) -> str:
    """The cause in a message of a program, with what to do; the message itself if it has no known cause."""
    return next((f"{text}{advice}" for text, advice in _CAUSES if text in reason), reason)


def is_storage_error(reason: str) -> bool:
    """Whether a message says that the target cannot store a file, so that the connection is not to blame."""
    return any(text in reason for text, _ in _CAUSES)


def part_of(path: str) -> str:
    """Where a file is written before it gets its name: sessions that share a folder may write the same file at once."""
    return f"{path}.{os.getpid()}-{next(_parts)}.part"


def lost(name: str, reason: str) -> TransientTargetError:
    """The error for a connection that broke."""
    return TransientTargetError(f"{name}: the connection was lost ({reason}); check the device and try again")
