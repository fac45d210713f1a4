"""One queue of work for workers of different speed."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Work = TypeVar("Work")

_NEWEST = 0.25
"""Weight of the latest run in the moving average of a worker's time."""
_FASTER = 0.8
"""A worker counts as faster than another one if its time is below this share of the other's."""


@dataclass
class _Worker:
    """A worker.

    Attributes:
        seconds: average time of one piece of work; None while unknown.
        since: when it began its current piece; None if it is free.
    """

    seconds: float | None
    since: float | None = None

    def free_in(self, now: float) -> float:
        """Expected seconds until it is free."""
        if self.since is None or self.seconds is None:
            return 0.0
        return max(0.0, self.since + self.seconds - now)


@dataclass(eq=False)
class _Waiting(Generic[Work]):
    """A piece of work, and the workers that have given it back."""

    work: Work
    refused: set[int] = field(default_factory=set)


class Dispatch(Generic[Work]):
    """Hands out work to free workers, the oldest piece first.

    A worker gets work in proportion to its speed. A slow worker gets none if faster ones are expected to
    finish all waiting work before it would finish one piece, so the last pieces do not wait for the slowest
    worker. Thread-safe.
    """

    def __init__(
        self, seconds: Sequence[float | None], capacity: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """An empty queue for at most `capacity` waiting pieces.

        `seconds` is the expected time of one piece on each worker, or None; measured times correct it.
        """
        self._workers = [_Worker(s) for s in seconds]
        self._capacity = capacity
        self._clock = clock
        self._waiting: deque[_Waiting[Work]] = deque()
        self._running: dict[int, _Waiting[Work]] = {}
        self._closed = False
        self._changed = threading.Condition()

    def put(self, work: Work, timeout: float | None = None) -> bool:
        """Adds work at the end, waiting for space; False if there is none for `timeout` seconds.

        Raises:
            ValueError: the queue is closed.
        """
        with self._changed:
            there_is = self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._capacity, timeout)
            if self._closed:
                raise ValueError("the queue is closed")
            if there_is:
                self._waiting.append(_Waiting(work))
                self._changed.notify_all()
            return there_is

    def take(self, worker: int) -> Work | None:
        """Waits for the next piece of work for a free worker; None once the queue is closed and empty."""
        with self._changed:
            while True:
                found = self._next(worker)
                if found is not None:
                    self._waiting.remove(found)
                    self._running[worker] = found
                    self._workers[worker].since = self._clock()
                    self._changed.notify_all()  # wakes `put`
                    return found.work
                if self._closed and not self._waiting and not self._running:
                    return None
                self._changed.wait()

    def done(self, worker: int) -> None:
        """A worker has finished its piece and is free."""
        with self._changed:
            self._measure(self._workers[worker])
            self._free(worker)

    def give_back(self, worker: int) -> bool:
        """A worker cannot finish its piece, which goes to the front for the others; False if all have tried it."""
        with self._changed:
            piece = self._running[worker]
            piece.refused.add(worker)
            others = len(piece.refused) < len(self._workers)
            if others:
                self._waiting.appendleft(piece)
            self._free(worker)
            return others

    def close(self) -> None:
        """Accepts no more work; waiting pieces are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def discard(self) -> list[Work]:
        """Removes and returns all waiting pieces."""
        with self._changed:
            found = [piece.work for piece in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
            return found

    # -- under the lock ------------------------------------------------------------------------------------------

    def _next(self, worker: int) -> _Waiting[Work] | None:
        for piece in self._waiting:
            if worker not in piece.refused:
                return piece if self._pays(worker, piece) else None
        return None

    def _pays(self, number: int, piece: _Waiting[Work]) -> bool:
        """Whether a worker would finish a piece before the faster ones finish all waiting work."""
        mine = self._workers[number].seconds
        if mine is None:
            return True
        now = self._clock()
        faster = [
            (worker.free_in(now), worker.seconds)
            for other, worker in enumerate(self._workers)
            if worker.seconds is not None and worker.seconds < _FASTER * mine and other not in piece.refused
        ]
        if not faster:
            return True
        ends = [(free + seconds, seconds) for free, seconds in faster]
        heapq.heapify(ends)
        for _ in range(len(self._waiting) - 1):
            end, seconds = ends[0]
            heapq.heapreplace(ends, (end + seconds, seconds))
        return mine <= ends[0][0]

    def _measure(self, worker: _Worker) -> None:
        assert worker.since is not None
        took = self._clock() - worker.since
        worker.seconds = took if worker.seconds is None else worker.seconds + _NEWEST * (took - worker.seconds)

    def _free(self, worker: int) -> None:
        del self._running[worker]
        self._workers[worker].since = None
        self._changed.notify_all()
