"""Locks between processes and threads."""

from __future__ import annotations

import threading
from pathlib import Path

from nnstretch.support.locks import locked


def test_only_a_wait_is_announced(tmp_path: Path) -> None:
    announced, entered = threading.Event(), threading.Event()

    def enter() -> None:
        with (tmp_path / "lock").open("w") as file, locked(file, announced.set):
            entered.set()

    with (tmp_path / "lock").open("w") as mine, locked(mine, announced.set):
        assert not announced.is_set()
        thread = threading.Thread(target=enter)
        thread.start()
        assert announced.wait(60)
        assert not entered.wait(0.1)
    assert entered.wait(60)
    thread.join()
