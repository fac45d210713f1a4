"""The discrete-event core: runs of steps on lanes, whose speed depends on what the other lanes do meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Slowdown = Callable[[int, frozenset[int]], float]
"""How many times as long a lane takes while other lanes compute too; at least 1."""


@dataclass(frozen=True)
class Task:
    """A sub-graph.

    Attributes:
        lane: where it runs, after the tasks before it on the same lane.
        waits: tasks that must be done before.
        handover: seconds from then on until its first step starts. They pass at full speed and slow down nobody.
        steps: seconds of each step when no other lane computes.
    """

    lane: int
    waits: tuple[int, ...]
    handover: float
    steps: tuple[float, ...]


@dataclass(frozen=True)
class TaskTimes:
    """When a task could start (all it waited for was done), and when every one of its steps began and ended, in seconds."""

    ready: float
    steps: tuple[tuple[float, float], ...]


@dataclass
class _Lane:
    """What a lane is doing.

    Attributes:
        tasks: numbers of its tasks that have not started, in order.
        task: the one under way.
        step: the step under way; -1 during the handover.
        left: seconds that it would take from now on at full speed.
        began: when it began.
        ready: when the task could start.
        times: begin and end of the task's finished steps.
    """

    tasks: list[int] = field(default_factory=list)
    task: int | None = None
    step: int = -1
    left: float = 0.0
    began: float = 0.0
    ready: float = 0.0
    times: list[tuple[float, float]] = field(default_factory=list)


def run_tasks(tasks: Sequence[Task], slowdown: Slowdown) -> list[TaskTimes]:
    """Runs all tasks, each lane one at a time in the order of the list.

    A step's speed changes whenever another lane starts or stops computing: it is 1 over the lane's slowdown among those that
    compute at that moment.

    Args:
        tasks: a task waits for earlier ones only.
        slowdown: of lanes among each other.
    """
    return _Simulation(tasks, slowdown).run()


class _Simulation:
    def __init__(self, tasks: Sequence[Task], slowdown: Slowdown) -> None:
        self._tasks, self._slowdown = tasks, slowdown
        self._lanes: dict[int, _Lane] = {}
        for number, task in enumerate(tasks):
            assert all(0 <= wait < number for wait in task.waits)
            self._lanes.setdefault(task.lane, _Lane()).tasks.append(number)
        self._done: dict[int, TaskTimes] = {}
        self._now = 0.0

    def run(self) -> list[TaskTimes]:
        while len(self._done) < len(self._tasks):
            self._start_tasks()
            self._advance()
        return [self._done[number] for number in range(len(self._tasks))]

    def _start_tasks(self) -> None:
        """Starts whatever can start now; tasks of no duration may let others start at the same moment."""
        started = True
        while started:
            started = False
            for lane in self._lanes.values():
                if lane.task is None and lane.tasks and self._done.keys() >= {*self._tasks[lane.tasks[0]].waits}:
                    lane.task = lane.tasks.pop(0)
                    lane.step, lane.left = -1, self._tasks[lane.task].handover
                    lane.began = lane.ready = self._now
                    lane.times = []
                    started |= self._finish_parts(lane)

    def _advance(self) -> None:
        """Lets time pass until the first step or handover under way is over."""
        busy = {number: lane for number, lane in self._lanes.items() if lane.task is not None}
        if not busy:
            return
        computing = frozenset(number for number, lane in busy.items() if lane.step >= 0)
        factors = {
            number: self._slowdown(number, computing - {number}) if number in computing else 1.0 for number in busy
        }
        ends = {number: lane.left * factors[number] for number, lane in busy.items()}
        passed = min(ends.values())
        self._now += passed
        for number, lane in busy.items():
            over = ends[number] == passed or math.isclose(ends[number], passed, rel_tol=1e-12)
            lane.left = 0.0 if over else lane.left - passed / factors[number]
            self._finish_parts(lane)

    def _finish_parts(self, lane: _Lane) -> bool:
        """Goes on to the next part of a lane's task that takes time; tells whether the task is done."""
        assert lane.task is not None
        steps = self._tasks[lane.task].steps
        while lane.left <= 0.0:
            if lane.step >= 0:
                lane.times.append((lane.began, self._now))
            lane.step += 1
            lane.began = self._now
            if lane.step == len(steps):
                self._done[lane.task] = TaskTimes(lane.ready, tuple(lane.times))
                lane.task = None
                return True
            lane.left = steps[lane.step]
        return False
