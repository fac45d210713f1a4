"""Time of every layer in traced runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.timeline import Event, Timeline

_Key = tuple[str, str, str, int]


def layer_table(plan: Plan, timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """One record per step, in the order of the first run; times are medians over the runs.

    Fields: name, op, routine, parameters, processor, ms, share (of the time of all steps), macs and GFLOP/s (of the
    layer's nominal
    multiply-adds: Winograd may exceed the peak).
    """
    parameters = {(step.layer, step.op, step.routine): dict(step.parameters) for step in plan.steps}
    runs = [_steps(timeline) for timeline in timelines]
    times = {key: median(run[key].end - run[key].begin for run in runs if key in run) for key in runs[0]}
    total = sum(times.values())
    return [
        {
            "name": step.name,
            "op": step.op,
            "routine": step.routine,
            "parameters": parameters.get((step.name, step.op, step.routine), {}),
            "processor": timelines[0].queues[step.queue],
            "ms": times[key] / 1e6,
            "share": times[key] / max(1, total),
            "macs": step.macs,
            "gflops": 2 * step.macs / max(1, times[key]),
        }
        for key, step in runs[0].items()
    ]


def _steps(timeline: Timeline) -> dict[_Key, Event]:
    """The steps of a run in the order of their begin; the number in the key distinguishes steps with equal names."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found: dict[_Key, Event] = {}
    for event in sorted((e for e in timeline.events if e.kind == "step"), key=lambda e: e.begin):
        name = event.name, event.op, event.routine
        found[*name, seen[name]] = event
        seen[name] += 1
    return found
