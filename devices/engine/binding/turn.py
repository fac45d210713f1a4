"""A lock that no thread awaits for long: the counterpart of devices/engine/runtime/threads/turn.h for callers in Python."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import monotonic

MOST_PASSES = 2
"""How often threads may take the lock past one that waits: waking that one takes long."""


class _Ticket:
    """A thread that waits. `called` is released when the lock may be free."""

    __slots__ = ("called",)

    def __init__(self) -> None:
        self.called = threading.Lock()
        self.called.acquire()

    def call(self) -> None:
        """Wakes the thread, or lets its next wait return at once."""
        with suppress(RuntimeError):  # it was called before and has not looked yet
            self.called.release()


class TurnLock:
    """A lock that threads get in the order in which they asked, but for a few passes.

    A thread that finds the lock free may take it past those that wait. After `MOST_PASSES` of these only the one that has
    waited longest may take it. So of n threads each waits for at most (MOST_PASSES + 1) * (n - 1) turns of the others.

    A thread that asks for the lock while it has it gets it again, to free it once: Ctrl-C may end a run between taking the
    lock and the block that frees it, or before that has freed it, and then the session is closed.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # knows its thread at every moment
        self._waiting: deque[_Ticket] = deque()
        self._passes = 0  # past the first that waits; changed by the holder alone

    def acquire(self, timeout: float = -1) -> bool:
        """Takes the lock. Returns False if it was not free for `timeout` seconds; -1: no limit."""
        self._free_own()
        return self._take(None) or self._wait(timeout)

    def release(self) -> None:
        """Frees the lock."""
        self._lock.release()
        if self._waiting:
            self._call_first()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _free_own(self) -> None:
        """Frees the lock if it is this thread's."""
        try:
            while True:
                self._lock.release()
        except RuntimeError:  # it is not
            return

    def _take(self, ticket: _Ticket | None) -> bool:
        """Takes the lock if it is free and the first that waits was not passed too often; `ticket` is the thread's."""
        if self._passes >= MOST_PASSES and self._first() is not ticket:
            return False
        if not self._lock.acquire(blocking=False):
            return False
        first = self._first()
        if first is None or first is ticket:
            self._passes = 0
        elif self._passes < MOST_PASSES:
            self._passes += 1
        else:  # others have passed it since
            self.release()
            return False
        return True

    def _wait(self, timeout: float) -> bool:
        end = None if timeout < 0 else monotonic() + timeout
        ticket = _Ticket()
        try:
            self._waiting.append(ticket)
            # The holder may have freed the lock before it could see the ticket.
            while not self._take(ticket):
                if not ticket.called.acquire(timeout=-1 if end is None else max(0.0, end - monotonic())):
                    self._give_up(ticket)
                    return False
            self._waiting.remove(ticket)
        except BaseException:
            self._free_own()
            self._give_up(ticket)
            raise
        return True

    def _give_up(self, ticket: _Ticket) -> None:
        """Stops waiting."""
        with suppress(ValueError):
            self._waiting.remove(ticket)
        self._call_first()  # if the lock is free, the thread that gives up was called last

    def _first(self) -> _Ticket | None:
        try:
            return self._waiting[0]
        except IndexError:
            return None

    def _call_first(self) -> None:
        first = self._first()
        if first is not None:
            first.call()
