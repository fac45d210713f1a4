"""OpenCL queues on which a thread enqueues while the calling thread computes: nothing is lost, and the run waits for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from nnstretch.devices.engine.binding.image import Queue, QueueKind, RegionKind, Sharing
from nnstretch.devices.engine.binding.program import Program
from nnstretch.errors import DeadlineError, DeviceError, FeedError, UsageError
from tests.devices.engine.test_faults import PATIENCE, SHORT, faults, loader, until
from tests.devices.engine.test_opencl import FLOATS, Builder, OpenCL, gated, opencl
from tests.kits.opencl.opencl_faults import Fault, Faults

__all__ = ["faults", "loader", "opencl"]

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the device and the calling thread need a core each"),
]

KERNELS = 24
ENQUEUE = "clEnqueueNDRangeKernel"


class Lent:
    """Queue 0 makes a call and sends its input to a device, which adds it up, and nobody waits for that.

    The first run of a new program always lends the device's queue.
    """

    def __init__(self, opencl: OpenCL, faults: Faults, call: Callable[[], None]) -> None:
        device = Queue(QueueKind.OPENCL, (max(os.sched_getaffinity(0)),), opencl.command_queue(), name="device")
        b = Builder(opencl, [Queue(QueueKind.HOST), device], native=faults.engine)
        x, zero = b.region(RegionKind.INPUT), b.region(RegionKind.FIXED)
        sent, total = (b.region(RegionKind.SHARED, 1, Sharing.COHERENT) for _ in range(2))
        b.call(0, lambda _r, _w: call())
        first = b.host(0, (x, zero), sent)
        b.device(1, (sent, sent), total, (first,), releases=())
        for last in [False] * (KERNELS - 2) + [True]:
            b.device(1, (total, sent), total, acquires=(), releases=(total,) if last else ())
        self.program: Program = gated(b).program()
        self._total = b.memory(total)
        self._runs = 0

    def run(self, deadline: float | None = None, traced: bool = False) -> None:
        """Runs on another input than before and checks the answer."""
        self._runs += 1
        x = np.full(FLOATS, self._runs, np.float32)
        if traced:
            self.program.run_traced([x], [])
        else:
            self.program.run([x], [], deadline=deadline)
        assert (self._total == (KERNELS + 1) * self._runs).all()


def test_many_runs(opencl: OpenCL, faults: Faults) -> None:
    lent = Lent(opencl, faults, lambda: None)
    with lent.program:
        for i in range(200):
            lent.run(deadline=PATIENCE if i % 4 == 1 else None, traced=i % 4 == 3)
    assert faults.live_events == 0


@pytest.mark.parametrize("traced", [False, True])
def test_queue_0_computes_meanwhile_and_the_run_ends_after_the_device(
    opencl: OpenCL, faults: Faults, traced: bool
) -> None:
    enqueued: list[int] = []

    def call() -> None:
        until(lambda: faults.struck > 0)
        enqueued.append(faults.struck)

    faults.set(ENQUEUE, 1, 1000, Fault.LATE, 10)
    lent = Lent(opencl, faults, call)
    with lent.program:
        lent.run(traced=traced)
        assert enqueued[0] < KERNELS
        assert faults.struck == KERNELS + 1


@pytest.mark.parametrize(
    ("function", "number", "step"),
    [
        (ENQUEUE, 1, 2),
        (ENQUEUE, 2, 2),
        (ENQUEUE, KERNELS // 2 + 1, KERNELS // 2 + 1),
        (ENQUEUE, KERNELS + 1, KERNELS + 1),
        ("clFlush", 1, 2),
        ("clFlush", KERNELS, KERNELS + 1),
    ],
)
def test_an_error_of_the_thread_fails_the_run(
    opencl: OpenCL, faults: Faults, function: str, number: int, step: int
) -> None:
    lent = Lent(opencl, faults, lambda: until(lambda: faults.struck > 0))
    with lent.program:
        faults.set(function, number)
        with pytest.raises(
            DeviceError, match=rf"device failed at step {step}: .*{function} failed with OpenCL error -5"
        ):
            lent.run()
        assert faults.live_events == 0
        faults.set("clFlush", 1, 1000, Fault.LATE, 0)
        lent.run()


def test_a_lost_command_of_the_thread_fails_the_run(opencl: OpenCL, faults: Faults) -> None:
    lent = Lent(opencl, faults, lambda: until(lambda: faults.struck > 0))
    with lent.program:
        faults.set(ENQUEUE, KERNELS + 1, kind=Fault.LOST)
        with pytest.raises(DeviceError, match=r"device failed at step .*a command in the queue failed"):
            lent.run()
        assert faults.live_events == 0


@pytest.mark.parametrize("traced", [False, True])
def test_a_failed_run_ends_after_the_thread_is_at_rest(opencl: OpenCL, faults: Faults, traced: bool) -> None:
    broken = [True]

    def call() -> None:
        if broken:
            until(lambda: faults.struck > 0)
            raise FeedError("stop")

    lent = Lent(opencl, faults, call)
    with lent.program:
        faults.set(ENQUEUE, 1, 1000, Fault.LATE, 50)
        with pytest.raises(FeedError):
            lent.run(traced=traced)
        struck = faults.struck
        assert struck < KERNELS
        assert faults.live_events == 0
        time.sleep(0.1)
        assert faults.struck == struck
        faults.clear()
        broken.clear()
        for _ in range(3):
            lent.run()


def test_a_deadline_ends_while_the_thread_enqueues(opencl: OpenCL, faults: Faults) -> None:
    lent = Lent(opencl, faults, lambda: None)
    with lent.program:
        faults.set(ENQUEUE, 1, 1000, Fault.LATE, 200)
        with pytest.raises(DeadlineError):
            lent.run(deadline=SHORT)
        assert lent.program.busy
        until(lambda: not lent.program.busy)
        assert faults.struck < KERNELS
        faults.clear()
        for _ in range(3):
            lent.run()
            lent.run(deadline=PATIENCE)
        assert faults.live_events == 0


def test_a_fork_while_the_thread_enqueues_ends_the_run_in_the_child_alone(opencl: OpenCL, faults: Faults) -> None:
    statuses: list[int] = []
    in_child = False

    def call() -> None:
        nonlocal in_child
        if statuses:
            return
        until(lambda: faults.struck > 0)
        child = os.fork()
        in_child = not child
        if in_child:
            signal.alarm(60)
        else:
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    lent = Lent(opencl, faults, call)
    faults.set(ENQUEUE, 1, 1000, Fault.LATE, 20)
    try:
        lent.run()
    except BaseException as error:
        if not in_child:
            raise
        os._exit(0 if isinstance(error, UsageError) else 1)
    if in_child:
        os._exit(2)
    assert statuses == [0]
    lent.run()
    lent.program.close()
