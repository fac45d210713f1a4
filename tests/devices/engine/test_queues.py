"""Queues, call steps, traces, errors and concurrent runs."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.engine.build.engine_library import build_engine
from nnstretch.errors import DeviceError, FeedError
from tests.kits.c_libraries import c_library
from tests.kits.engine_programs import CORES, Arrays, add, call_program


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
