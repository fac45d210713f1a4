"""Interrupts of a command (Ctrl-C), which end its work whatever an interrupted library makes of them.

A library that is interrupted during its import may raise any error, as if it were not installed, or none.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_RUNS: list[list[int]] = []
"""The interrupts of each command that runs in this process."""


@contextmanager
def noticed_interrupts() -> Iterator[list[int]]:
    """A list that Ctrl-C fills while the block runs; it stays empty where this is not the main thread."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def notice(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, notice)
    _RUNS.append(seen)
    try:
        yield seen
    finally:
        _RUNS.remove(seen)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def check_interrupted() -> None:
    """Ends work that was interrupted, before its failure counts as one of a library or device.

    Raises:
        KeyboardInterrupt: Ctrl-C was noticed.
    """
    if any(_RUNS):
        raise KeyboardInterrupt
