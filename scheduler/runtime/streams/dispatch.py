"""One queue of work for runners of different speed."""

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
"""Weight of the latest run in what is known of a runner's speed."""
_FASTER = 0.8
"""Times of a runner that counts as faster than another one, over that one's; nearer ones may be so by chance."""


@dataclass
class _Runner:
    """What is known of a runner: seconds for one piece of work (None: nothing yet), and since when it has been at one."""

    seconds: float | None
    since: float | None = None

    def free_in(self, now: float) -> float:
        """Seconds until it can begin with something else, as far as can be told."""
        if self.since is None or self.seconds is None:
            return 0.0
        return max(0.0, self.since + self.seconds - now)


@dataclass(eq=False)
class _Waiting(Generic[Work]):
    """A piece of work, and the runners that have given it back."""

    work: Work
    refused: set[int] = field(default_factory=set)


class Dispatch(Generic[Work]):
    """Hands out work in order to whoever is free, the oldest first.

    So a runner gets work in proportion to its speed. A slow one leaves work to faster ones where these would be done with all
    that waits before it would be with one: the last pieces do not wait for the slowest runner. Thread-safe.
    """

    def __init__(
        self, seconds: Sequence[float | None], capacity: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Makes an empty queue.

        Args:
            seconds: that each runner takes for a piece of work, as far as is known; what they take from now on corrects it.
            capacity: pieces of work that wait at most.
            clock: seconds.
        """
        self._runners = [_Runner(s) for s in seconds]
        self._capacity = capacity
        self._clock = clock
        self._waiting: deque[_Waiting[Work]] = deque()
        self._running: dict[int, _Waiting[Work]] = {}
        self._closed = False
        self._changed = threading.Condition()

    def put(self, work: Work, timeout: float | None = None) -> bool:
        """Adds work to the end, once there is room for it. False if there is none for `timeout` seconds.

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

    def take(self, runner: int) -> Work | None:
        """The next piece of work for a runner that is free, waited for; None if there will be none."""
        with self._changed:
            while True:
                found = self._next(runner)
                if found is not None:
                    self._waiting.remove(found)
                    self._running[runner] = found
                    self._runners[runner].since = self._clock()
                    self._changed.notify_all()  # somebody may wait for room
                    return found.work
                if self._closed and not self._waiting and not self._running:
                    return None
                self._changed.wait()

    def done(self, runner: int) -> None:
        """A runner has finished what it took, and is free."""
        with self._changed:
            self._measure(self._runners[runner])
            self._free(runner)

    def give_back(self, runner: int) -> bool:
        """A runner cannot finish what it took, which is the next piece of work for the others. False if all have tried."""
        with self._changed:
            piece = self._running[runner]
            piece.refused.add(runner)
            others = len(piece.refused) < len(self._runners)
            if others:
                self._waiting.appendleft(piece)
            self._free(runner)
            return others

    def close(self) -> None:
        """Takes no more work; what waits is handed out still."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def discard(self) -> list[Work]:
        """Takes back all that waits."""
        with self._changed:
            found = [piece.work for piece in self._waiting]
            self._waiting.clear()
            self._changed.notify_all()
            return found

    # -- under the lock ------------------------------------------------------------------------------------------

    def _next(self, runner: int) -> _Waiting[Work] | None:
        for piece in self._waiting:
            if runner not in piece.refused:
                return piece if self._pays(runner, piece) else None
        return None

    def _pays(self, number: int, piece: _Waiting[Work]) -> bool:
        """Whether a runner would be done with a piece before the faster ones would be with all that waits."""
        mine = self._runners[number].seconds
        if mine is None:
            return True
        now = self._clock()
        faster = [
            (runner.free_in(now), runner.seconds)
            for other, runner in enumerate(self._runners)
            if runner.seconds is not None and runner.seconds < _FASTER * mine and other not in piece.refused
        ]
        if not faster:
            return True
        ends = [(free + seconds, seconds) for free, seconds in faster]
        heapq.heapify(ends)
        for _ in range(len(self._waiting) - 1):
            end, seconds = ends[0]
            heapq.heapreplace(ends, (end + seconds, seconds))
        return mine <= ends[0][0]

    def _measure(self, runner: _Runner) -> None:
        assert runner.since is not None
        took = self._clock() - runner.since
        runner.seconds = took if runner.seconds is None else runner.seconds + _NEWEST * (took - runner.seconds)

    def _free(self, runner: int) -> None:
        del self._running[runner]
        self._runners[runner].since = None
        self._changed.notify_all()
