"""Silence is a matter of one thread."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable

import pytest

from nnstretch.frontends.silence import quiet


def say(text: str) -> None:
    """In the ways that libraries know."""
    sys.stdout.write(f"{text} out\n")
    sys.stderr.write(f"{text} err\n")
    logging.getLogger("torch.onnx.anything").error("%s record", text)


class Thread:
    """A thread that does one thing after another, each when it is asked to."""

    def __init__(self) -> None:
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._task: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while True:
            self._wanted.acquire()
            if self._task is None:
                return
            self._task()
            self._done.release()

    def do(self, task: Callable[[], object]) -> None:
        self._task = task
        self._wanted.release()
        assert self._done.acquire(timeout=30)

    def end(self) -> None:
        self._task = None
        self._wanted.release()
        self._thread.join()


def test_threads_are_silent_by_themselves(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    streams = sys.stdout, sys.stderr
    one, other = Thread(), Thread()
    blocks = quiet(), quiet()
    one.do(blocks[0].__enter__)
    one.do(lambda: say("silent"))
    other.do(lambda: say("first"))
    other.do(blocks[1].__enter__)
    say("second")
    one.do(lambda: blocks[0].__exit__(None, None, None))  # the one that came first leaves first
    one.do(lambda: say("third"))
    other.do(lambda: say("silent"))
    logging.getLogger("mine").error("own record")
    other.do(lambda: blocks[1].__exit__(None, None, None))
    other.do(lambda: say("fourth"))
    for thread in (one, other):
        thread.end()
    assert (sys.stdout, sys.stderr) == streams
    heard = ["first", "second", "third", "fourth"]
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [f"{who} out" for who in heard]
    assert [line for line in captured.err.splitlines() if line.endswith(" err")] == [f"{who} err" for who in heard]
    assert [record.getMessage() for record in caplog.records] == [
        *(f"{who} record" for who in heard[:3]),
        "own record",
        "fourth record",
    ]


def test_warnings_of_other_threads_are_heard() -> None:
    one = Thread()
    block = quiet()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        one.do(block.__enter__)
        one.do(lambda: warnings.warn("silent", FutureWarning, stacklevel=1))
        warnings.warn("heard", FutureWarning, stacklevel=1)
        one.do(lambda: block.__exit__(None, None, None))
        one.do(lambda: warnings.warn("again", FutureWarning, stacklevel=1))
    one.end()
    assert [str(warning.message) for warning in heard] == ["heard", "again"]


def test_a_stream_that_takes_their_place_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet():
        mine = sys.__stderr__
        monkeypatch.setattr(sys, "stdout", mine)
    assert sys.stdout is mine
