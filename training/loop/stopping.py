"""Stopping a training between two steps, by Ctrl-C or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nnstretch.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether a training is to end after its step.

    Attributes:
        advice: what a message says to do.
        signal: the number of the signal that asked for it; None if none did.
    """

    def __init__(self, advice: str = "") -> None:
        self.advice = advice
        self.signal: int | None = None

    @property
    def is_requested(self) -> bool:
        """Whether it was asked for."""
        return self.signal is not None

    def error(self, where: str) -> StoppedError:
        """What is raised when the training has stopped.

        Args:
            where: it has stopped, as the begin of a message.
        """
        number = signal.SIGTERM if self.signal is None else self.signal  # another process was asked
        return StoppedError("; ".join(filter(None, (where, self.advice))), 128 + number)


@contextmanager
def ends_after_its_message() -> Iterator[None]:
    """A block that SIGTERM does not end, nor what follows if the block fails.

    torchrun sends SIGTERM as soon as another process has ended. The line that says so is written first. torchrun kills a
    process that does not end then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@contextmanager
def stopped_by_signals(advice: str) -> Iterator[StopRequest]:
    """A request that Ctrl-C and SIGTERM make while the block runs. A second Ctrl-C ends it at once.

    Args:
        advice: what a message says to do.
    """
    request = StopRequest(advice)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.signal == number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = request.signal or number  # torchrun passes a Ctrl-C on as SIGTERM, too

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
