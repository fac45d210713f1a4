"""Sub-graphs of OpenCL queues that are recorded as command buffers: order, results and errors are those of single launches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nnstretch.devices.engine.binding.image import KernelLaunch, Queue, QueueKind, RegionKind, Sharing, SubGraph
from nnstretch.devices.engine.binding.program import Program
from nnstretch.errors import DeadlineError, DeviceError, FeedError
from tests.devices.engine.test_faults import PATIENCE, SHORT, Checked, failure_of, faults, until
from tests.devices.engine.test_opencl import FLOATS, Builder, OpenCL, opencl
from tests.kits.opencl.opencl_faults import Fault, Faults, host_library

__all__ = ["faults", "opencl"]

pytestmark = pytest.mark.opencl

ENQUEUE, LAUNCH = "clEnqueueCommandBufferKHR", "clEnqueueNDRangeKernel"
RECORDING = (
    "clGetCommandQueueInfo",
    "clGetDeviceInfo",
    "clGetExtensionFunctionAddressForPlatform",
    "clCreateCommandBufferKHR",
    "clCommandNDRangeKernelKHR",
    "clFinalizeCommandBufferKHR",
)
BUSY = -59
"""CL_INVALID_OPERATION: of a command buffer that the driver counts as pending."""
LONG = 5
"""Launches of a sub-graph here; their order counts."""


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("engine"), host_library())


def doubling(b: Builder, queue: int, x: int, y: int, waits: tuple[int, ...], launches: int) -> int:
    """A sub-graph: y = 2 ** launches × x."""
    for i in range(launches):
        b.device(queue, (x if not i else y,) * 2, y)
        b.subgraphs.pop()
    b.subgraphs.append(SubGraph(queue, launches, waits, (x,), (y,)))
    return len(b.subgraphs) - 1


def meeting(
    opencl: OpenCL,
    faults: Faults,
    sharing: Sharing,
    call: Callable[[], None] = lambda: None,
    records: bool = True,
    launches: int = LONG,
) -> Builder:
    """Output = 2 × 2 ** launches × input: two devices compute from one value, and queue 0 makes a call meanwhile."""
    devices = [
        Queue(QueueKind.OPENCL, (), opencl.command_queue(profiling=False), name=f"device {i}", records=records,
              trace_queue=opencl.command_queue())
        for i in range(2)
    ]  # fmt: skip
    b = Builder(opencl, [Queue(QueueKind.HOST), *devices], native=faults.engine)
    x, zero = b.region(RegionKind.INPUT), b.region(RegionKind.FIXED)
    inputs = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    answers = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    y = b.region(RegionKind.OUTPUT)
    sent = [b.host(0, (x, zero), region) for region in inputs]
    computed = [doubling(b, i + 1, inputs[i], answers[i], (sent[i],), launches) for i in range(2)]
    b.call(0, lambda _r, _w: call())
    b.host(0, (answers[0], answers[1]), y, tuple(computed))
    return b


FACTOR = 2 * 2**LONG


def checked(builder: Builder) -> tuple[Program, Checked]:
    program = builder.program()
    return program, Checked(program, FACTOR)


@pytest.mark.parametrize("sharing", Sharing)
def test_a_sub_graph_is_one_command_unless_the_run_is_traced(opencl: OpenCL, faults: Faults, sharing: Sharing) -> None:
    before = faults.live_objects
    program, runs = checked(meeting(opencl, faults, sharing))
    with program:
        assert program.recorded == 2
        for traced, function, calls in (
            (False, ENQUEUE, 2),
            (False, LAUNCH, 0),
            (True, ENQUEUE, 0),
            (True, LAUNCH, 2 * LONG),
        ):
            faults.set(function, 1, 1000, Fault.LATE, 0)
            runs.run(traced=traced)
            assert faults.clear() == calls
        for i in range(20):
            runs.run(traced=i % 4 == 3, deadline=PATIENCE if i % 4 == 1 else None)
        assert len(program.time([np.zeros(FLOATS, np.float32)], [np.zeros(FLOATS, np.float32)], runs=5)) == 5
        assert (faults.live_events, faults.live_objects) == (0, before + 2)
    assert faults.live_objects == before


@pytest.mark.parametrize(("launches", "flushes"), [(1, 1), (16, 1), (17, 2), (40, 3)])
def test_a_device_may_begin_before_all_launches_are_enqueued(
    opencl: OpenCL, faults: Faults, launches: int, flushes: int
) -> None:
    program = meeting(opencl, faults, Sharing.MAPPED, records=False, launches=launches).program()
    with program:
        runs = Checked(program, 2 * 2**launches)
        for traced in (False, True):
            faults.set("clFlush", 1, 1000, Fault.LATE, 0)
            runs.run(traced=traced)
            assert faults.clear() == 2 * flushes
        if flushes > 1:
            faults.set("clFlush")
            runs.fails("clFlush failed")
            runs.run()


def test_queues_that_do_not_record_and_short_sub_graphs_are_enqueued_launch_by_launch(
    opencl: OpenCL, faults: Faults
) -> None:
    program, runs = checked(meeting(opencl, faults, Sharing.MAPPED, records=False))
    with program:
        assert program.recorded == 0
        faults.set(LAUNCH, 1, 1000, Fault.LATE, 0)
        runs.run()
        assert faults.clear() == 2 * LONG
    b = meeting(opencl, faults, Sharing.MAPPED)
    device = b.subgraphs[2]
    b.subgraphs[2:3] = [
        SubGraph(1, 1, device.waits, device.acquires, ()),
        SubGraph(1, LONG - 1, (), (), device.releases),
    ]
    b.subgraphs[3:] = [
        b.subgraphs[3],
        b.subgraphs[4],
        *(replace(one, waits=tuple(wait + (wait >= 2) for wait in one.waits)) for one in b.subgraphs[5:]),
    ]
    program, runs = checked(b)
    with program:
        assert program.recorded == 2
        runs.run()


@pytest.mark.parametrize("function", RECORDING)
def test_a_failure_to_record_is_noted_once_and_changes_nothing_else(
    opencl: OpenCL, faults: Faults, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call of every function that records may fail; nothing of a recording is left then."""
    before, number, struck = faults.live_objects, 1, 1
    while struck:
        caplog.clear()
        faults.set(function, number)
        with caplog.at_level(logging.WARNING):
            program, runs = checked(meeting(opencl, faults, Sharing.COPIED))
        struck = faults.clear()
        notes = [record.getMessage() for record in caplog.records]
        with program:
            assert program.recorded == 2 - struck
            assert len(notes) == struck
            assert all(re.match(r"device \d: kernels are enqueued one by one: ", note) for note in notes)
            assert not struck or "function" in notes[0] or f"{function} failed with OpenCL error -5" in notes[0]
            for _ in range(3):
                runs.run()
            faults.set(ENQUEUE, 1, 1000, Fault.LATE, 0)
            runs.run()
            assert faults.clear() == program.recorded
        assert (faults.live_objects, faults.live_events) == (before, 0)
        number += 1
        assert number < 100, f"{function} is called without end"
    assert number > 2


