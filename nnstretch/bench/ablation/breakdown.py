"""Breakdown of a branched run's latency by cause, from traced concurrent and serial runs.

The time of every processor, from the begin to the end of a run, is divided among the causes and averaged over the processors.
The causes therefore add up to the latency.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.graph.metadata import branch_of, branched_segments
from nnstretch.scheduler.plan.schema import Plan

Key = tuple[int, int]
"""Segment and branch of a step."""

UNBRANCHED: Key = (-1, 0)
"""Key of a layer outside of all branches."""
JOINING: Key = (-1, 1)
"""Key of a step between branches that joins tensors or changes their layout."""

_MEETING_PATH = re.compile(r"segments\.\d+(#\d+)?$")


@dataclass(frozen=True)
class Breakdown:
    """Milliseconds of a run, averaged over the processors that have branches; they add up to `total`.

    Attributes:
        layers: computation, at the speed of the serial run.
        contention_factor: additional time of the layers while the other processors compute.
        joining: joins of branches' results and layout changes.
        gaps: between layers of one branch.
        waiting: waits for a slower branch.
        unbranched: idle while another processor computes an unbranched layer.
        meeting: no processor computes: transfers, begin and end of the run.
    """

    layers: float
    contention_factor: float
    joining: float
    gaps: float
    waiting: float
    unbranched: float
    meeting: float

    @property
    def total(self) -> float:
        """The latency of the traced runs."""
        return math.fsum(vars(self).values())


@dataclass(frozen=True)
class BranchTime:
    """Measured milliseconds of one branch's layers: in the serial run, and while the other branches run."""

    segment: int
    branch: int
    processor: str
    alone_ms: float
    beside_ms: float


def break_down(
    plan: Plan, together: Sequence[RunTrace], serial: Sequence[RunTrace], together_ms: float, serial_ms: float
) -> tuple[Breakdown, list[BranchTime]]:
    """Divides the time of traced runs among the causes.

    Only the traced runs whose duration is nearest to the untraced latency count, which excludes disturbed runs.

    Args:
        plan: of the branched network.
        together: traced runs of it, at least one.
        serial: traced runs of the serial plan, which has the same steps.
        together_ms: untraced latency of the concurrent run.
        serial_ms: untraced latency of the serial run.
    """
    keys = step_keys(plan)
    queues = plan.step_queues
    chosen, alone = _typical(together, together_ms), _seconds(_typical(serial, serial_ms))
    beside = _seconds(chosen)
    mine = sorted({queues[i] for i, key in enumerate(keys) if key[0] >= 0} or set(queues))
    idle = np.mean([_idle(trace, keys, queues, mine) for trace in chosen], axis=0)
    in_branch = np.array([key[0] >= 0 for key in keys])
    on_mine = np.array([queue in mine for queue in queues])
    joins = np.array([key == JOINING for key in keys])
    unbranched = ~in_branch & ~joins & on_mine
    sums = (
        alone[in_branch].sum() + beside[unbranched].sum(),
        (beside - alone)[in_branch].sum(),
        beside[joins & on_mine].sum(),
        *idle,
    )
    parts = [1e3 * float(seconds) / len(mine) for seconds in sums]
    branches = [
        BranchTime(
            *key, plan.queues[queue].processor, *(1e3 * float(s[_are(keys, key)].sum()) for s in (alone, beside))
        )
        for key, queue in sorted({key: queues[i] for i, key in enumerate(keys) if key[0] >= 0}.items())
    ]
    return Breakdown(*parts), branches


def step_keys(plan: Plan) -> list[Key]:
    """For every step its branch, `UNBRANCHED` or `JOINING`.

    The names of layers contain their branch. A layout change between two steps of a branch belongs to that branch.
    """
    paths = [branch_of(step.layer) for step in plan.steps]
    branched = branched_segments(step.layer for step in plan.steps)
    keys: list[Key | None] = []
    for step, path in zip(plan.steps, paths, strict=True):
        if path:
            keys.append(path if path[0] in branched else UNBRANCHED)
        else:
            adapts = step.op == "Reorder" or _MEETING_PATH.match(step.layer)
            keys.append(None if adapts else UNBRANCHED)
    queues = plan.step_queues
    for queue in set(queues):
        _assign_between(keys, [i for i in range(len(keys)) if queues[i] == queue])
    return [JOINING if key is None else key for key in keys]


def _assign_between(keys: list[Key | None], own: Sequence[int]) -> None:
    """Assigns steps without a key between two steps of one branch to that branch; `own` is a queue's steps in order."""
    known = [i for i in own if keys[i] is not None]
    for before, after in pairwise(known):
        if keys[before] == keys[after]:
            for i in own:
                if before < i < after:
                    keys[i] = keys[before]


