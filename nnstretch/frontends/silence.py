"""Silence of libraries that talk while they work, in the thread that calls them and in no other one."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_LOUD = "torch"
"""Name of the loggers that are silenced; those of others speak."""


class _Silent(threading.local):
    """How many blocks of silence this thread is in."""

    depth = 0


_here = _Silent()


@contextmanager
def quiet() -> Iterator[None]:
    """No output, no warnings and no log records of torch from this thread. Other threads' come through.

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
    """A stream that loses what silent threads write."""

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
    """What a filter of warnings takes for a pattern of module names: it matches any, in silent threads."""

    def match(self, _module: str) -> bool:
        return _here.depth > 0


def _speaks(record: logging.LogRecord) -> bool:
    return not (_here.depth and record.name.partition(".")[0] == _LOUD)


class _Standing:
    """What is changed in the process as long as any thread is silent: without such threads it changes nothing."""

    _filter = ("ignore", None, Warning, _OfSilentThreads(), 0)

    def __init__(self) -> None:
        self._silent = 0
        self._streams: dict[str, _Stream] = {}
        self._handlers: list[logging.Handler] = []

    def enter(self) -> None:
        self._silent += 1
        if self._silent > 1:
            return
        self._streams = {name: _Stream(getattr(sys, name)) for name in ("stdout", "stderr")}
        for name, stream in self._streams.items():
            setattr(sys, name, cast("TextIO", stream))
        _filters().insert(0, self._filter)
        self._handlers = _handlers()
        for handler in self._handlers:
            handler.addFilter(_speaks)

    def leave(self) -> None:
        self._silent -= 1
        if self._silent:
            return
        for name, stream in self._streams.items():
            if getattr(sys, name) is stream:  # else somebody has put another one in its place
                setattr(sys, name, stream.stream)
        if self._filter in _filters():
            _filters().remove(self._filter)
        for handler in self._handlers:
            handler.removeFilter(_speaks)


def _filters() -> list[object]:
    """Those of warnings, of which `warnings.filterwarnings` takes none that knows threads."""
    return cast("list[object]", warnings.filters)


def _handlers() -> list[logging.Handler]:
    """All that a record of the loud loggers may come to."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.partition(".")[0] == _LOUD]
    loggers = [logging.root, *map(logging.getLogger, names)]
    found = {handler for logger in loggers for handler in logger.handlers}
    return [*found, *([logging.lastResort] if logging.lastResort else [])]


_lock = threading.Lock()
_standing = _Standing()
