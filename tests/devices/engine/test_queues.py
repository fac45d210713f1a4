"""Pools, queues, call steps, traces and concurrent runs."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import re
import signal
import subprocess
import sys
import threading
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

from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding.execution import CallFunction, address_of
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
from nnstretch.devices.engine.build.engine_library import build_engine
from nnstretch.errors import DeviceError, FeedError
from tests.kits.c_libraries import c_library, runtime_files

CORES = usable_cores()
Arrays = Sequence[np.ndarray]


def add(reads: tuple[int, int], write: int, floats: int) -> Step:
    return Step(StepKind.KERNEL, engine().find("eltwise/binary"), reads, (write,), (0, 1, floats, 0, 1, 0, 0, 0))


def call_program(
    *calls: CallFunction, queues: Sequence[Queue] = (), waits: Sequence[tuple[int, ...]] = (), keep: object = None
) -> Program:
    """A program of call steps, each a sub-graph on the queue of its number."""
    count = len(calls)
    return Program(
        queues or [Queue(QueueKind.HOST), *[Queue(QueueKind.CALL)] * (count - 1)],
        [],
        [],
        [Step(StepKind.CALL, i) for i in range(count)],
        [SubGraph(i, 1, waits[i] if waits else ()) for i in range(count)],
        calls=calls,
        keep=keep,
    )


# ---- pools


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
    kit = Path(__file__).parents[2] / "kits" / "boards" / "lost_cores.c"
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


# ---- queues


@settings(max_examples=40)
@given(st.data())
def test_a_network_over_queues_equals_numpy(data: st.DataObject) -> None:
    """Additions on host queues and, in Python and after random delays, on call queues."""
    floats = 3000
    size = 4 * floats
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    kinds = [QueueKind.HOST, *data.draw(st.lists(st.sampled_from((QueueKind.HOST, QueueKind.CALL)), max_size=3))]
    nodes = data.draw(st.integers(1, 16))

    def late_add(reads: Arrays, writes: Arrays) -> None:
        time.sleep(rng.random() * 2e-3)
        x, y = (array.view(np.float32) for array in reads)
        writes[0].view(np.float32)[:] = x + y

    values = [np.arange(floats, dtype=np.float32) % 4]
    memory = np.full((nodes + 1, floats), -1, np.float32)
    memory[0] = values[0]
    steps, subgraphs, placed = [], [], [-1]
    for node in range(1, nodes + 1):
        reads = (rng.randrange(node), rng.randrange(node))
        queue = rng.randrange(len(kinds))
        called = kinds[queue] is QueueKind.CALL or rng.random() < 0.3
        steps.append(Step(StepKind.CALL, 0, reads, (node,)) if called else add(reads, node, floats))
        waits = {read - 1 for read in reads if read and placed[read] != queue}
        subgraphs.append(SubGraph(queue, 1, tuple(sorted(waits))))
        placed.append(queue)
        values.append(values[reads[0]] + values[reads[1]])
    with Program(
        [Queue(kind) for kind in kinds],
        [Region(RegionKind.FIXED, size, memory=row) for row in memory],
        [Buffer(i, 0, size) for i in range(nodes + 1)],
        steps,
        subgraphs,
        calls=[late_add],
    ) as program:
        for _ in range(2):
            memory[1:] = -1
            program.run()
            assert np.array_equal(memory, values)


@pytest.mark.parametrize("kinds", [(QueueKind.HOST, QueueKind.HOST, QueueKind.CALL), (QueueKind.HOST, QueueKind.CALL)])
def test_queues_run_at_the_same_time(kinds: tuple[QueueKind, ...]) -> None:
    """Each call meets the others at a barrier, which only opens if all of them run at once."""
    barrier = threading.Barrier(len(kinds))
    calls: list[CallFunction] = [lambda _r, _w: void(barrier.wait(30))] * len(kinds)
    with call_program(*calls, queues=[Queue(kind) for kind in kinds]) as program:
        program.run()
        program.run()


def void(_value: object) -> None:
    """Nothing, of a value that is not wanted."""


def test_a_trace_shows_steps_after_what_they_wait_for() -> None:
    calls: list[CallFunction] = [
        lambda _r, _w: time.sleep(0.01),
        lambda _r, _w: time.sleep(0.01),
        lambda _r, _w: None,
    ]
    queues = [Queue(QueueKind.HOST), Queue(QueueKind.HOST), Queue(QueueKind.CALL)]
    with call_program(*calls, queues=queues, waits=[(), (0,), (0, 1)]) as program:
        for _ in range(2):
            trace = program.run_traced()
            assert trace.steps.shape == trace.waits.shape == (3, 2)
            assert (trace.steps[:, 0] <= trace.steps[:, 1]).all()
            assert (trace.waits[:, 0] <= trace.waits[:, 1]).all()
            assert (trace.waits[:, 1] <= trace.steps[:, 0]).all()
            assert trace.begin <= trace.steps.min() <= trace.steps.max() <= trace.end
            assert trace.waits[0, 0] == trace.waits[0, 1]
            assert trace.waits[1, 1] >= trace.steps[0, 1]
            assert trace.waits[2, 1] >= trace.steps[1, 1]
            assert (np.diff(trace.steps[:2]) >= 10_000_000).all()


def test_transfers_between_queues_are_delayed_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_us = 30_000
    calls: list[CallFunction] = [lambda _r, _w: None] * 3
    for text, least in ((str(delay_us), delay_us), ("0", 0), ("-5", 0), ("nonsense", 0)):
        monkeypatch.setenv("NNSTRETCH_TRANSFER_DELAY_US", text)
        with call_program(*calls, waits=[(), (0,), (1,)]) as program:
            trace = program.run_traced()
        passed = np.diff(trace.steps[:, 0]) / 1000
        assert (passed >= least).all()
        assert trace.waits[0, 0] == trace.waits[0, 1]
        if not least:
            assert (passed < delay_us).all()


def least_ns(cores: tuple[int, ...], steps: int) -> int:
    """The shortest of several runs of additions on a pool, in nanoseconds."""
    size = 4 * 60000
    memory = [aligned_array(size) for _ in range(3)]
    regions = [Region(RegionKind.FIXED, size, memory=m) for m in memory]
    additions = [add((0, 1), 2, size // 4)] * steps
    buffers = [Buffer(i, 0, size) for i in range(3)]
    with Program([Queue(QueueKind.HOST, cores)], regions, buffers, additions, [SubGraph(0, steps)]) as program:
        return int(min(program.time(warmup=1, runs=30, budget_ms=300)))


def test_slow_cores_take_as_much_longer_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a hundredth of the speed; the shortest of many runs on one core is hardly disturbed by other programs."""
    alone, together = CORES[:1], CORES[:2]
    fast = least_ns(alone, 20)
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", ",".join(f"{core}:0.01" for core in together))
    assert least_ns(alone, 20) > 30 * fast
    assert least_ns(together, 20) > 15 * fast
    for text in ("x", f"{alone[0]}", f"{alone[0]}:0.001", f"{alone[0]}:7", f"{max(CORES) + 1}:0.01,"):
        monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", text)
        assert least_ns(alone, 20) < 30 * fast, text


