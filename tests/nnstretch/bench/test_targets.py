"""Work on several targets at the same time, which signals end, and timelines of their runs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import cast

import pytest

from nnstretch.bench.targets.models import TargetModel
from nnstretch.bench.targets.timelines import target_timeline
from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import ModelResult
from nnstretch.devices.targets.side_by_side import on_all
from nnstretch.errors import StoppedError
from nnstretch.scheduler.plan.schema import Plan, PlanQueue, PlanStep, PlanSubgraph


class StubbornDevice:
    """Ends its work when it is interrupted for the second time, as one whose runner had not started at the first."""

    def __init__(self) -> None:
        self.started, self._ended, self._interrupts = threading.Event(), threading.Event(), 0

    def work(self) -> str:
        self.started.set()
        if self._ended.wait(60):
            raise TargetError("interrupted")
        return "done"

    def interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 2:
            self._ended.set()


def test_a_signal_ends_work_that_a_first_interrupt_missed() -> None:
    device = StubbornDevice()

    def stop() -> None:
        device.started.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(StoppedError, match="SIGTERM"):
        on_all({"stub": cast("Device", device)}, lambda _, __: device.work(), lambda _, why: why)


def test_a_timeline_names_the_layers_of_a_plan_whose_subgraphs_are_in_another_order_than_their_steps() -> None:
    layers = [PlanStep(name, "Conv", "routine", "kernel", "k", (), ()) for name in "abc"]
    queues = tuple(PlanQueue("host", f"cpu:{core}", (core,)) for core in (4, 0))
    subgraphs = PlanSubgraph(1, 2, 1), PlanSubgraph(0, 0, 2, waits=(0,))
    plan = Plan(16, queues, (), (), (), tuple(layers), subgraphs, 0, (), (), {}, {})
    runner = [
        {"step": "k", "queue": 1, "begin": 0, "end": 10},
        {"step": "k", "queue": 0, "begin": 12, "end": 20},
        {"step": "k", "queue": 0, "begin": 20, "end": 45},
    ]
    model, result = TargetModel("m", Path("m"), plan=plan), ModelResult("m", timeline=runner)
    timeline = target_timeline(model, result)
    assert timeline is not None
    assert [(e.name, e.kind, e.queue, e.begin, e.end) for e in timeline.events] == [
        ("wait", "wait", 0, 0, 12),
        ("a", "step", 0, 12, 20),
        ("b", "step", 0, 20, 45),
        ("c", "step", 1, 0, 10),
    ]
    assert (timeline.queues, timeline.total) == (("cpu:4", "cpu:0"), 45)
    assert target_timeline(model, ModelResult("m")) is None
