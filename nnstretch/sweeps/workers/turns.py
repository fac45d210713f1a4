"""Turns of the processes of one machine: while one measures, no other samples, predicts or trains."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nnstretch.errors import FileError
from nnstretch.support.locks import locked


@dataclass(frozen=True)
class Turns:
    """Two locks of the kernel in a folder, which end with their holders.

    `use` is held by whoever works: shared by those who may disturb each other, exclusively by one that measures. `queue` is
    held by a process that waits to measure, and asked for by all that begin to work, so that it need not wait for later ones.

    Attributes:
        folder: of the locks, created on first use; None: nothing is measured here, and nobody waits.
    """

    folder: Path | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until no other process works, and keeps them from it while the block runs.

        Raises:
            FileError: the folder cannot be written.
        """
        if self.folder is None:
            yield
            return
        with (
            self._file(self.folder, "queue") as queue,
            self._file(self.folder, "use") as use,
            locked(queue),
            locked(use),
        ):
            yield

    @contextmanager
    def beside_others(self) -> Iterator[Callable[..., None]]:
        """Waits until no process measures, and keeps them from it while the block runs.

        Yields:
            A function that lets those that wait to measure do it first; for long work, to be called every few seconds. As a
            callback of progress it may get arguments.

        Raises:
            FileError: the folder cannot be written.
        """
        if self.folder is None:
            yield lambda *_: None
            return
        with self._file(self.folder, "queue") as queue, self._file(self.folder, "use") as use:

            def enter(*_: object) -> None:
                fcntl.flock(use, fcntl.LOCK_UN)
                fcntl.flock(queue, fcntl.LOCK_SH)
                fcntl.flock(use, fcntl.LOCK_SH)
                fcntl.flock(queue, fcntl.LOCK_UN)

            enter()
            try:
                yield enter
            finally:
                fcntl.flock(use, fcntl.LOCK_UN)  # as `locked` does

    @staticmethod
    def _file(folder: Path, name: str) -> IO[bytes]:
        """A lock's file, of this machine alone: others may share the folder."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return (folder / f"{socket.gethostname()}-{name}.lock").open("ab")
        except OSError as error:
            raise FileError(f"cannot write to {folder}: {error.strerror}; choose another folder with --work") from error
