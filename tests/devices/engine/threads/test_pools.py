"""Pools: division of work, cores and signals of threads, and the mode of their floats."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import chain, count, repeat
from math import ceil, floor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.engine.binding.image import (
    Buffer,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.library import MAX_RATIO, engine, wait_for_rise
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.errors import FeedError
from tests.kits.c_libraries import c_library, runtime_files
from tests.kits.engine_programs import CORES, add, call_program


@settings(max_examples=25)
@given(cores=st.lists(st.sampled_from(CORES), min_size=1, max_size=12), floats=st.integers(1, 60000))
def test_any_number_of_threads_computes_all_of_it(cores: list[int], floats: int) -> None:
    size = 4 * floats
    memory = [aligned_array(size + 64) for _ in range(3)]
    x, y, z = (m.view(np.float32) for m in memory)
    x[:], y[:], z[:] = np.arange(x.size), np.arange(x.size)[::-1], -1
    regions = [Region(RegionKind.FIXED, size, memory=m) for m in memory]
    buffers = [Buffer(i, 0, size) for i in range(3)]
    steps = [add((0, 1), 2, floats), add((2, 1), 2, floats)]
    with Program([Queue(QueueKind.HOST, tuple(cores))], regions, buffers, steps, [SubGraph(0, 2)]) as program:
        program.run()
    assert np.array_equal(z[:floats], (x + y + y)[:floats])
    assert (z[floats:] == -1).all()


@cache
def _split_library() -> ctypes.CDLL:
    source = Path(__file__).with_name("split.c")
    return ctypes.CDLL(str(c_library(source, includes=runtime_files())))


def split(units: int, ratios: Sequence[int], threads: int | None = None) -> list[int]:
    """The engine's division of a step's units among threads."""
    count = len(ratios) if threads is None else threads
    parts = (ctypes.c_int64 * count)()
    shares = (ctypes.c_int64 * count)(*ratios) if ratios else None
    _split_library().nns_split_units(ctypes.c_int64(units), shares, ctypes.c_int32(count), parts)
    return list(parts)


@given(
    units=st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1)),
    ratios=st.lists(st.one_of(st.integers(1, 4), st.integers(1, MAX_RATIO)), min_size=1, max_size=24),
)
def test_units_are_split_fairly_by_ratios(units: int, ratios: list[int]) -> None:
    parts = split(units, ratios)
    exact = [Fraction(units * ratio, sum(ratios)) for ratio in ratios]
    assert sum(parts) == units
    assert all(part in (floor(share), ceil(share)) for part, share in zip(parts, exact, strict=True))
    # No part that was rounded up has a smaller remainder than one that was rounded down.
    up = [share - floor(share) for part, share in zip(parts, exact, strict=True) if part > share]
    down = [share - floor(share) for part, share in zip(parts, exact, strict=True) if part < share]
    assert not up or not down or min(up) >= max(down)


@given(units=st.integers(0, 1000), threads=st.integers(1, 64))
def test_units_are_split_evenly_without_ratios(units: int, threads: int) -> None:
    parts = split(units, (), threads)
    assert parts == split(units, [7] * threads)
    assert sum(parts) == units
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1


def test_a_clock_is_read_on_the_core_that_is_asked_for() -> None:
    before = os.sched_getaffinity(0)
    assert 0 < engine().clock_gflops(CORES[0]) < 10 * engine().peak_gflops(CORES[0], 1)
    assert engine().clock_gflops() > 0
    with pytest.raises(FeedError, match="cannot be used"):
        engine().clock_gflops(1023)
    assert os.sched_getaffinity(0) == before


def test_a_clock_is_read_until_it_no_longer_rises() -> None:
    """Idle cores rise in steps, with pauses between them; a disturbed reading changes nothing."""
    rising = [38, 38, 51, 50, 52, 69, 41, 69, 69, 86, 80]
    for readings, most in ((chain(rising, repeat(98)), len(rising) + 13), (repeat(98), 13), (count(1), 60)):
        read = Mock(side_effect=readings)
        wait_for_rise(read)
        assert read.call_count == most


def test_the_calling_thread_is_pinned_for_the_run_only() -> None:
    before, during = os.sched_getaffinity(0), []
    queues = [Queue(QueueKind.HOST, CORES[-1:])]
    with call_program(lambda _r, _w: during.append(os.sched_getaffinity(0)), queues=queues) as program:
        program.run()
    assert during == [{CORES[-1]}]
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(CORES) < 2, reason="the calling thread moves between two cores")
def test_a_core_that_is_lost_between_runs_ends_no_run() -> None:
    kit = Path(__file__).parents[3] / "kits" / "boards" / "lost_cores.c"
    script = """