def test_a_command_buffer_that_the_driver_still_counts_as_pending_is_no_failure(opencl: OpenCL, faults: Faults) -> None:
    program, runs = checked(meeting(opencl, faults, Sharing.COHERENT))
    with program:
        for number in (1, 2):
            faults.set(ENQUEUE, number, value=BUSY)
            runs.run()
            assert faults.clear() == 1
            faults.set(ENQUEUE, 1, 1000, Fault.LATE, 0)
            runs.run()
            assert faults.clear() == 2, "the next run has the command buffer again"


@pytest.mark.parametrize("sharing", Sharing)
def test_an_error_of_the_enqueueing_call_fails_the_run_and_later_ones_launch_one_by_one(
    opencl: OpenCL, faults: Faults, sharing: Sharing
) -> None:
    before = faults.live_objects
    program, runs = checked(meeting(opencl, faults, sharing))
    with program:
        for left in (1, 0):
            faults.set(ENQUEUE)
            error = failure_of(runs, traced=False)
            assert faults.clear() == 1
            assert re.match(
                r"device \d failed at step \d+: clEnqueueCommandBufferKHR failed with OpenCL error -5", str(error)
            )
            assert (faults.live_events, faults.mapped) == (0, 4 * (sharing is Sharing.MAPPED))
            assert faults.live_objects == before + left
            for _ in range(3):
                runs.run()
        faults.set(ENQUEUE)
        runs.run()
        assert faults.clear() == 0
    assert faults.live_objects == before


