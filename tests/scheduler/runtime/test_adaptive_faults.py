"""A device that is lost, hangs or has no memory: the run is answered by another plan, and the device is used again later."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from typing import NoReturn

import numpy as np
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.several_plans import compile_plans
from nnstretch.devices.opencl import queues
from nnstretch.errors import DeviceError
from nnstretch.graph.reference import relative_error
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.opencl.opencl_faults import Fault, Faults

CORES = sorted(os.sched_getaffinity(0))
C, G = f"cpu:{CORES[0]}", f"opencl:0@{CORES[-1]}"
BOTH = f"{C},{G}"
ALONE = f"opencl:0@{CORES[0]}"  # the same device, served by another core
NETWORK = RandomNetwork(6, processors=2, nodes=5, size=8)
FEEDS = {"x": NETWORK.input}
pytestmark = [pytest.mark.opencl, pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")]


@pytest.fixture(scope="module")
def plans() -> Mapping[str, Compiled]:
    with compile_plans(NETWORK.graph(), [BOTH, ALONE, C], "fixed", CompileOptions(tune=False)) as session:
        return dict(session._compiled)


@cache
def expected_outputs() -> list[np.ndarray]:
    return NETWORK.expected()


def check_run(session: AdaptiveSession, deadline: float | None = None) -> str:
    """Runs once and checks the answer; returns the plan that gave it."""
    for found, expected in zip(session.run(None, FEEDS, deadline=deadline), expected_outputs(), strict=True):
        assert relative_error(found, expected) < 1e-4
    return session.history[-1].plan


@pytest.mark.parametrize("kind", [Fault.ERROR, Fault.LOST, Fault.HANGING])
def test_runs_survive_a_device_that_fails(faults: Faults, plans: Mapping[str, Compiled], kind: Fault) -> None:
    """By the plan that does not need it, though that is the last one."""
    deadline = 0.05 if kind is Fault.HANGING else None
    with AdaptiveSession(plans, "fixed") as session:
        assert check_run(session) == BOTH
        faults.set("clEnqueueNDRangeKernel", 1, 1_000_000, kind)
        assert [check_run(session, deadline) for _ in range(5)] == [C] * 5
        assert [ran.plan for ran in session.history if ran.failure] == [BOTH]
        assert G in session.history[1].failure
        faults.clear()
        until = time.monotonic() + 60
        while check_run(session) != BOTH:
            assert time.monotonic() < until, "a plan that works again is taken again"
        assert not session.busy
        assert [switch.plan for switch in session.switches] == [C, BOTH]
        assert session.switches[0].reason == "opencl:0 failed"


def test_a_device_that_fails_alone_is_told(faults: Faults, plans: Mapping[str, Compiled]) -> None:
    with AdaptiveSession({BOTH: plans[BOTH]}, "adaptive") as session:
        faults.set("clEnqueueNDRangeKernel", 1, 1_000_000)
        for _ in range(3):
            with pytest.raises(DeviceError, match=G):
                session.run(None, FEEDS)
        faults.clear()
        assert check_run(session) == BOTH


@pytest.mark.parametrize("policy", ["adaptive", "fixed", "deadline=1s"])
def test_no_plan_is_left(faults: Faults, plans: Mapping[str, Compiled], policy: str) -> None:
    with AdaptiveSession({name: plans[name] for name in (BOTH, ALONE)}, policy) as session:
        faults.set("clEnqueueNDRangeKernel", 1, 1_000_000)
        for number in range(3):
            with pytest.raises(DeviceError, match=r"all 2 plans failed, \S+ because opencl:0\S* failed at ") as caught:
                session.run(None, FEEDS)
            assert "\n" not in str(caught.value)
            assert len(session.history) == 2 * (number + 1)
        faults.clear()
        assert check_run(session) in (BOTH, ALONE)


def test_a_device_that_cannot_be_opened_is_named(
    plans: Mapping[str, Compiled], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> NoReturn:
        raise DeviceError("there is no OpenCL device 0")

    monkeypatch.setattr(queues, "installed_runtime", gone)
    with pytest.raises(DeviceError, match="no OpenCL device") as caught:
        PlanSession(plans[BOTH])
    assert caught.value.processor == G
