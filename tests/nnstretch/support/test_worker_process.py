"""Processes that are asked by frames: how long their answers are waited for."""

from __future__ import annotations

import itertools
import sys

import pytest

from nnstretch.support import worker_process
from nnstretch.support.worker_process import WorkerError, WorkerProcess

ANSWERS_LATE = """
import sys, time
from nnstretch.support.frames import write_frame
time.sleep(0.6)
write_frame(sys.stdout.buffer, {"late": True}, {})
"""


@pytest.mark.parametrize("is_busy", [True, False])
def test_patience_begins_again_when_the_process_works_on_something_else(
    monkeypatch: pytest.MonkeyPatch, *, is_busy: bool
) -> None:
    monkeypatch.setattr(worker_process, "_TICK", 0.05)
    numbers = itertools.count()
    with WorkerProcess([sys.executable, "-c", ANSWERS_LATE]) as process:
        if is_busy:
            assert process.receive(3, lambda: next(numbers))[0] == {"late": True}
        else:
            with pytest.raises(WorkerError, match="no answer within 3 s"):
                process.receive(3, lambda: 0)
