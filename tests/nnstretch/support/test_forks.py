"""Locks that other threads, or other processes, hold when a process forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnstretch.errors import UsageError
from nnstretch.scheduler.plan.compiled import LazyConstants
from nnstretch.support.forks import ForkLock
from nnstretch.support.locks import lock_folder, locked


def status_of_child(body: Callable[[], object]) -> int:
    """The exit status of a forked child that calls `body`: 0, or 1 if that fails; negative if it hangs."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)
    try:
        body()
    except BaseException:  # noqa: BLE001 - nothing of pytest may run in the child
        os._exit(1)
    os._exit(0)


def take(lock: ForkLock) -> None:
    with lock:
        pass


def test_a_child_finds_the_locks_of_other_threads_free() -> None:
    lock, taken, over = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(30)
    assert [status_of_child(lambda: take(lock)) for _ in range(20)] == [0] * 20
    over.set()
    thread.join()
    take(lock)


def test_a_thread_that_forks_keeps_its_lock() -> None:
    lock = ForkLock()

    def leave() -> None:
        lock.__exit__()
        take(lock)

    with lock:
        assert status_of_child(leave) == 0
    take(lock)


def test_a_child_packs_constants_that_a_thread_of_its_parent_was_packing() -> None:
    packing, over, parent = threading.Event(), threading.Event(), os.getpid()

    def pack() -> np.ndarray:
        packing.set()
        if os.getpid() == parent:
            over.wait(30)
        return np.arange(4, dtype=np.uint8)

    constants = LazyConstants(pack)
    thread = threading.Thread(target=constants.get)
    thread.start()
    assert packing.wait(30)
    status = status_of_child(lambda: np.testing.assert_array_equal(constants.get(), np.arange(4)))
    over.set()
    thread.join()
    assert status == 0


def test_a_file_is_free_for_others_while_a_child_of_its_holder_lives(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waits, ends = os.pipe()
    with path.open("w") as file, locked(file):
        child = os.fork()
        if not child:
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    try:
        assert status_of_child(lambda: take_file(path)) == 0
    finally:
        os.close(ends)
        os.close(waits)
        os.waitpid(child, 0)


def take_file(path: Path) -> None:
    with path.open("w") as file, locked(file):
        pass


def test_a_child_that_outlives_its_parent_keeps_no_folder_locked(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path, "-o")
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        os.write(begun, b"!")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"!"
        with pytest.raises(UsageError, match="another process is writing"):
            lock_folder(tmp_path, "-o")
        lock.close()
        lock_folder(tmp_path, "-o").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(begun)
