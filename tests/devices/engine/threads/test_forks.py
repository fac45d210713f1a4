"""Forks in the middle of runs, of other threads and of the thread that forks: the child refuses the parent's programs, runs its
own, and never hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMON = """
import os, signal, threading, time
import numpy as np
from nnstretch.devices.engine.binding.image import *
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import *
from nnstretch.errors import NNStretchError, UsageError

FLOATS = 40000


def program(keep=None):
    memory = np.ones((2, FLOATS), np.float32)
    add = Step(StepKind.KERNEL, engine().find("eltwise/binary"), (0, 1), (0,), (0, 1, FLOATS, 0, 1, 0, 0, 0))
    regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
    buffers = [Buffer(i, 0, row.nbytes) for i, row in enumerate(memory)]
    queues = [Queue(QueueKind.HOST, (CORE, CORE)), Queue(QueueKind.HOST, (CORE,))]
    return Program(queues, regions, buffers, [add, add], [SubGraph(0, 1), SubGraph(1, 1, (0,))]), memory


CORE = min(os.sched_getaffinity(0))
over = threading.Event()


def until_over(body):
    def loop():
        while not over.is_set():
            body()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def forked(child):
    '''The exit status of a child that runs `child`; a child that hangs is ended by its alarm.'''
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    signal.alarm(60)
    try:
        child()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def own_program_works():
    made, memory = program()
    with made:
        for runs in range(1, 4):
            made.run()
            assert (memory[0] == 1 + 2 * runs).all()
"""
RUNS = """
shared, _ = program()


def make_and_destroy():
    program()[0].close()


def child():
    try:
        shared.run()
    except UsageError as error:
        assert "made before a fork" in str(error)
    else:
        raise AssertionError("a program of the parent ran")
    # As C callers see it.
    assert engine().library.nns_program_cancel(shared._running._handle) == -1
    assert engine().library.nns_program_failed_step(shared._running._handle) == -1
    own_program_works()
    shared.close()
    own_program_works()


busy = [until_over(shared.run), until_over(lambda: shared.run(deadline=30)), until_over(make_and_destroy),
        until_over(make_and_destroy)]
own_program_works()
statuses = [forked(child) for _ in range(20)]
over.set()
for thread in busy:
    thread.join(60)
    assert not thread.is_alive()
shared.run()
assert statuses == [0] * 20, statuses
"""
SESSIONS = """
import multiprocessing

import onnx_ir
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.arrangement import Arrangement, ReplicaGroup
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
from tests.kits.graphs.graphs import RandomNetwork

network = RandomNetwork(0, processors=1, nodes=6)
compiled = plan_model(network.graph(), build_processors(f"cpu:{CORE}"), tune=False)
sessions = [
    PlanSession(compiled),
    AdaptiveSession({"one": compiled}, "fixed"),
    StreamSession(Arrangement("apart", (ReplicaGroup(compiled, 2),))),
]
feeds = sessions[0].zeros()


def child():
    for session in sessions:
        try:
            session.run(None, feeds)
        except UsageError as error:
            assert "made before a fork" in str(error)
        else:
            raise AssertionError(f"{type(session).__name__} of the parent ran")
        session.close()
    with PlanSession(compiled) as own:
        own.run(None, feeds)


def started():
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    return process.exitcode


busy = [until_over(lambda session=session: session.run(None, feeds)) for session in sessions for _ in range(2)]
statuses = [started() for _ in range(5)]
over.set()
for thread in busy:
    thread.join(60)
    assert not thread.is_alive()
assert statuses == [0] * 5, statuses
"""
CALLS = """
statuses = []
in_child = False


def forking(reads, writes):
    global in_child
    process = os.fork()
    in_child = not process
    if in_child:
        signal.alarm(60)
    else:
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def calling(queue):
    made, memory = program()
    made.close()
    add = Step(StepKind.KERNEL, engine().find("eltwise/binary"), (0, 1), (0,), (0, 1, FLOATS, 0, 1, 0, 0, 0))
    call = Step(StepKind.CALL, 0, (0,), (0,))
    regions = [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory]
    buffers = [Buffer(i, 0, row.nbytes) for i, row in enumerate(memory)]
    steps, graphs = [add, call, add, add], [SubGraph(queue, 3), SubGraph(1 - queue, 1, (0,))]
    queues = [Queue(QueueKind.HOST, (CORE, CORE)), Queue(QueueKind.HOST, (CORE,))]
    return Program(queues, regions, buffers, steps, graphs, calls=[forking])


def run(made):
    try:
        made.run()
    except UsageError as error:
        assert in_child and "made before a fork" in str(error), error
        own_program_works()
        made.close()
        os._exit(0)
    except BaseException:
        if in_child:
            os._exit(1)
        raise
    assert not in_child


shared, _ = program()
busy = [until_over(shared.run) for _ in range(2)]
with calling(0) as made:
    for _ in range(20):
        run(made)
assert statuses == [0] * 20, statuses
with calling(1) as made:  # nobody in the child waits for the run
    run(made)
assert statuses[20:] == [2], statuses
over.set()
for thread in busy:
    thread.join(60)
    assert not thread.is_alive()
own_program_works()
"""
OPENCL = """
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.opencl.drivers import load_drivers
from nnstretch.errors import DeviceError

load_drivers()


def child():
    try:
        build_processors("opencl:0")
    except DeviceError as error:
        assert "before this process was forked" in str(error)
    else:
        raise AssertionError("drivers of the parent were used")
    own_program_works()


until_over(load_drivers)
assert forked(child) == 0
"""


@pytest.mark.parametrize(
    "body",
    [RUNS, SESSIONS, CALLS, pytest.param(OPENCL, marks=pytest.mark.opencl)],
    ids=["runs", "sessions", "calls", "opencl"],
)
def test_a_child_never_hangs(body: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + body], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