def _typical(traces: Sequence[RunTrace], ms: float) -> list[RunTrace]:
    """The quarter of the runs, at least one, whose duration is nearest to a number of milliseconds."""
    ordered = sorted(traces, key=lambda trace: abs((trace.end - trace.begin) * 1e-6 - ms))
    return ordered[: max(1, len(ordered) // 4)]


def _seconds(traces: Sequence[RunTrace]) -> np.ndarray:
    """Mean seconds of every step."""
    return np.asarray(np.mean([trace.steps[:, 1] - trace.steps[:, 0] for trace in traces], axis=0) * 1e-9)


def _are(keys: Sequence[Key], wanted: Key) -> np.ndarray:
    return np.array([key == wanted for key in keys])


_GAP, _WAITING, _ALONE, _NOBODY = range(4)
"""The causes of idle time, in the order of the last fields of `Breakdown`."""


@dataclass(frozen=True)
class _Span:
    """A span in nanoseconds; `key` is the running step's, None while the queue is idle."""

    begin: int
    end: int
    key: Key | None
    is_gap: bool = False


def _idle(trace: RunTrace, keys: Sequence[Key], queues: Sequence[int], mine: Sequence[int]) -> np.ndarray:
    """Idle seconds of all queues in `mine`, by cause."""
    spans = {queue: _spans(trace, keys, [i for i in range(len(keys)) if queues[i] == queue]) for queue in set(queues)}
    totals = np.zeros(4)
    for queue in mine:
        others = [span for other, some in spans.items() if other != queue for span in some]
        for span in spans[queue]:
            if span.is_gap:
                totals[_GAP] += span.end - span.begin
            elif span.key is None:
                for seconds, kind in _causes(span, others):
                    totals[kind] += seconds
    return totals * 1e-9


def _spans(trace: RunTrace, keys: Sequence[Key], own: Sequence[int]) -> list[_Span]:
    """The spans of one queue from the begin to the end of the run."""
    spans: list[_Span] = []
    now, last = int(trace.begin), None
    for i in own:
        begin, end = max(int(trace.steps[i][0]), now), max(int(trace.steps[i][1]), now)
        if begin > now:
            spans.append(_Span(now, begin, None, is_gap=last == keys[i] and keys[i][0] >= 0))
        spans.append(_Span(begin, end, keys[i]))
        now, last = end, keys[i]
    if now < trace.end:
        spans.append(_Span(now, int(trace.end), None))
    return spans


def _causes(idle: _Span, others: Sequence[_Span]) -> Iterator[tuple[int, int]]:
    """Idle nanoseconds of a span, by cause."""
    meanwhile = [span for span in others if span.begin < idle.end and span.end > idle.begin]
    edges = {idle.begin, idle.end}
    edges |= {edge for span in meanwhile for edge in (span.begin, span.end) if idle.begin < edge < idle.end}
    for begin, end in pairwise(sorted(edges)):
        at_work = [span for span in meanwhile if span.begin <= begin and span.end >= end]
        if any(span.key == UNBRANCHED for span in at_work):
            yield end - begin, _ALONE
        elif any(span.is_gap or (span.key is not None and span.key[0] >= 0) for span in at_work):
            yield end - begin, _WAITING
        else:
            yield end - begin, _NOBODY


PERFECT_SPLIT = "perfect split"


def causes(breakdown: Breakdown, perfect_split_ms: float, measured_ms: float) -> Mapping[str, float]:
    """Milliseconds by cause, from the perfect split to the measured latency; they add up to `measured_ms`."""
    return {
        PERFECT_SPLIT: perfect_split_ms,
        "other layers": breakdown.layers - perfect_split_ms,
        "contention": breakdown.contention_factor,
        "waiting": breakdown.waiting,
        "unbranched": breakdown.unbranched,
        "joining": breakdown.joining,
        "meeting": breakdown.meeting,
        "gaps": breakdown.gaps,
        "tracing": measured_ms - breakdown.total,
    }


CAUSES = {
    PERFECT_SPLIT: "The control's work, divided among the processors without loss.",
    "other layers": "The branched network's layers, each alone, against the control's (below 0: faster).",
    "contention": "Layers take longer beside others: processors share memory, caches and power.",
    "waiting": "A processor is done with its branch and waits for a slower one.",
    "unbranched": "A processor has nothing to do while another computes what is not branched.",
    "joining": "Putting branches together, and bringing tensors into other layouts between branches.",
    "meeting": "No processor computes: results are transferred, and runs begin and end.",
    "gaps": "Between layers of one branch: starting the next one.",
    "tracing": "Runs that are timed as a whole, against those that are traced layer by layer.",
}
"""The meaning of every cause."""
