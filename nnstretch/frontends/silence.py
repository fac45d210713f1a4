"""Suppresses the output of verbose libraries in the calling thread only."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, cast

from nnstretch.support.forks import ForkLock

_LOUD = "torch"
"""Root name of the loggers that are silenced."""


class _Silent(threading.local):
    """Number of `quiet` blocks that this thread is in."""

    depth = 0


_here = _Silent()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses output, warnings and torch's log records of this thread; other threads are unaffected.

    Blocks of several threads may overlap in any order.
    """
    with _lock:
        _standing.enter()
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
        with _lock:
            _standing.leave()


class _Stream:
    """A stream that discards what silent threads write."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        return len(text) if _here.depth else self.stream.write(text)

    def writelines(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.write(line)


class _OfSilentThreads:
    """A module pattern for a warnings filter: matches every module in silent threads, none in others."""

    def match(self, _module: str) -> bool:
        return _here.depth > 0


def _speaks(record: logging.LogRecord) -> bool:
    return not (_here.depth and record.name.partition(".")[0] == _LOUD)


class _Standing:
    """Process-wide hooks that are installed while at least one thread is silent."""

    _filter = ("ignore", None, Warning, _OfSilentThreads(), 0)

    def __init__(self) -> None:
        self._silent = 0
        self._undo = ExitStack()

    def enter(self) -> None:
        self._silent += 1
        if self._silent > 1:
            return
        for name in ("stdout", "stderr"):
            stream = _Stream(getattr(sys, name))
            setattr(sys, name, cast("TextIO", stream))
            self._undo.callback(_restore, name, stream)
        _filters().insert(0, self._filter)
        for handler in _handlers():
            handler.addFilter(_speaks)
            self._undo.callback(handler.removeFilter, _speaks)

    def leave(self) -> None:
        self._silent -= 1
        if not self._silent:
            self._undo.close()
            if self._filter in _filters():
                _filters().remove(self._filter)


def _restore(name: str, stream: _Stream) -> None:
    if getattr(sys, name) is stream:  # unless something else has replaced it
        setattr(sys, name, stream.stream)


def _filters() -> list[object]:
    """The list of warning filters; `warnings.filterwarnings` does not accept filters per thread."""
    return cast("list[object]", warnings.filters)


def _handlers() -> list[logging.Handler]:
    """All handlers that a record of the silenced loggers can reach."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == _LOUD]
    loggers = [logging.root, *map(logging.getLogger, names)]
    found = {handler for logger in loggers for handler in logger.handlers}
    return [*found, *([logging.lastResort] if logging.lastResort else [])]


_lock = ForkLock()
_standing = _Standing()
