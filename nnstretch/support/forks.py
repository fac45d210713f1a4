"""Objects whose locks and threads a forked child does not inherit."""

from __future__ import annotations

import os
import threading
from weakref import WeakSet

from nnstretch.errors import UsageError


class _Process:
    """The current process.

    Attributes:
        forks: between the first process and this one.
    """

    forks = 0


def _count_fork() -> None:
    _Process.forks += 1


os.register_at_fork(after_in_child=_count_fork)


class ForkLock:
    """A lock that the child of a fork finds free, unless the thread that forked holds it: no other thread exists there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._holder = 0
        self._lock.release()

    def free_of_parent(self) -> None:
        """In the child: frees the lock if a thread held it that does not exist here."""
        if self._holder != threading.get_ident():
            self._lock, self._holder = threading.Lock(), 0


_LOCKS: WeakSet[ForkLock] = WeakSet()


def _free_locks() -> None:
    for lock in tuple(_LOCKS):
        lock.free_of_parent()


os.register_at_fork(after_in_child=_free_locks)


class Origin:
    """The process that made an object. A fork copies locks that other threads hold, but not these threads."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _Process.forks

    @property
    def is_here(self) -> bool:
        """Whether the object was made in this process."""
        return self._forks == _Process.forks

    def check(self, what: str) -> None:
        """Refuses an object that was made before a fork.

        Args:
            what: the object, for the message.

        Raises:
            UsageError: it was made in a parent of this process.
        """
        if self._forks != _Process.forks:
            raise UsageError(f"the {what} was made before a fork; make it again in this process")
