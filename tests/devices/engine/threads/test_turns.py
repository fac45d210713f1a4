"""Threads that share a program, a session or cores: none waits for more than a few runs of each of the others."""

from __future__ import annotations

import ctypes
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import FrameType

import pytest

from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding.image import Queue, QueueKind, RegionKind, Sharing
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program
from nnstretch.devices.engine.binding.turn import MOST_PASSES, TurnLock
from tests.devices.engine.test_opencl import Builder, OpenCL, opencl
from tests.kits.c_libraries import c_library, runtime_files
from tests.kits.engine_programs import CORES, Arrays, call_program

__all__ = ["opencl"]

RUNS = 60
PATIENCE = 60.0


class Turns:
    """Counts the turns of others between a thread's request and its own turn."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self._taken = 0
        self._asked: dict[int, int] = {}
        self._random = random.Random(0)

    def ask(self) -> None:
        """The calling thread asks for a turn."""
        self._asked[threading.get_ident()] = self._taken

    def take(self, _reads: Arrays = (), _writes: Arrays = ()) -> None:
        """The calling thread has its turn, which takes a random time."""
        self.waited.append(self._taken - self._asked[threading.get_ident()])
        self._taken += 1
        time.sleep(self._random.random() * 1e-3)


def all_run(bodies: Sequence[Callable[[], None]], turns: Turns) -> None:
    """Runs each body `RUNS` times on a thread of its own, all at the same time."""
    start = threading.Barrier(len(bodies))

    def loop(body: Callable[[], None]) -> None:
        start.wait(PATIENCE)
        for _ in range(RUNS):
            turns.ask()
            body()

    threads = [threading.Thread(target=loop, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(turns.waited) == RUNS * len(bodies)


def most(threads: int) -> int:
    """The turns for which a thread waits at most: those of `TurnLock`, and some before it gets from `ask` to the lock."""
    return (MOST_PASSES + 1) * (threads - 1) + 2 * threads


def raw_run(program: Program) -> Callable[[], None]:
    """A run as a C caller makes it, without the lock of the binding."""
    handle, library = program._running._handle, engine().library

    def run() -> None:
        text = ctypes.create_string_buffer(256)
        assert library.nns_program_run(handle, ctypes.byref(binding.Feeds()), None, text, 256) == 0, text.value

    return run


@pytest.mark.parametrize("threads", [2, 4, 8])
@pytest.mark.parametrize("caller", ["Python", "C"])
def test_threads_that_share_a_program_wait_for_few_runs_of_the_others(caller: str, threads: int) -> None:
    turns = Turns()
    with call_program(turns.take) as program:
        run = program.run if caller == "Python" else raw_run(program)
        all_run([run] * threads, turns)
    assert max(turns.waited) <= most(threads)


def test_programs_that_share_cores_wait_for_few_runs_of_the_others() -> None:
    turns, queues = Turns(), [Queue(QueueKind.HOST, CORES[:1])]
    programs = [call_program(turns.take, queues=queues) for _ in range(4)]
    all_run([program.run for program in programs], turns)
    for program in programs:
        program.close()
    assert max(turns.waited) <= most(4)


@pytest.mark.opencl
def test_a_program_with_a_device_waits_for_few_runs_of_others_on_its_cores(opencl: OpenCL) -> None:
    """Its calling thread serves the device while it waits for the cores."""
    turns = Turns()
    queues = [Queue(QueueKind.HOST, CORES[:1]), Queue(QueueKind.OPENCL, (), opencl.command_queue(), name="device")]
    builder = Builder(opencl, queues)
    x, y = (builder.region(RegionKind.SHARED, 1, Sharing.COPIED) for _ in range(2))
    builder.device(1, (x, x), y, ())
    builder.call(0, turns.take)
    others = [call_program(turns.take, queues=queues[:1]) for _ in range(3)]
    with builder.program() as program:
        all_run([program.run, *(other.run for other in others)], turns)
    for other in others:
        other.close()
    assert max(turns.waited) <= most(4)


# ---- the engine's lock


@cache
def turn_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(c_library(Path(__file__).with_name("turn_order.c"), includes=runtime_files())))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads_get_the_lock_in_their_order_after_a_few_passes(threads: int) -> None:
    got, past = ((ctypes.c_int32 * threads)() for _ in range(2))
    assert turn_library().turn_order(threads, got, past) == 0
    assert list(got) == list(range(threads))
    assert all(taken <= MOST_PASSES * (i + 1) for i, taken in enumerate(past))


@pytest.mark.parametrize("granted", [False, True])
def test_a_waiter_that_withdraws_holds_nobody_up(granted: bool) -> None:
    assert turn_library().turn_withdrawn(granted) == 0


# ---- the lock of the binding


def test_a_lock_is_handed_over_after_a_few_passes() -> None:
    lock, taken = TurnLock(), []

    def wait() -> None:
        with lock:
            taken.append("waiting")

    with lock:
        thread = threading.Thread(target=wait)
        thread.start()
        while not lock._waiting:
            time.sleep(1e-4)
    while thread.is_alive():
        with lock:
            taken.append("passing")
    thread.join()
    assert taken.index("waiting") <= MOST_PASSES


def test_a_thread_that_gives_up_holds_nobody_up() -> None:
    lock, order = TurnLock(), []

    def wait(name: str, timeout: float) -> None:
        if lock.acquire(timeout):
            order.append(name)
            lock.release()

    with lock:
        threads = []
        for name, timeout in (("gives up", 0.01), ("first", -1), ("gives up, too", 0.02), ("second", PATIENCE)):
            threads.append(threading.Thread(target=wait, args=(name, timeout)))
            threads[-1].start()
            while len(lock._waiting) < len([t for t in threads if t.is_alive()]) and threads[-1].is_alive():
                time.sleep(1e-4)
        threads[0].join()
        threads[2].join()
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["first", "second"]
    assert lock.acquire(0)
    assert not elsewhere(lambda: lock.acquire(0))
    lock.release()
    assert elsewhere(lambda: lock.acquire(0))


def elsewhere(call: Callable[[], bool]) -> bool:
    """What a call returns in another thread."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(PATIENCE)
    return found == [True]


def test_an_interrupt_at_any_moment_leaves_a_lock_that_its_thread_can_take_and_free() -> None:
    """As a session is closed after Ctrl-C, wherever that came."""
    rng, interrupted = random.Random(0), 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            lock = TurnLock()
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 3e-4))
                while True:
                    lock.acquire()
                    try:
                        pass
                    finally:
                        lock.release()
            except KeyboardInterrupt:
                interrupted += 1
            with lock:
                pass
            assert elsewhere(partial(lock.acquire, 0))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 300


def test_threads_with_and_without_patience_never_lose_the_lock() -> None:
    lock, inside, taken = TurnLock(), [0], [0]
    rng = random.Random(0)

    def loop(timeout: float) -> None:
        for _ in range(300):
            if lock.acquire(timeout):
                inside[0] += 1
                assert inside[0] == 1
                taken[0] += 1
                if rng.random() < 0.1:
                    time.sleep(1e-4)
                inside[0] -= 1
                lock.release()

    threads = [threading.Thread(target=loop, args=(timeout,)) for timeout in (-1, -1, 0, 1e-5, 1e-4, 1e-3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert inside[0] == 0
    assert taken[0] >= 600
    assert lock.acquire(0)
