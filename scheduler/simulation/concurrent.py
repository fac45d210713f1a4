"""Concurrent runs taken apart: what each step takes without contention, and how long queues have nothing to do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.simulation.timing import InterferenceModel

Floats = NDArray[np.float64]

_IDLE = -1


def _activity(plan: Plan, times: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Seconds between successive begins and ends of steps, and the step of every queue (queues, spans); `_IDLE` for none."""
    edges = np.unique(times)
    active = np.full((len(plan.queues), max(0, len(edges) - 1)), _IDLE)
    for step, (queue, (begin, end)) in enumerate(zip(plan.step_queues, times, strict=True)):
        active[queue, np.searchsorted(edges, begin) : np.searchsorted(edges, end)] = step
    return np.diff(edges), active


def share_alone(plan: Plan, times: Floats, interference: InterferenceModel) -> Floats:
    """For every step of a run its seconds without contention over its seconds in the run.

    Args:
        plan: what ran.
        times: (steps, 2); begin and end of every step in seconds.
        interference: contention factors by the plan's queues.
    """
    spans, active = _activity(plan, times)
    alone, beside = np.zeros(len(times)), np.zeros(len(times))
    for span, steps in zip(spans, active.T, strict=True):
        working = frozenset(map(int, np.flatnonzero(steps != _IDLE)))
        for queue in working:
            beside[steps[queue]] += span
            alone[steps[queue]] += span / interference.contention_factor(queue, working - {queue})
    return np.divide(alone, beside, out=np.ones(len(times)), where=beside > 0)


def waiting_seconds(plan: Plan, times: Floats) -> float:
    """Seconds in which a processor of a run has nothing to do while another one computes, summed over the processors.

    Args:
        plan: what ran. Processors without steps, and a host that only serves a device, do not count as waiting.
        times: (steps, 2); begin and end of every step in seconds.
    """
    spans, active = _activity(plan, times)
    mine = sorted({queue for queue in plan.step_queues if plan.queues[queue].processor})
    works = active != _IDLE
    waits = ~works[mine] & works.any(axis=0)
    return float((waits * spans).sum())
