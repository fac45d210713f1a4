"""What determined how long a run took: the chain of steps and hand-overs to its end, and who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.scheduler.simulation.timing import NoInterplay, all_waits, critical_path


@dataclass(frozen=True)
class Link:
    """A step on the path to the end of a run.

    Attributes:
        step: which, and when.
        gap: nanoseconds before it in which nothing of the path ran.
        is_handover: the step before it on the path ran on another lane.
    """

    step: Event
    gap: int
    is_handover: bool


@dataclass(frozen=True)
class Wait:
    """A lane that had to wait at a meeting point.

    Attributes:
        step: what it computed next.
        begin, end: nanoseconds from the run's begin.
        awaited: the last step, on another lane, that it waited for.
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
    def handover(self) -> int:
        """Nanoseconds of it after what was waited for had ended."""
        return self.end - min(self.end, max(self.begin, self.awaited.end))


@dataclass(frozen=True)
class LaneTime:
    """Nanoseconds that a lane spent in steps, waiting at meeting points, and with nothing to do or between steps."""

    processor: str
    busy: int
    waiting: int
    idle: int


@dataclass(frozen=True)
class RunSummary:
    """Where the time of a run went.

    Attributes:
        total: nanoseconds that it took.
        critical_path: nanoseconds of the longest path through all that steps must wait for, which is what they read and the
            step before them on their lane, by what each of them took, with nothing in between.
        lanes: what every lane did.
        path: from the first step on, the steps that followed each other to the end of the run, with what lay between them.
        waits: all that there were, longest first.
    """

    total: int
    critical_path: int
    lanes: tuple[LaneTime, ...]
    path: tuple[Link, ...]
    waits: tuple[Wait, ...]

    @property
    def over_critical_path(self) -> float:
        """The run's duration over that of the critical path: what meeting and starting cost."""
        return self.total / self.critical_path if self.critical_path else 1.0

    def to_json(self) -> dict[str, Any]:
        """What `run --timeline FILE --json` prints as `timeline`; times in milliseconds."""
        return {
            "total_ms": self.total * 1e-6,
            "critical_path_ms": self.critical_path * 1e-6,
            "over_critical_path": self.over_critical_path,
            "lanes": [
                {
                    "processor": lane.processor,
                    "busy_ms": lane.busy * 1e-6,
                    "waiting_ms": lane.waiting * 1e-6,
                    "idle_ms": lane.idle * 1e-6,
                }
                for lane in self.lanes
            ],
            "path": [
                {
                    **self._named(link.step),
                    "begin_ms": link.step.begin * 1e-6,
                    "ms": (link.step.end - link.step.begin) * 1e-6,
                    "gap_ms": link.gap * 1e-6,
                    "handover": link.is_handover,
                }
                for link in self.path
            ],
            "waits": [
                {
                    **self._named(wait.step),
                    "begin_ms": wait.begin * 1e-6,
                    "ms": wait.duration * 1e-6,
                    "handover_ms": wait.handover * 1e-6,
                    "awaited": self._named(wait.awaited),
                }
                for wait in self.waits
            ],
        }

    def _named(self, step: Event) -> dict[str, str]:
        return {"processor": self.lanes[step.lane].processor, "layer": step.name}


def critical_path_seconds(plan: Plan, seconds: Sequence[float]) -> float:
    """Seconds of the longest path through what steps read and through the order of every lane, if nothing lies between steps.

    Args:
        plan: validated.
        seconds: what each of its steps takes.
    """
    steps = tuple(replace(step, cost_ms=s * 1e3) for step, s in zip(plan.steps, seconds, strict=True))
    return critical_path(replace(plan, steps=steps), NoInterplay())


def run_summary(plan: Plan, timeline: Timeline) -> RunSummary:
    """Where the time of a run of `plan` went.

    The path to the end is walked back from the step that ended last: before every step comes the one before it on its lane or,
    at a meeting point, the last step of a sub-graph that is waited for, whichever ended later.

    Args:
        plan: what was run.
        timeline: of that run, by `Session.profile` or in simulated time.
    """
    steps = _steps(plan, timeline)
    before = _before(plan, steps)
    durations = [(step.end - step.begin) * 1e-9 for step in steps]
    lanes = [(name, lane, timeline.busy(lane)) for lane, name in enumerate(timeline.lanes)]
    waiting = [
        sum(e.end - e.begin for e in timeline.events if e.lane == lane and e.kind == "wait") for _, lane, _ in lanes
    ]
    return RunSummary(
        timeline.total,
        round(critical_path_seconds(plan, durations) * 1e9),
        tuple(LaneTime(name, busy, waiting[lane], timeline.total - busy - waiting[lane]) for name, lane, busy in lanes),
        _path(steps, before),
        _waits(plan, timeline, steps),
    )


def _steps(plan: Plan, timeline: Timeline) -> list[Event]:
    """The event of every step, in the plan's order: a lane takes its sub-graphs, and each its steps, one after another."""
    lanes = [iter([e for e in timeline.events if e.lane == n and e.kind == "step"]) for n in range(len(timeline.lanes))]
    return [next(lanes[subgraph.lane]) for subgraph in plan.subgraphs for _ in range(subgraph.count)]


def _before(plan: Plan, steps: Sequence[Event]) -> list[int | None]:
    """For every step the one that it began after: of all that had to be done, the one that ended last."""
    found: list[int | None] = []
    on_lane: dict[int, int] = {}
    lasts = [subgraph.first + subgraph.count - 1 for subgraph in plan.subgraphs]
    for subgraph, waits in zip(plan.subgraphs, all_waits(plan), strict=True):
        for number in range(subgraph.first, subgraph.first + subgraph.count):
            awaited = [lasts[wait] for wait in waits] if number == subgraph.first else []
            if subgraph.lane in on_lane:
                awaited.append(on_lane[subgraph.lane])
            found.append(max(awaited, key=lambda n: steps[n].end, default=None))
            on_lane[subgraph.lane] = number
    return found


def _path(steps: Sequence[Event], before: Sequence[int | None]) -> tuple[Link, ...]:
    links: list[Link] = []
    number = max(range(len(steps)), key=lambda n: steps[n].end, default=None)
    while number is not None:
        step, earlier = steps[number], before[number]
        since = 0 if earlier is None else steps[earlier].end
        other_lane = earlier is not None and steps[earlier].lane != step.lane
        links.append(Link(step, max(0, step.begin - since), other_lane))
        number = earlier
    return tuple(reversed(links))


def _waits(plan: Plan, timeline: Timeline, steps: Sequence[Event]) -> tuple[Wait, ...]:
    """The timeline's waits with what was waited for, longest first."""
    begins = {(e.lane, e.end): e.begin for e in timeline.events if e.kind == "wait"}
    found: list[Wait] = []
    for subgraph, waits in zip(plan.subgraphs, all_waits(plan), strict=True):
        step = steps[subgraph.first]
        others = [plan.subgraphs[wait] for wait in waits if plan.subgraphs[wait].lane != subgraph.lane]
        begin = begins.get((step.lane, step.begin))
        if others and begin is not None:
            awaited = max((steps[other.first + other.count - 1] for other in others), key=lambda e: e.end)
            found.append(Wait(step, begin, step.begin, awaited))
    return tuple(sorted(found, key=lambda wait: -wait.duration))
