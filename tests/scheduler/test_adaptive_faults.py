"""A device that is lost, hangs or has no memory: the run is answered by another plan, and the device is used again later."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from nnstretch.errors import DeviceError
from nnstretch.graph.reference import relative_error
from nnstretch.plans import compile_plans
from nnstretch.scheduler.adaptive.session import AdaptiveSession
from nnstretch.scheduler.compiled import Compiled
from tests.devices.opencl_faults import Fault, Faults
from tests.scheduler.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
C, G = f"cpu:{CORES[0]}", f"opencl:0@{CORES[-1]}"
BOTH = f"{C},{G}"
NETWORK = RandomNetwork(6, processors=2, nodes=5, size=8)
FEEDS = {"x": NETWORK.input}
pytestmark = [pytest.mark.opencl, pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")]


@pytest.fixture(scope="module")
def plans() -> Mapping[str, Compiled]:
    with compile_plans(NETWORK.graph(), [BOTH, C], policy="fixed", tune=False) as session:
        return {name: session._compiled[name] for name in session.plans}


@cache
def expected_outputs() -> list[np.ndarray]:
    return NETWORK.expected()


def check_run(session: AdaptiveSession, deadline: float | None = None) -> str:
    """Runs once and checks the answer; returns the plan that gave it."""
    for found, expected in zip(session.run(None, FEEDS, deadline=deadline), expected_outputs(), strict=True):
        assert relative_error(found, expected) < 1e-4
    return session.history[-1].plan


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("clEnqueueNDRangeKernel", Fault.ERROR),
        ("clEnqueueMapBuffer", Fault.LOST),
        ("clEnqueueMapBuffer", Fault.HANGING),
    ],
)
def test_runs_survive_a_device_that_fails(
    faults: Faults, plans: Mapping[str, Compiled], function: str, kind: Fault
) -> None:
    deadline = 0.05 if kind is Fault.HANGING else None
    with AdaptiveSession(plans, "fixed") as session:
        assert check_run(session) == BOTH
        faults.set(function, 1, 1_000_000, kind)
        assert [check_run(session, deadline) for _ in range(5)] == [C] * 5
        assert [ran.plan for ran in session.history if ran.failure] == [BOTH]
        assert G in session.history[1].failure
        faults.clear()
        until = time.monotonic() + 60
        while check_run(session) != BOTH:
            assert time.monotonic() < until, "a plan that works again is taken again"
        assert not session.busy
        assert [switch.plan for switch in session.switches] == [C, BOTH]


def test_a_device_that_fails_alone_is_told(faults: Faults, plans: Mapping[str, Compiled]) -> None:
    with AdaptiveSession({BOTH: plans[BOTH]}, "adaptive") as session:
        faults.set("clEnqueueNDRangeKernel", 1, 1_000_000)
        for _ in range(3):
            with pytest.raises(DeviceError, match=G):
                session.run(None, FEEDS)
        faults.clear()
        assert check_run(session) == BOTH
