"""Devices and calls that fail or hang: the run reports it, and the next run is right."""

from __future__ import annotations

import gc
import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.engine.binding.image import Buffer, Queue, QueueKind, Region, RegionKind, Sharing, SubGraph
from nnstretch.devices.engine.binding.program import Program
from nnstretch.errors import DeadlineError, DeviceError, FeedError, UsageError
from tests.devices.engine.test_opencl import FLOATS, Builder, OpenCL, opencl
from tests.kits.engine_programs import Arrays, add, call_program
from tests.kits.opencl.opencl_faults import Fault, Faults

__all__ = ["opencl"]

PATIENCE = 30.0
"""Timeout in seconds that no run here reaches."""
SHORT = 0.05
COMMANDS = ("clEnqueueNDRangeKernel", "clEnqueueMapBuffer", "clEnqueueReadBuffer")
FUNCTIONS = (
    *COMMANDS,
    "clEnqueueUnmapMemObject",
    "clEnqueueWriteBuffer",
    "clFlush",
    "clFinish",
    "clGetEventInfo",
    "clGetEventProfilingInfo",
    "clWaitForEvents",
    "clReleaseEvent",
)

FIRST = {
    Sharing.COPIED: "clEnqueueWriteBuffer",
    Sharing.MAPPED: "clEnqueueMapBuffer",
    Sharing.COHERENT: "clEnqueueNDRangeKernel",
}
"""What memory of a kind needs before a kernel or, if mapped, after a failure; else kernels come first."""
LAST = {
    Sharing.COPIED: "clEnqueueReadBuffer",
    Sharing.MAPPED: "clEnqueueMapBuffer",
    Sharing.COHERENT: "clEnqueueNDRangeKernel",
}
"""What comes last on the queue of a device."""


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def faults(loader: Faults) -> Iterator[Faults]:
    loader.clear()
    yield loader
    loader.clear()


def meeting(opencl: OpenCL, faults: Faults, sharing: Sharing, call: Callable[[], None]) -> Builder:
    """Output = 8 × input: two devices and two host queues compute from one value, and one of them makes a call."""
    command_queues = [opencl.command_queue(), opencl.command_queue()]
    devices = [Queue(QueueKind.OPENCL, (), one, name=f"device {i}") for i, one in enumerate(command_queues)]
    b = Builder(opencl, [Queue(QueueKind.HOST), *devices, Queue(QueueKind.HOST)], native=faults.engine)
    x = b.region(RegionKind.INPUT)
    inputs = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    answers = [b.region(RegionKind.SHARED, queue, sharing) for queue in (1, 2)]
    mine, late, zero = (b.region(RegionKind.FIXED) for _ in range(3))
    y = b.region(RegionKind.OUTPUT)
    sent = [b.host(0, (x, zero), region) for region in inputs]
    computed = [b.device(i + 1, (inputs[i], inputs[i]), answers[i], (sent[i],)) for i in range(2)]
    called = b.call(3, lambda _r, _w: call())
    other = b.host(3, (x, x), late)
    b.host(0, (x, x), mine)
    b.host(0, (mine, answers[0]), mine, (computed[0],))
    b.host(0, (mine, answers[1]), mine, (computed[1],))
    b.host(0, (mine, late), y, (called, other))
    return b


class Checked:
    """A program whose answer is a multiple of its input."""

    def __init__(self, program: Program, factor: int) -> None:
        self.program, self.factor = program, factor
        self._inputs = itertools.count(1)

    def run(self, deadline: float | None = None, traced: bool = False) -> None:
        """Runs on another input than before and checks the answer."""
        x = np.full(FLOATS, next(self._inputs), np.float32)
        y = np.zeros_like(x)
        if traced:
            self.program.run_traced([x], [y])
        else:
            self.program.run([x], [y], deadline=deadline)
        assert np.array_equal(y, self.factor * x)

    def fails(self, match: str, deadline: float | None = None) -> None:
        """Runs, and sees it fail."""
        with pytest.raises(DeviceError, match=match):
            self.run(deadline)