import ctypes, os, sys
from nnstretch.devices.engine.binding.image import *
from nnstretch.devices.engine.binding.program import *
core, usable, during = int(sys.argv[1]), os.sched_getaffinity(0), []
lost = ctypes.c_int.in_dll(ctypes.CDLL(os.environ["LD_PRELOAD"]), "cores_lost")
def program():
    return Program([Queue(QueueKind.HOST, (core,))], [], [], [Step(StepKind.CALL, 0)], [SubGraph(0, 1)],
                   calls=[lambda reads, writes: during.append(os.sched_getaffinity(0))])
with program() as one, program() as other:
    one.run()
    lost.value = 1
    one.run()
    one.run()
    try:
        other.run()
    except Exception as error:
        assert f"core {core} cannot be used" in str(error), error
    else:
        raise AssertionError("a core that no run has had is no error")
    lost.value = 0
    one.run()
assert during == [{core}, usable, usable, {core}], during
assert os.sched_getaffinity(0) == usable
"""
    command = [sys.executable, "-c", script, str(CORES[-1])]
    environment = {**os.environ, "LD_PRELOAD": str(c_library(kit))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    warnings = done.stderr.splitlines()
    assert len(warnings) == 1
    assert f"core {CORES[-1]} cannot be used" in warnings[0]


def test_threads_end_with_their_program() -> None:
    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    before = threads()  # those of an earlier test may be about to end
    queues = [Queue(QueueKind.HOST, (CORES[0],) * 4), Queue(QueueKind.HOST, (CORES[0],) * 4), Queue(QueueKind.CALL)]
    calls = [lambda _r, _w: None] * 3
    with call_program(*calls, queues=queues) as first, call_program(*calls, queues=queues) as second:
        assert len(threads() - before) == 3 + 3 + 4  # pools are shared by core list, queues' threads are not
        first.run()
        second.run()
    # A thread is joined a moment before the kernel stops listing it.
    end = time.monotonic() + 10
    while threads() - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not threads() - before


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
@pytest.mark.parametrize("ratios", [(), (2, 1)], ids=["alike", "unlike"])
def test_threads_stay_on_cores_that_differ_and_move_among_others(ratios: tuple[int, ...]) -> None:
    cores = (CORES[-1], CORES[0])
    of_caller, of_worker = ({cores[0]}, {cores[1]}) if ratios else (set(cores), set(cores))
    before, own = {task.name for task in Path("/proc/self/task").iterdir()}, os.sched_getaffinity(0)
    during: list[set[int]] = []
    with call_program(
        lambda _r, _w: during.append(os.sched_getaffinity(0)), queues=[Queue(QueueKind.HOST, cores, ratios=ratios)]
    ) as program:
        program.run()
        assert during == [of_caller]
        assert os.sched_getaffinity(0) == own
        (worker,) = (int(task.name) for task in Path("/proc/self/task").iterdir() if task.name not in before)
        end = time.monotonic() + 10
        while (
            os.sched_getaffinity(worker) != of_worker and time.monotonic() < end
        ):  # a thread that starts is on its core
            time.sleep(0.01)
        assert os.sched_getaffinity(worker) == of_worker


def test_threads_block_only_the_signals_that_others_raise() -> None:
    own = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}

    def blocked(task: Path) -> set[int]:
        mask = re.search(r"^SigBlk:\s*(\w+)", (task / "status").read_text(), re.MULTILINE)
        assert mask
        return {number for number in range(1, 32) if int(mask[1], 16) >> number - 1 & 1}

    queues = [Queue(QueueKind.HOST, (CORES[0],) * 2), Queue(QueueKind.CALL)]
    before = {task.name for task in Path("/proc/self/task").iterdir()}
    with call_program(*[lambda _r, _w: None] * 2, queues=queues):
        tasks = [task for task in Path("/proc/self/task").iterdir() if task.name not in before]
        assert len(tasks) == 2
        for task in tasks:
            end = time.monotonic() + 10
            while own & blocked(task) and time.monotonic() < end:  # a thread that starts blocks all signals
                time.sleep(0.01)
            assert not own & blocked(task)
            assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM} <= blocked(task)


def test_a_fault_in_a_thread_of_the_engine_is_reported() -> None:
    script = """
