"""Sessions whose processors fail, hang, or run ten thousand times."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time

import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.external.onnxruntime import OnnxRuntimeModel
from nnstretch.errors import DeadlineError, DeviceError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.opencl.opencl_faults import Fault, Faults, library
from tests.kits.opencl.opencl_sessions import opencl_queues

CORES = usable_cores()
CPU_AND_OPENCL = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"
CPU_AND_CALLS = f"cpu:{CORES[0]},ort@{CORES[-1]}"
PATIENCE = 30.0
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


def network() -> RandomNetwork:
    return RandomNetwork(104, processors=2, nodes=8, size=6)


def compiled(processors: str) -> Compiled:
    return plan_model(network().graph(), build_processors(processors), tune=False)


class Checked:
    """A session that must give the bytes of its first run whenever it gives any."""

    def __init__(self, session: PlanSession) -> None:
        self._session = session
        self._feeds = {"x": network().input}
        self._expected = [y.tobytes() for y in session.run(None, self._feeds)]
        self._binding = session.bind(self._feeds)
        self._bound = itertools.cycle((True, False))

    def run(self, deadline: float | None = None) -> None:
        """Runs the session; without a deadline, with bound arrays and with new ones by turns."""
        if deadline is None and next(self._bound):
            found = list(self._binding.run().values())
        else:
            found = self._session.run(None, self._feeds, deadline=deadline)
        assert [y.tobytes() for y in found] == self._expected


@pytest.mark.opencl
def test_a_session_names_the_processor_and_the_layer_that_failed(faults: Faults) -> None:
    with PlanSession(compiled(CPU_AND_OPENCL)) as session:
        checked = Checked(session)
        plan = session.plan
        layers: list[str] = []
        gated: list[str] = []
        for subgraph in plan.subgraphs:
            mine = [step.layer for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]]
            if plan.queues[subgraph.queue].kind == "opencl":
                layers += mine
                gated += [*mine[: bool(subgraph.waits)], *mine]  # a semaphore is reported as the step that waits for it
        for number, either in enumerate(zip(layers, gated, strict=False), 1):
            faults.set("clEnqueueNDRangeKernel", number)
            processor = f"opencl:0@{CORES[-1]}"
            place = rf"{re.escape(processor)} failed at ({'|'.join(map(re.escape, either))}) \(opencl:float32/\w+\)"
            with pytest.raises(
                DeviceError, match=rf"{place}: clEnqueueNDRangeKernel failed with OpenCL error -5"
            ) as caught:
                checked.run()
            assert caught.value.processor == processor
            faults.set("clEnqueueNDRangeKernel", number)
            with pytest.raises(DeviceError, match=place):
                session.profile(runs=1)
            assert faults.clear()
            checked.run()
        assert faults.live_events == 0


@pytest.mark.opencl
def test_sessions_made_after_a_failure_get_another_context(faults: Faults) -> None:
    plan = compiled(CPU_AND_OPENCL)

    def same_context(first: PlanSession, second: PlanSession) -> bool:
        one, other = (next(iter(opencl_queues(session).runtimes.values())) for session in (first, second))
        return one.context == other.context

    with PlanSession(plan) as first, PlanSession(plan) as second:
        checked = Checked(first)
        assert same_context(first, second)
        faults.set("clFlush")
        with pytest.raises(DeviceError):
            checked.run()
        faults.clear()
        with PlanSession(plan) as third:
            assert not same_context(first, third)
            Checked(third).run()
        checked.run()


def test_a_session_names_the_external_engine_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with PlanSession(compiled(CPU_AND_CALLS)) as session:
        checked = Checked(session)
        for error in (DeviceError("ONNX Runtime failed: odd"), RuntimeError("odd")):

            def fail(*_arguments: object, error: Exception = error) -> None:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(OnnxRuntimeModel, "run", fail)
                with pytest.raises(
                    DeviceError, match=rf"ort@{CORES[-1]} failed at .*: .*odd; run or load it again"
                ) as caught:
                    checked.run()
            assert caught.value.__cause__ is error
            checked.run()


@pytest.mark.opencl
def test_a_session_that_hangs_is_refused_until_it_is_back(faults: Faults) -> None:
    with PlanSession(compiled(CPU_AND_OPENCL)) as session:
        checked = Checked(session)
        checked.run(PATIENCE)
        faults.set("clEnqueueNDRangeKernel", 1, 100, Fault.HANGING)
        with pytest.raises(DeadlineError, match=rf"opencl:0@{CORES[-1]} is at \w+ \(opencl:.*\) or later"):
            checked.run(0.05)
        assert session.busy
        for use in (checked.run, checked.run, session.profile, session.time):
            with pytest.raises(DeviceError, match="still busy"):
                use()
        faults.clear()
        end = time.monotonic() + PATIENCE
        while session.busy:
            assert time.monotonic() < end
            time.sleep(1e-3)
        checked.run()
        checked.run(PATIENCE)
        # Closed, or forgotten, while it hangs: what the device still uses stays.
        faults.set("clEnqueueNDRangeKernel", 1, 100, Fault.HANGING)
        with pytest.raises(DeadlineError):
            checked.run(0.05)
    faults.clear()


# ---- ten thousand runs


@pytest.mark.slow
@pytest.mark.parametrize("queues", [pytest.param("opencl", marks=pytest.mark.opencl), "calls"])
def test_ten_thousand_runs_take_no_memory(queues: str) -> None:
    """In a process of their own: what tests before them have left behind is given back at times of its own choosing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.scheduler.runtime.many_runs", queues]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


# ---- making a session


MAKING = """
import ctypes, sys
from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.errors import BuildError, DeviceError
from nnstretch.devices.opencl.queues import installed_runtime
from nnstretch.scheduler.runtime.session import PlanSession
from tests.scheduler.runtime.test_session_faults import CPU_AND_OPENCL, Checked, compiled

faults = ctypes.CDLL(None)
assert faults.faults_open(opencl_library().encode())
plan = compiled(CPU_AND_OPENCL)
with PlanSession(plan) as session:
    Checked(session).run()
for function, code, wanted, text in (
    ("clBuildProgram", -11, BuildError, "does not compile"),
    ("clCreateKernel", -6, BuildError, "has no kernel"),
    ("clCreateBuffer", -61, DeviceError, "bytes of memory"),
    ("clCreateCommandQueue", -6, DeviceError, "gave no queue"),
    ("clCreateCommandQueueWithProperties", -6, DeviceError, "gave no queue"),
):
    number = struck = 1
    while struck:
        installed_runtime.cache_clear()
        faults.faults_set(function.encode(), ctypes.c_int64(number), ctypes.c_int64(number), 0, code)
        try:
            PlanSession(plan).close()
        except wanted as error:
            assert text in str(error) and "\\n" not in str(error), error
        else:
            assert not faults.faults_clear(), f"{function} {number} failed and nobody noticed"
            break
        struck = faults.faults_clear()
        number += 1
    with PlanSession(plan) as session:
        Checked(session).run()
    print(function, number - 1)
"""


@pytest.mark.opencl
def test_sessions_that_cannot_be_made_say_why_and_can_be_made_later() -> None:
    """Every build, allocation, kernel and queue of a session fails once. Queues are made by one of two functions."""
    environment = {**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", MAKING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}
    assert list(failed.values()).count(0) <= 1, failed
    assert len(failed) == 5
