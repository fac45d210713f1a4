"""Timelines: begin and end of every step and wait of a run, by queue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from nnstretch.scheduler.plan.schema import Plan


@dataclass(frozen=True)
class Event:
    """A step or a wait on a queue. Times are nanoseconds from the begin of the run."""

    name: str
    kind: Literal["step", "wait"]
    queue: int
    begin: int
    end: int
    routine: str = ""
    op: str = ""
    macs: int = 0


@dataclass(frozen=True)
class Timeline:
    """One traced run. `queues` are the processors' names; `total` is the run's duration in nanoseconds."""

    queues: tuple[str, ...]
    events: tuple[Event, ...]
    total: int

    def spent(self, queue: int, kind: Literal["step", "wait"]) -> int:
        """Nanoseconds that a queue spent in steps or in waits."""
        return sum(e.end - e.begin for e in self.events if e.queue == queue and e.kind == kind)

    def busy(self, queue: int) -> int:
        """Nanoseconds that a queue spent in steps."""
        return self.spent(queue, "step")

    def gaps(self, queue: int) -> list[int]:
        """Nanoseconds between successive steps of a queue, without waits."""
        gaps: list[int] = []
        mine = sorted((e for e in self.events if e.queue == queue), key=lambda e: e.begin)
        for one, other in pairwise(mine):
            if one.kind == other.kind == "step":
                gaps.append(max(0, other.begin - one.end))
        return gaps

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; `from_json` restores an equal timeline. Waits have no `routine`, `op` and `macs`."""
        step_fields = ("routine", "op", "macs")
        events = [
            {name: value for name, value in asdict(event).items() if event.kind == "step" or name not in step_fields}
            for event in self.events
        ]
        return {"queues": list(self.queues), "total": self.total, "events": events}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Timeline:
        """The timeline that `to_json` wrote.

        Raises:
            KeyError, TypeError: it is none.
        """
        events = tuple(Event(**event) for event in fields["events"])
        return Timeline(tuple(fields["queues"]), events, fields["total"])

    def to_chrome_json(self) -> str:
        """The timeline in the Chrome trace format that Perfetto opens: a track per queue, waits visible."""
        events: list[dict[str, Any]] = [_meta("process_name", 0, name="nnstretch")]
        for queue, name in enumerate(self.queues):
            events.append(_meta("thread_name", queue, name=name))
            events.append(_meta("thread_sort_index", queue, sort_index=queue))
            events += [_slice(event) for event in self.track(queue)]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})

    def track(self, queue: int) -> list[Event]:
        """The events of a queue one after another, in the order of their begins.

        A viewer nests slices that overlap. Traced waits belong to the thread that serves a queue, which also waits while a
        device computes; what is left of them lies between steps. Clocks of devices may let a step begin before the last ends.
        """
        steps = _in_turn([event for event in self.events if event.queue == queue and event.kind == "step"])
        waits = [event for event in self.events if event.queue == queue and event.kind == "wait"]
        begins = [0, *(step.end for step in steps)]
        ends = [*(step.begin for step in steps), max((wait.end for wait in waits), default=0)]
        idle = [
            replace(wait, begin=max(wait.begin, begin), end=min(wait.end, end))
            for begin, end in zip(begins, ends, strict=True)
            for wait in waits
            if max(wait.begin, begin) < min(wait.end, end)
        ]
        between = [wait for wait in _in_turn(idle) if wait.begin < wait.end]
        return sorted([*steps, *between], key=lambda event: (event.begin, event.end))


def _in_turn(events: Sequence[Event]) -> list[Event]:
    """Events in the order of their begins, each beginning not before the last one ends."""
    ordered: list[Event] = []
    last = 0
    for event in sorted(events, key=lambda event: event.begin):
        begin = max(event.begin, last)
        last = max(event.end, begin)
        ordered.append(replace(event, begin=begin, end=last))
    return ordered


def plan_timeline(plan: Plan, times: Sequence[tuple[int, int]], waits: Sequence[bool], total: int) -> Timeline:
    """The timeline of a run of a plan.

    Args:
        plan: validated.
        times: begin and end of every step, nanoseconds from the begin of the run.
        waits: for every sub-graph whether it waits; its queue then waits from the end of its previous step.
        total: duration in nanoseconds.
    """
    events: list[Event] = []
    idle_since = [0] * len(plan.queues)
    for subgraph, is_waiting in zip(plan.subgraphs, waits, strict=True):
        queue, begin = subgraph.queue, times[subgraph.first][0]
        if is_waiting and begin > idle_since[queue]:
            events.append(Event("wait", "wait", queue, idle_since[queue], begin))
        for number in range(subgraph.first, subgraph.first + subgraph.count):
            step, (begin, end) = plan.steps[number], times[number]
            events.append(Event(step.layer, "step", queue, begin, end, step.routine, step.op, step.macs))
            idle_since[queue] = end
    queues = tuple(queue.processor or "host" for queue in plan.queues)
    return Timeline(queues, tuple(sorted(events, key=lambda e: (e.queue, e.begin))), total)


_FIRST = 1
"""Number of the process and of its first thread: viewers take 0 for the idle thread of a system."""


def _meta(kind: str, queue: int, **arguments: str | int) -> dict[str, Any]:
    """A record that names or orders the track of a queue."""
    return {"ph": "M", "pid": _FIRST, "tid": _FIRST + queue, "name": kind, "args": arguments}


def _slice(event: Event) -> dict[str, Any]:
    record: dict[str, Any] = {
        "ph": "X",
        "pid": _FIRST,
        "tid": _FIRST + event.queue,
        "cat": event.kind,
        "name": event.name or event.op or event.kind,
        "ts": event.begin / 1e3,
        "dur": (event.end - event.begin) / 1e3,
        "args": {},
    }
    if event.kind == "wait":
        record["cname"] = "terrible"
    else:
        gflops = 2 * event.macs / max(1, event.end - event.begin)
        record["args"] = {"op": event.op, "routine": event.routine, "macs": event.macs, "gflops": round(gflops, 1)}
    return record


def median_timeline(timelines: Sequence[Timeline]) -> Timeline:
    """The timeline of median duration."""
    return sorted(timelines, key=lambda t: t.total)[len(timelines) // 2]
