"""Locks between processes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from nnstretch.errors import FileError, UsageError

_LOCK = ".lock"
_folder_locks: WeakSet[IO[bytes]] = WeakSet()


def _leave_to_parent() -> None:
    """Closes the locks of folders in a forked child, such as a worker of a data loader, which may outlive its parent."""
    for lock in list(_folder_locks):
        lock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


@contextmanager
def locked(file: IO[Any], waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Locks a file against other processes and threads while the block runs; the lock of a killed process ends with it.

    A child that is forked meanwhile has the file open, too: to close it here would leave it locked until the child ends.

    Args:
        file: that is open.
        waiting: called before a wait for another one that has locked it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waiting is not None:
            waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def lock_folder(folder: Path, option: str) -> IO[bytes]:
    """Makes a folder and keeps other processes that lock it out, until the result is closed or the process ends.

    Children that this process forks do not keep it locked.

    Args:
        folder: where this process is going to write.
        option: of the command line that names the folder; messages advise another one.

    Raises:
        FileError: it cannot be made or written.
        UsageError: another process has locked it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("ab")
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror}; choose another folder with {option}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise _is_written(folder, option) from error
    _folder_locks.add(lock)
    return lock


@contextmanager
def only_writer(folder: Path, option: str) -> Iterator[None]:
    """Keeps out other processes that ask for the same folder while the block runs, and leaves nothing in it.

    File systems that cannot lock folders keep nobody out.

    Args:
        folder: that exists.
        option: as of `lock_folder`.

    Raises:
        UsageError: another process writes to it.
    """
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _is_written(folder, option) from error
        except OSError:
            pass
        yield
    finally:
        os.close(opened)


def _is_written(folder: Path, option: str) -> UsageError:
    return UsageError(
        f"another process is writing to {folder}; wait for its end, or choose another folder with {option}"
    )