import ctypes, faulthandler
from nnstretch.devices.engine.binding.image import *
from nnstretch.devices.engine.binding.program import *
faulthandler.enable()
Program([Queue(QueueKind.HOST), Queue(QueueKind.CALL)], [], [], [Step(StepKind.CALL, 0)], [SubGraph(1, 1)],
        calls=[lambda reads, writes: ctypes.string_at(1, 9)]).run()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr


# ---- denormals

DENORMAL = np.float32(1e-40)


def binary_program(
    value: np.float32, cores: tuple[int, ...], *, operator: int = 0, floats: int = 60000
) -> tuple[Program, np.ndarray]:
    """A program that computes value + value, or value * value with operator 2, and the memory of its `floats` results."""
    memory = [aligned_array(4 * floats + 64) for _ in range(2)]
    x, results = (m.view(np.float32) for m in memory)
    x[:], results[:] = value, -1
    regions = [Region(RegionKind.FIXED, 4 * floats, memory=m) for m in memory]
    buffers = [Buffer(i, 0, 4 * floats) for i in range(2)]
    step = Step(StepKind.KERNEL, engine().find("eltwise/binary"), (0, 0), (1,), (operator, 1, floats, 0, 1, 0, 0, 0))
    program = Program([Queue(QueueKind.HOST, cores)], regions, buffers, [step], [SubGraph(0, 1)])
    return program, results[:floats]


@pytest.mark.parametrize("threads", [1, 4])
def test_kernels_flush_denormals_on_every_thread(threads: int) -> None:
    program, sums = binary_program(DENORMAL, tuple(CORES[i % len(CORES)] for i in range(threads)))
    with program:
        for _ in range(5):
            sums[:] = -1
            program.run()
            assert (sums.view(np.int32) == 0).all()


def test_denormals_are_the_callers_own_in_calls_and_after_a_run() -> None:
    during: list[np.ndarray] = []
    operands = np.full(8, DENORMAL)
    program, _ = binary_program(DENORMAL, (CORES[0],) * 2)
    call = lambda _r, _w: during.append(operands + operands)  # noqa: E731
    with program, call_program(call, call, queues=[Queue(QueueKind.HOST, CORES[:1]), Queue(QueueKind.CALL)]) as calls:
        for run in (program.run, calls.run, program.time):
            run()
            assert (operands + operands > 0).all()
    assert len(during) == 2
    assert all((sums > 0).all() for sums in during)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the layout of fenv_t on x86-64")
def test_a_run_leaves_the_callers_float_mode_alone() -> None:
    """Also a mode that is not the usual one."""
    libm, environment = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()

    def control() -> int:
        assert libm.fegetenv(environment) == 0
        return environment[7] & 0xFFC0  # MXCSR without its exception flags

    usual = control()
    program, _ = binary_program(DENORMAL, CORES[:1])
    with program:
        for mode in (usual, usual | 0x8000, usual | 0x2000):
            environment[7] = mode
            assert libm.fesetenv(environment) == 0
            try:
                program.run()
                found = control()
            finally:
                environment[7] = usual
                libm.fesetenv(environment)
            assert found == mode


def test_denormals_cost_no_time() -> None:
    times = []
    for value in (np.float32(1), DENORMAL):
        program, _ = binary_program(value, CORES[:1], operator=2)
        with program:
            times.append(min(program.time(runs=100)))
    assert times[1] < 4 * times[0]
