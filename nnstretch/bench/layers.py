"""What every layer of a traced run took."""

from __future__ import annotations

from typing import Any

from nnstretch.scheduler.plan import Plan
from nnstretch.scheduler.timeline import Timeline


def layer_table(plan: Plan, timeline: Timeline) -> list[dict[str, Any]]:
    """One record per step in the order of its begin.

    name, op, routine, its parameters, processor, ms, share (of the time of all steps), macs and GFLOP/s (of the layer as it is
    written down: a routine that gets by with fewer multiplications may exceed the peak).
    """
    parameters = {(step.layer, step.op, step.routine): dict(step.parameters) for step in plan.steps}
    steps = sorted((e for e in timeline.events if e.kind == "step"), key=lambda e: e.begin)
    total = sum(step.end - step.begin for step in steps)
    return [
        {
            "name": step.name,
            "op": step.op,
            "routine": step.routine,
            "parameters": parameters.get((step.name, step.op, step.routine), {}),
            "processor": timeline.lanes[step.lane],
            "ms": (step.end - step.begin) / 1e6,
            "share": (step.end - step.begin) / max(1, total),
            "macs": step.macs,
            "gflops": 2 * step.macs / max(1, step.end - step.begin),
        }
        for step in steps
    ]