def failure_of(checked: Checked, traced: bool) -> DeviceError | None:
    """What a run ends with; None if it gives the right answer."""
    try:
        checked.run(traced=traced)
    except DeviceError as error:
        return error
    return None


def until(condition: Callable[[], bool]) -> None:
    """Waits for something that is about to happen."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(1e-3)


@pytest.mark.opencl
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("sharing", Sharing)
def test_every_call_of_every_function_may_fail(opencl: OpenCL, faults: Faults, sharing: Sharing, traced: bool) -> None:
    """The run fails and says where, or its answer is right; in both cases the next one is."""
    failed = set()
    with meeting(opencl, faults, sharing, lambda: None).program() as program:
        checked = Checked(program, 8)
        for function, kind in [(f, Fault.ERROR) for f in FUNCTIONS] + [(f, Fault.LOST) for f in COMMANDS]:
            struck = number = 1
            while struck:
                faults.set(function, number, kind=kind)
                error = failure_of(checked, traced)
                if error is not None:
                    failed.add((function, kind))
                    what = "a command in the queue" if kind is Fault.LOST else function
                    assert f"{what} failed with OpenCL error -5 (out of resources); run or load it again" in str(error)
                    step = {"device 0": 2, "device 1": 3}[error.processor]
                    assert str(error).startswith(f"{error.processor} failed at step {step}: ")
                assert (faults.live_events, faults.mapped) == (0, 4 * (sharing is Sharing.MAPPED))
                struck, number = faults.clear(), number + 1
                if function == "clGetEventInfo" and number == 100:
                    break  # how often it is called depends on how long the device takes
                assert number < 100, f"{function} is called without end"
            checked.run()
    used = {LAST[sharing]} | ({"clEnqueueUnmapMemObject"} if sharing is Sharing.MAPPED else set())
    for function in ("clEnqueueNDRangeKernel", "clFlush", "clGetEventInfo", "clWaitForEvents", *used):
        assert (function, Fault.ERROR) in failed
    assert (LAST[sharing], Fault.LOST) in failed


@pytest.mark.opencl
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("sharing", Sharing)
def test_the_host_waits_for_every_event_that_it_saw_complete(
    opencl: OpenCL, faults: Faults, sharing: Sharing, traced: bool
) -> None:
    """A status alone makes no write visible: OpenCL 1.2, section 5.9."""
    before = faults.unsynchronised
    with meeting(opencl, faults, sharing, lambda: None).program() as program:
        checked = Checked(program, 8)
        for _ in range(10):
            checked.run(traced=traced)
    assert faults.unsynchronised == before


@pytest.mark.opencl
@pytest.mark.parametrize("sharing", Sharing)
def test_a_device_that_is_lost_fails_every_run_until_it_is_back(
    opencl: OpenCL, faults: Faults, sharing: Sharing
) -> None:
    with meeting(opencl, faults, sharing, lambda: None).program() as program:
        checked = Checked(program, 8)
        for function in (FIRST[sharing], "clFinish"):
            for first in (1, 2):
                # What gives memory back after a failure fails, too.
                faults.set("clEnqueueNDRangeKernel")
                checked.fails("clEnqueueNDRangeKernel")
                faults.set("clFlush")
                checked.fails("clFlush")
                faults.set(function, first, 1000)
                if function != "clFinish":
                    for _ in range(3):
                        checked.fails(f"device . failed at .*{function} failed")
                assert faults.live_events == 0
                faults.clear()
                checked.run()


@pytest.mark.opencl
def test_a_queue_that_does_not_come_to_rest_is_asked_again(opencl: OpenCL, faults: Faults) -> None:
    """A call fails, and after it the device: no run begins before its memory is known to be free."""
    broken: list[bool] = []

    def call() -> None:
        if broken:
            faults.set("clFinish", 1, 1000)
            raise FeedError("stop")

    with meeting(opencl, faults, Sharing.COPIED, call).program() as program:
        checked = Checked(program, 8)
        checked.run()
        broken.append(True)
        with pytest.raises(FeedError):
            checked.run()
        broken.clear()
        for _ in range(3):
            checked.fails("clFinish failed")
        faults.clear()
        checked.run()


@pytest.mark.opencl
def test_a_device_that_is_late_is_waited_for(opencl: OpenCL, faults: Faults) -> None:
    with meeting(opencl, faults, Sharing.MAPPED, lambda: None).program() as program:
        checked = Checked(program, 8)
        for function in ("clEnqueueNDRangeKernel", "clEnqueueMapBuffer", "clFlush", "clWaitForEvents"):
            faults.set(function, 1, 2, Fault.LATE, 20)
            checked.run()
            checked.run(deadline=PATIENCE)


# ---- deadlines


@pytest.mark.opencl
@pytest.mark.parametrize("sharing", Sharing)
def test_a_device_that_hangs_keeps_the_program_but_not_the_caller(
    opencl: OpenCL, faults: Faults, sharing: Sharing
) -> None:
    with meeting(opencl, faults, sharing, lambda: None).program() as program:
        checked = Checked(program, 8)
        checked.run(deadline=PATIENCE)
        # What a sub-graph hands back comes last on its queue: two regions, or one.
        faults.set(LAST[sharing], 1, 2, Fault.HANGING)
        began = time.monotonic()
        with pytest.raises(DeadlineError, match=r"not over after 0\.05 s: device . is at step . or later") as caught:
            checked.run(deadline=SHORT)
        assert SHORT <= time.monotonic() - began < PATIENCE / 2
        assert caught.value.processor.startswith("device")
        assert program.busy
        for deadline in (None, SHORT):
            checked.fails(r"still busy with an earlier run: device . is at step", deadline=deadline)
        faults.clear()
        until(lambda: not program.busy)
        for _ in range(3):
            checked.run()
            checked.run(deadline=PATIENCE)
        assert faults.live_events == 0


@pytest.mark.parametrize("queue", [0, 1, 2])
def test_a_call_that_hangs_keeps_the_program_but_not_the_caller(queue: int) -> None:
    goes_on, ran = threading.Event(), [0, 0, 0]
    goes_on.set()

    def call(number: int) -> None:
        ran[number] += 1
        if number == queue:
            assert goes_on.wait(PATIENCE)

    queues = [Queue(QueueKind.HOST), Queue(QueueKind.HOST), Queue(QueueKind.CALL)]
    calls = [lambda _r, _w, i=i: call(i) for i in range(3)]
    with call_program(*calls, queues=queues, waits=[(), (0,), (1,)]) as program:
        for _ in range(3):
            program.run(deadline=PATIENCE)
        goes_on.clear()
        with pytest.raises(DeadlineError, match=f"queue {queue} is at step {queue} or later") as caught:
            program.run(deadline=SHORT)
        assert caught.value.processor == f"queue {queue}"
        with pytest.raises(DeviceError, match="still busy"):
            program.run()
        goes_on.set()
        until(lambda: not program.busy)
        # What came after the call was not begun, and is in the next run.
        assert ran == [4 if number <= queue else 3 for number in range(3)]
        program.run()
        assert ran == [5 if number <= queue else 4 for number in range(3)]


def test_kernels_that_are_slow_keep_the_program_but_not_the_caller() -> None:
    """Some hundred additions that stream through memory, and a deadline that is over before the first."""
    floats, steps = 1 << 20, 200
    memory = np.ones((2, floats), np.float32)
    with Program(
        [Queue(QueueKind.HOST)],
        [Region(RegionKind.FIXED, row.nbytes, memory=row) for row in memory],
        [Buffer(i, 0, memory[i].nbytes) for i in range(2)],
        [add((0, 1), 0, floats)] * steps,
        [SubGraph(0, 1)] * steps,
    ) as program:
        with pytest.raises(DeadlineError, match=r"queue 0 is at step \d+ or later|it was about to begin"):
            program.run(deadline=1e-4)
        until(lambda: not program.busy)
        memory[0] = 0
        program.run(deadline=PATIENCE)
        assert (memory[0] == steps).all()


def test_other_callers_of_a_program_that_hangs_are_refused() -> None:
    goes_on, began = threading.Event(), threading.Event()

    def call(_reads: Arrays, _writes: Arrays) -> None:
        began.set()
        assert goes_on.wait(PATIENCE)

    answers: list[str] = []

    def caller(deadline: float | None) -> None:
        try:
            program.run(deadline=deadline)
        except DeviceError as error:
            answers.append(type(error).__name__)

    with call_program(call) as program:
        threads = [threading.Thread(target=caller, args=(deadline,)) for deadline in (4 * SHORT, SHORT, None)]
        threads[0].start()
        assert began.wait(PATIENCE)
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(answers) == ["DeadlineError", "DeadlineError", "DeviceError"]
        goes_on.set()
        until(lambda: not program.busy)
        program.run()


def test_errors_and_interrupts_come_out_of_a_run_with_a_deadline() -> None:
    raised: list[BaseException] = [FeedError("odd"), ValueError("odd"), KeyboardInterrupt()]

    def call(_reads: Arrays, _writes: Arrays) -> None:
        if raised:
            raise raised.pop(0)

    with call_program(call) as program:
        for wanted in (FeedError, DeviceError, KeyboardInterrupt):
            with pytest.raises(wanted):
                program.run(deadline=PATIENCE)
        program.run(deadline=PATIENCE)
        for deadline in (0, -1, float("nan"), float("inf")):
            with pytest.raises(UsageError, match="deadline"):
                program.run(deadline=deadline)


def test_an_interrupted_run_with_a_deadline_continues_in_the_background() -> None:
    goes_on = threading.Event()

    def call(_reads: Arrays, _writes: Arrays) -> None:
        if not goes_on.is_set():
            time.sleep(0.05)  # a signal that comes just before the caller waits is handled after the deadline
            signal.pthread_kill(caller, signal.SIGINT)
        assert goes_on.wait(PATIENCE)

    caller = threading.get_ident()
    with call_program(call) as program:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of a test run ignore it
        try:
            with pytest.raises(KeyboardInterrupt):
                program.run(deadline=PATIENCE)
        finally:
            signal.signal(signal.SIGINT, before)
        assert program.busy
        goes_on.set()
        until(lambda: not program.busy)
        program.run()


class Kept:
    """Something that a program needs."""


def is_gone(seen: weakref.ref[Kept]) -> bool:
    return seen() is None


def test_a_program_closed_while_it_hangs_is_freed_when_that_is_over(caplog: pytest.LogCaptureFixture) -> None:
    goes_on, came_back = threading.Event(), threading.Event()

    def call(_reads: Arrays, _writes: Arrays) -> None:
        assert goes_on.wait(PATIENCE)
        came_back.set()

    for forgotten in (False, True):
        goes_on.clear()
        came_back.clear()
        kept = Kept()
        seen = weakref.ref(kept)
        program = call_program(lambda _r, _w: None, call, keep=kept)
        del kept
        with pytest.raises(DeadlineError):
            program.run(deadline=SHORT)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            if not forgotten:
                program.close()
            del program
            gc.collect()
            assert "closed while a run hangs: queue 1 is at step 1 or later" in caplog.text
        assert seen() is not None
        goes_on.set()
        assert came_back.wait(PATIENCE)
        until(partial(is_gone, seen))


def test_a_process_with_a_run_that_hangs_ends(tmp_path: Path) -> None:
    """Nobody waits for it then."""
    script = """
import threading
from nnstretch.devices.engine.binding.image import *
from nnstretch.devices.engine.binding.program import *
from nnstretch.errors import DeadlineError
program = Program([Queue(QueueKind.HOST), Queue(QueueKind.CALL)], [], [], [Step(StepKind.CALL, 0)], [SubGraph(1, 1)],
                  calls=[lambda reads, writes: threading.Event().wait()])
try:
    program.run(deadline=0.05)
except DeadlineError:
    print("late")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
    )
    assert (done.returncode, done.stdout.strip()) == (0, "late"), done.stderr
