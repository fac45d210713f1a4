"""What every layer of a traced run took."""

from __future__ import annotations

from typing import Any

from nnstretch.scheduler.timeline import Timeline


def layer_table(timeline: Timeline) -> list[dict[str, Any]]:
    """One record per step in the order of its begin: name, op, routine, processor, ms, macs and GFLOP/s."""
    steps = sorted((e for e in timeline.events if e.kind == "step"), key=lambda e: e.begin)
    return [
        {
            "name": step.name,
            "op": step.op,
            "routine": step.routine,
            "processor": timeline.lanes[step.lane],
            "ms": (step.end - step.begin) / 1e6,
            "macs": step.macs,
            "gflops": 2 * step.macs / max(1, step.end - step.begin),
        }
        for step in steps
    ]
