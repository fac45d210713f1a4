"""Locks between processes and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nnstretch.errors import UsageError
from nnstretch.support.locks import locked, only_writer


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


def test_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    """A second open file is locked out, as that of another process is; the folder is free afterwards, and empty."""
    with (
        only_writer(tmp_path, "-o"),
        pytest.raises(UsageError, match=r"another process is writing to .*; wait for its end, or choose .* -o"),
        only_writer(tmp_path, "-o"),
    ):
        raise AssertionError
    with only_writer(tmp_path, "-o"):
        assert not list(tmp_path.iterdir())
