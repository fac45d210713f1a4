"""Timelines of runs on targets: the runner's times with the names of the plan's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.bench.targets.models import TargetModel
from nnstretch.devices.base.spec import format_cores
from nnstretch.devices.targets.results import ModelResult
from nnstretch.package.standalone import step_order
from nnstretch.scheduler.runtime.timeline import Event, Timeline, plan_timeline


def target_timeline(model: TargetModel, result: ModelResult) -> Timeline | None:
    """The traced run of a model; None if there is none. Without a plan, steps have the names of their kernels."""
    steps = result.timeline
    if not steps:
        return None
    total = max(step["end"] for step in steps)
    if model.plan is not None and len(model.plan.steps) == len(steps):
        times = [(0, 0)] * len(steps)
        for number, step in zip(step_order(model.plan), steps, strict=True):
            times[number] = step["begin"], step["end"]
        waits = [bool(subgraph.waits) for subgraph in model.plan.subgraphs]
        return plan_timeline(model.plan, times, waits, total)
    events = [Event(str(step["step"]), "step", step["queue"], step["begin"], step["end"]) for step in steps]
    return Timeline(tuple(map(_name, _queues(result))), tuple(sorted(events, key=lambda e: (e.queue, e.begin))), total)


def processor_names(result: ModelResult) -> tuple[str, ...]:
    """The processors that compute a model: "cpu:4-7", or a kind with the name of its device or accelerator.

    A CPU queue without cores is left out: other processors do all of the work.
    """
    return tuple(_name(queue) for queue in _queues(result) if queue.get("cores") or queue.get("device"))


def _queues(result: ModelResult) -> Sequence[Mapping[str, Any]]:
    return (result.raw or {}).get("queues") or ()


def _name(queue: Mapping[str, Any]) -> str:
    if queue.get("kind") == "cpu":
        return f"cpu:{format_cores(tuple(queue['cores']))}"
    return f"{queue.get('kind')} ({queue.get('device')})"
