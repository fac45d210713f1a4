"""A lock that no thread awaits for long: the counterpart of devices/engine/runtime/threads/turn.h for callers in Python."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from time import monotonic

MOST_PASSES = 2
"""How often threads may take the lock past one that waits: waking that one takes long."""


class _Ticket:
    """A thread that waits. `called` is released when the lock may be free, or is the thread's (`granted`)."""

    __slots__ = ("called", "granted")

    def __init__(self) -> None:
        self.called = threading.Lock()
        self.called.acquire()
        self.granted = False

    def call(self) -> None:
        """Wakes the thread, or lets its next wait return at once."""
        with suppress(RuntimeError):  # it was called before and has not looked yet
            self.called.release()


class TurnLock:
    """A lock that threads get in the order in which they asked, but for a few passes.

    A thread that finds the lock free may take it past those that wait. After `MOST_PASSES` of these the lock is handed to
    the one that has waited longest. So of n threads each waits for at most (MOST_PASSES + 1) * (n - 1) turns of the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._passes = 0  # past the first that waits; changed by the holder alone

    def acquire(self, timeout: float = -1) -> bool:
        """Takes the lock. Returns False if it was not free for `timeout` seconds; -1: no limit."""
        if self._passes < MOST_PASSES and self._lock.acquire(blocking=False):
            if self._waiting:
                self._passes += 1
            return True
        return self._wait(timeout)

    def release(self) -> None:
        """Frees the lock, or hands it over."""
        if self._passes >= MOST_PASSES:
            self._passes = 0
            with suppress(IndexError):  # the last that waited has given up
                first = self._waiting.popleft()
                first.granted = True
                first.call()
                return
        self._lock.release()
        if self._waiting:
            self._call_first()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _wait(self, timeout: float) -> bool:
        end = None if timeout < 0 else monotonic() + timeout
        ticket = _Ticket()
        self._waiting.append(ticket)
        try:
            # The holder may have freed the lock before it could see the ticket.
            while not ticket.granted and not self._lock.acquire(blocking=False):
                if not ticket.called.acquire(timeout=-1 if end is None else max(0.0, end - monotonic())):
                    return self._give_up(ticket)
        except BaseException:
            if self._give_up(ticket):
                self.release()
            raise
        if not ticket.granted:
            self._passes = 0 if self._waiting[0] is ticket else self._passes + 1
            self._waiting.remove(ticket)
        return True

    def _give_up(self, ticket: _Ticket) -> bool:
        """Stops waiting. Returns whether the lock was the thread's before."""
        try:
            self._waiting.remove(ticket)
        except ValueError:
            return True
        self._call_first()  # if the lock is free, the thread that gives up was called last
        return False

    def _call_first(self) -> None:
        with suppress(IndexError):
            self._waiting[0].call()