def test_a_lost_command_buffer_fails_the_run_as_a_lost_launch_does(opencl: OpenCL, faults: Faults) -> None:
    program, runs = checked(meeting(opencl, faults, Sharing.COHERENT))
    with program:
        for number in (1, 2):
            faults.set(ENQUEUE, number, kind=Fault.LOST)
            runs.fails(r"device \d failed at step \d+: a command in the queue failed with OpenCL error -5")
            faults.clear()
            assert faults.live_events == 0
            runs.run()


def test_a_device_that_is_lost_fails_every_run_until_it_is_back(opencl: OpenCL, faults: Faults) -> None:
    program, runs = checked(meeting(opencl, faults, Sharing.COHERENT))
    with program:
        for function in (ENQUEUE, "clFlush", "clFinish"):
            faults.set("clFlush")
            runs.fails("clFlush failed")
            faults.set(function, 1, 1000)
            for _ in range(3 if function == "clFlush" else 1):
                if failure_of(runs, traced=False) is None:
                    assert function == "clFinish"
            faults.clear()
            runs.run()
            assert faults.live_events == 0


def test_a_command_buffer_that_hangs_keeps_the_program_but_not_the_caller(opencl: OpenCL, faults: Faults) -> None:
    before = faults.live_objects
    program, runs = checked(meeting(opencl, faults, Sharing.COHERENT))
    faults.set(ENQUEUE, 1, 2, Fault.HANGING)
    with pytest.raises(DeadlineError, match=r"device \d is at step \d+ or later"):
        runs.run(deadline=SHORT)
    assert program.busy
    program.close()
    assert faults.live_objects == before + 2, "a run that is in progress keeps its command buffers"
    faults.clear()
    until(lambda: faults.live_objects == before)
    assert faults.live_events == 0


def test_the_host_waits_for_command_buffers_that_it_saw_complete(opencl: OpenCL, faults: Faults) -> None:
    """A status alone makes no write visible: OpenCL 1.2, section 5.9."""
    before = faults.unsynchronised
    program, runs = checked(meeting(opencl, faults, Sharing.COHERENT))
    with program:
        for _ in range(10):
            runs.run()
    assert faults.unsynchronised == before


def test_a_failure_elsewhere_leaves_the_device_ready(opencl: OpenCL, faults: Faults) -> None:
    broken: list[bool] = []

    def call() -> None:
        if broken:
            raise FeedError("stop")

    program, runs = checked(meeting(opencl, faults, Sharing.MAPPED, call))
    with program:
        for _ in range(5):
            broken.append(True)
            with pytest.raises(FeedError):
                runs.run()
            broken.clear()
            runs.run()
    assert faults.live_events == 0


def test_launches_that_drivers_refuse_are_not_recorded(opencl: OpenCL, faults: Faults) -> None:
    """Work groups that do not divide the work: the run reports them."""
    b = meeting(opencl, faults, Sharing.MAPPED)
    b.launches[0] = KernelLaunch(b.launches[0].kernel, (FLOATS,), (FLOATS - 1,))
    with b.program() as program:
        assert program.recorded == 1
        with pytest.raises(DeviceError, match=f"failed at step 2: {LAUNCH} failed with OpenCL error -"):
            program.run([np.ones(FLOATS, np.float32)], [np.zeros(FLOATS, np.float32)])