def test_calls_take_the_mean_speed_of_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = CORES[:2]
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", f"9999:0.5,{cores[0]}:0.2")
    mean = (0.2 + len(cores) - 1) / len(cores)
    with call_program(lambda _r, _w: time.sleep(0.02), queues=[Queue(QueueKind.HOST, cores)]) as program:
        ((begin, end),) = program.run_traced().steps
    assert end - begin >= 20_000_000 / mean


def test_times_are_as_many_as_asked_for() -> None:
    count = []
    with call_program(lambda _r, _w: count.append(1)) as program:
        assert len(program.time(warmup=2, runs=7)) == 7
        assert len(count) == 9
    with call_program(lambda _r, _w: time.sleep(0.002)) as program:
        times = program.time(warmup=0, runs=1000, budget_ms=20)
        assert 3 <= len(times) <= 11  # none is shorter than 2 ms
        assert min(times) >= 2_000_000
        assert len(program.time(warmup=1, runs=100, budget_ms=0.001)) == 3


# ---- errors


@pytest.mark.parametrize("queue", [0, 1, 2])
def test_an_error_in_a_call_comes_out_and_the_next_run_works(queue: int) -> None:
    broken: list[BaseException] = []

    def call(_reads: Arrays, _writes: Arrays) -> None:
        if broken:
            raise broken[0]

    calls: list[CallFunction] = [lambda _r, _w: None] * 3
    calls[queue] = call
    queues = [Queue(QueueKind.HOST), Queue(QueueKind.HOST), Queue(QueueKind.CALL)]
    with call_program(*calls, queues=queues, waits=[(), (0,), (1,)]) as program:
        for error in (FeedError("the feed is odd"), ValueError("odd"), KeyboardInterrupt()):
            program.run()
            broken.append(error)
            wanted = DeviceError if isinstance(error, ValueError) else type(error)
            with pytest.raises(wanted) as caught:
                program.run()
            if isinstance(error, ValueError):
                assert caught.value.__cause__ is error
                assert f"step {queue}" in str(caught.value)
            else:
                assert caught.value is error
            broken.clear()
            program.run()


