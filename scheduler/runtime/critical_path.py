"""Summary of a run: its critical path of steps and transfers, and the waits of queues for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.scheduler.simulation.timing import NoInterference, all_waits, critical_path


@dataclass(frozen=True)
class Link:
    """A step on the path to the end of a run.

    Attributes:
        step: the step with its times.
        gap: nanoseconds since the end of the previous step of the path.
        is_transfer: whether the previous step of the path ran on another queue.
    """

    step: Event
    gap: int
    is_transfer: bool


@dataclass(frozen=True)
class Wait:
    """A wait of a queue at a join.

    Attributes:
        step: the step that the queue computed next.
        begin, end: nanoseconds from the begin of the run.
        awaited: the step of another queue that ended last of those waited for.
    """

    step: Event
    begin: int
    end: int
    awaited: Event

    @property
    def duration(self) -> int:
        """Nanoseconds of waiting."""
        return self.end - self.begin

    @property
    def transfer(self) -> int:
        """Nanoseconds of the wait after the awaited step had ended."""
        return self.end - min(self.end, max(self.begin, self.awaited.end))


@dataclass(frozen=True)
class QueueTime:
    """Nanoseconds that a queue spent in steps (busy), at joins (waiting), and otherwise (idle)."""

    processor: str
    busy: int
    waiting: int
    idle: int


@dataclass(frozen=True)
class RunSummary:
    """Where the time of a run went.

    Attributes:
        total: duration in nanoseconds.
        critical_path: nanoseconds of the longest dependency path: a step depends on the steps that it reads and on the
            previous step of its queue. Steps count with their measured durations, transfers and gaps as zero.
        queues: times of every queue.
        path: the steps that determined the end of the run, in order.
        waits: all waits, longest first.
    """

    total: int
    critical_path: int
    queues: tuple[QueueTime, ...]
    path: tuple[Link, ...]
    waits: tuple[Wait, ...]

    @property
    def over_critical_path(self) -> float:
        """Duration of the run over its critical path: the overhead of joins, transfers and starting steps."""
        return self.total / self.critical_path if self.critical_path else 1.0

    def to_json(self) -> dict[str, Any]:
        """What `run --timeline FILE --json` prints as `timeline`; times in milliseconds."""
        return {
            "total_ms": self.total * 1e-6,
            "critical_path_ms": self.critical_path * 1e-6,
            "over_critical_path": self.over_critical_path,
            "queues": [
                {"processor": q.processor, **_milliseconds(busy=q.busy, waiting=q.waiting, idle=q.idle)}
                for q in self.queues
            ],
            "path": [
                {**self._timed(link.step, link.step.begin, link.step.end), **_milliseconds(gap=link.gap)}
                | {"transfer": link.is_transfer}
                for link in self.path
            ],
            "waits": [
                {**self._timed(wait.step, wait.begin, wait.end), **_milliseconds(transfer=wait.transfer)}
                | {"awaited": self._named(wait.awaited)}
                for wait in self.waits
            ],
        }

    def _timed(self, step: Event, begin: int, end: int) -> dict[str, Any]:
        return {**self._named(step), **_milliseconds(begin=begin), "ms": (end - begin) * 1e-6}

    def _named(self, step: Event) -> dict[str, str]:
        return {"processor": self.queues[step.queue].processor, "layer": step.name}


def _milliseconds(**nanoseconds: int) -> dict[str, float]:
    return {f"{name}_ms": time * 1e-6 for name, time in nanoseconds.items()}


def critical_path_seconds(plan: Plan, seconds: Sequence[float]) -> float:
    """Seconds of a validated plan's longest dependency path, by the seconds of each step, with nothing between steps."""
    steps = tuple(replace(step, cost_ms=s * 1e3) for step, s in zip(plan.steps, seconds, strict=True))
    return critical_path(replace(plan, steps=steps), NoInterference())


def run_summary(plan: Plan, timeline: Timeline) -> RunSummary:
    """Where the time of a run of `plan` went, by its measured or simulated timeline.

    The path is followed back from the step that ended last. Before a step comes the previous step of its
    queue or, at a join, the last step of an awaited sub-graph, whichever ended later.
    """
    steps = _steps(plan, timeline)
    before = _before(plan, steps)
    durations = [(step.end - step.begin) * 1e-9 for step in steps]
    queues = []
    for queue, name in enumerate(timeline.queues):
        busy, waiting = timeline.spent(queue, "step"), timeline.spent(queue, "wait")
        queues.append(QueueTime(name, busy, waiting, timeline.total - busy - waiting))
    longest = round(critical_path_seconds(plan, durations) * 1e9)
    return RunSummary(timeline.total, longest, tuple(queues), _path(steps, before), _waits(plan, timeline, steps))


def _steps(plan: Plan, timeline: Timeline) -> list[Event]:
    """The event of every step in the order of the plan. Queues run their steps in that order."""
    queues = [
        iter([e for e in timeline.events if e.queue == n and e.kind == "step"]) for n in range(len(timeline.queues))
    ]
    return [next(queues[subgraph.queue]) for subgraph in plan.subgraphs for _ in range(subgraph.count)]


def _before(plan: Plan, steps: Sequence[Event]) -> list[int | None]:
    """For every step the last to end of those that it had to wait for."""
    found: list[int | None] = []
    on_queue: dict[int, int] = {}
    lasts = [subgraph.first + subgraph.count - 1 for subgraph in plan.subgraphs]
    for subgraph, waits in zip(plan.subgraphs, all_waits(plan), strict=True):
        for number in range(subgraph.first, subgraph.first + subgraph.count):
            awaited = [lasts[wait] for wait in waits] if number == subgraph.first else []
            if subgraph.queue in on_queue:
                awaited.append(on_queue[subgraph.queue])
            found.append(max(awaited, key=lambda n: steps[n].end, default=None))
            on_queue[subgraph.queue] = number
    return found


def _path(steps: Sequence[Event], before: Sequence[int | None]) -> tuple[Link, ...]:
    links: list[Link] = []
    number = max(range(len(steps)), key=lambda n: steps[n].end, default=None)
    while number is not None:
        step, earlier = steps[number], before[number]
        since = 0 if earlier is None else steps[earlier].end
        other_queue = earlier is not None and steps[earlier].queue != step.queue
        links.append(Link(step, max(0, step.begin - since), other_queue))
        number = earlier
    return tuple(reversed(links))


def _waits(plan: Plan, timeline: Timeline, steps: Sequence[Event]) -> tuple[Wait, ...]:
    """The waits of the timeline, longest first."""
    begins = {(e.queue, e.end): e.begin for e in timeline.events if e.kind == "wait"}
    found: list[Wait] = []
    for subgraph, waits in zip(plan.subgraphs, all_waits(plan), strict=True):
        step = steps[subgraph.first]
        others = [plan.subgraphs[wait] for wait in waits if plan.subgraphs[wait].queue != subgraph.queue]
        begin = begins.get((step.queue, step.begin))
        if others and begin is not None:
            awaited = max((steps[other.first + other.count - 1] for other in others), key=lambda e: e.end)
            found.append(Wait(step, begin, step.begin, awaited))
    return tuple(sorted(found, key=lambda wait: -wait.duration))