def test_nothing_runs_after_a_failed_step() -> None:
    ran: list[int] = []

    def fail(_reads: Arrays, _writes: Arrays) -> None:
        raise FeedError("stop")

    calls: list[CallFunction] = [fail, lambda _r, _w: ran.append(1), lambda _r, _w: ran.append(2)]
    queues = [Queue(QueueKind.HOST), Queue(QueueKind.CALL), Queue(QueueKind.CALL)]
    with call_program(*calls, queues=queues, waits=[(), (0,), (1,)]) as program:
        for _ in range(20):
            with pytest.raises(FeedError):
                program.run()
    assert not ran


def test_addresses_of_any_array() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    fixed = array.copy()
    fixed.flags.writeable = False
    for one in (array, array[1:], array[:, 1:], array.T, fixed, array[:0], array.astype(np.float16), np.array(1.0)):
        assert address_of(one) == one.ctypes.data


def test_sizes_of_inputs_and_outputs_are_checked() -> None:
    """As C callers see it: the binding checks arrays itself."""
    floats = 16
    size = 4 * floats
    regions = [Region(RegionKind.INPUT, size), Region(RegionKind.OUTPUT, size)]
    buffers = [Buffer(i, 0, size) for i in range(2)]
    x, y = np.arange(floats, dtype=np.float32), np.zeros(floats + 1, np.float32)
    library, text = engine().library, ctypes.create_string_buffer(256)

    def words(*arrays: tuple[np.ndarray | None, int]) -> ctypes.Array[ctypes.c_int64]:
        flat = [word for array, n in arrays for word in (0 if array is None else array.ctypes.data, n)]
        return (ctypes.c_int64 * len(flat))(*flat)

    with Program([Queue(QueueKind.HOST)], regions, buffers, [add((0, 0), 1, floats)], [SubGraph(0, 1)]) as program:
        handle = program._running._handle

        def refusal(feeds: binding.Feeds | None) -> str:
            given = None if feeds is None else ctypes.byref(feeds)
            status = library.nns_program_run(handle, given, None, text, 256)
            times, done = (ctypes.c_int64 * 1)(), ctypes.c_int64()
            assert library.nns_program_time(handle, given, 0, 1, 0, times, ctypes.byref(done), text, 256) == status
            assert (status == 0) == (text.value == b"")
            return text.value.decode()

        whole = words((x, size)), words((y, size))
        assert refusal(binding.Feeds(*whole, 1, 1)) == ""
        assert refusal(binding.Feeds(whole[0], words((y, size + 4)), 1, 1)) == ""
        assert (y == [*(2 * x), 0]).all()
        y[:] = 0
        short = "of the run has 63 bytes and needs 64"
        assert refusal(binding.Feeds(words((x, size - 1)), whole[1], 1, 1)) == f"input 0 {short}"
        assert refusal(binding.Feeds(whole[0], words((y, size - 1)), 1, 1)) == f"output 0 {short}"
        assert "has -1 bytes" in refusal(binding.Feeds(words((x, -1)), whole[1], 1, 1))
        assert refusal(binding.Feeds(words((None, size)), whole[1], 1, 1)) == "input 0 of the run is missing"
        assert refusal(binding.Feeds(whole[0], words((None, size)), 1, 1)) == "output 0 of the run is missing"
        assert "arrays of the run" in refusal(binding.Feeds(None, None, 1, 1))
        for counts in ((0, 1), (1, 0), (2, 1), (1, 2)):
            assert "the program has 1 inputs and 1 outputs" in refusal(binding.Feeds(*whole, *counts))
        assert "the run has 0 inputs" in refusal(None)
        assert not y.any()
        assert refusal(binding.Feeds(*whole, 1, 1)) == ""


def test_a_program_from_before_a_fork_is_refused_in_the_child() -> None:
    script = """
import os
from nnstretch.devices.engine.binding.image import *
from nnstretch.devices.engine.binding.program import *
from nnstretch.errors import UsageError
program = Program([Queue(QueueKind.HOST, (0, 0)), Queue(QueueKind.CALL)], [], [], [Step(StepKind.CALL, 0)], [SubGraph(1, 1)],
                  calls=[lambda reads, writes: None])
program.run()
child = os.fork()
if child == 0:
    try:
        program.run()
    except UsageError as error:
        program.close()
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
program.run()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- concurrent runs


def test_threads_that_run_one_program_take_turns() -> None:
    floats = 20000
    size = 4 * floats
    workspace = aligned_array(size)
    with Program(
        [Queue(QueueKind.HOST, CORES[:2]), Queue(QueueKind.HOST, CORES[:1])],
        [
            Region(RegionKind.INPUT, size),
            Region(RegionKind.FIXED, size, memory=workspace),
            Region(RegionKind.OUTPUT, size),
        ],
        [Buffer(i, 0, size) for i in range(3)],
        [add((0, 0), 1, floats), add((1, 0), 2, floats)],
        [SubGraph(0, 1), SubGraph(1, 1, (0,))],
    ) as program:
        wrong: list[int] = []

        def work(seed: int) -> None:
            x = np.full(floats, seed, np.float32)
            for _ in range(40):
                y = np.zeros_like(x)
                program.run([x], [y])
                if not (y == 3 * seed).all():
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_programs_that_share_pools_in_other_orders_do_not_wait_for_each_other() -> None:
    cores = (CORES[0], CORES[-1])
    programs = []
    for first, second in ((0, 1), (1, 0)):
        memory = np.ones((2, 50000), np.float32)
        regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
        buffers = [Buffer(i, 0, memory[i].nbytes) for i in range(2)]
        queues = [Queue(QueueKind.HOST, (cores[first],) * 2), Queue(QueueKind.HOST, (cores[second],) * 2)]
        steps = [add((0, 0), 1, 50000), add((1, 0), 1, 50000)]
        programs.append(Program(queues, regions, buffers, steps, [SubGraph(0, 1), SubGraph(1, 1, (0,))]))

    def work(program: Program) -> None:
        for _ in range(50):
            program.run()

    threads = [threading.Thread(target=work, args=(program,), daemon=True) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for program in programs:
        program.close()


@pytest.mark.parametrize("elsewhere", [QueueKind.HOST, QueueKind.CALL])
def test_a_queue_that_waits_for_another_one_is_free_for_other_programs(elsewhere: QueueKind) -> None:
    """The first program's second queue ends only when the second program has run on the first one's cores."""
    reached, ended = threading.Event(), threading.Event()

    def hold(_reads: Arrays, _writes: Arrays) -> None:
        reached.set()
        assert ended.wait(30)

    queues = [Queue(QueueKind.HOST, CORES[:1]), Queue(elsewhere, CORES[-1:] if elsewhere is QueueKind.CALL else ())]
    memory = np.ones((2, 1000), np.float32)
    regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
    buffers = [Buffer(i, 0, memory[i].nbytes) for i in range(2)]
    steps = [add((0, 0), 1, 1000), Step(StepKind.CALL, 0), add((1, 1), 1, 1000)]
    subgraphs = [SubGraph(0, 1), SubGraph(1, 1, (0,)), SubGraph(0, 1, (1,))]
    first = Program(queues, regions, buffers, steps, subgraphs, calls=[hold])
    with call_program(lambda _r, _w: None, queues=[Queue(QueueKind.HOST, CORES[:1])]) as second, first:
        running = threading.Thread(target=first.run, daemon=True)
        running.start()
        assert reached.wait(30)
        second.run()
        ended.set()
        running.join(30)
        assert not running.is_alive()
    assert (memory[1] == 4).all()


@pytest.mark.parametrize("scenario", ["queues", "lists"])
def test_random_networks_and_lists_in_one_process(scenario: str) -> None:
    folder = Path(__file__).parent
    command = [sys.executable, str(folder / "engine_scenarios.py"), scenario, str(build_engine()), "30"]
    if scenario == "queues":
        command.append(str(c_library(folder.parents[1] / "kits" / "opencl" / "opencl_double.c")))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- memory


@pytest.mark.parametrize("size", [0, 1, 4097, (2 << 20) - 1, 2 << 20, 5_000_001])
def test_aligned_arrays(size: int) -> None:
    array = aligned_array(size)
    assert array.shape == (size,)
    assert array.dtype == np.uint8
    assert not size or array.ctypes.data % 4096 == 0
    assert not array.any()
    array[:] = 1
