"""Discrete-event simulation of steps on queues whose speed depends on the other active queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

ContentionFactor = Callable[[int, frozenset[int]], float]
"""Time of a queue while other queues compute over its time alone; at least 1."""


@dataclass(frozen=True)
class SimulatedTask:
    """A sub-graph.

    Attributes:
        queue: where it runs, after the tasks before it on the same queue.
        waits: tasks that must be done before.
        transfer: seconds before its first step; without contention.
        steps: seconds of each step when no other queue computes.
    """

    queue: int
    waits: tuple[int, ...]
    transfer: float
    steps: tuple[float, ...]


@dataclass(frozen=True)
class TaskTimes:
    """When a task was ready (its waits were over), and begin and end of its steps, in seconds."""

    ready: float
    steps: tuple[tuple[float, float], ...]


@dataclass
class _Queue:
    """State of a queue.

    Attributes:
        tasks: numbers of its tasks that have not started, in order.
        task: its current task.
        step: the current step; -1 during the transfer.
        left: remaining seconds of the step without contention.
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


def run_tasks(tasks: Sequence[SimulatedTask], contention_factor: ContentionFactor) -> list[TaskTimes]:
    """Runs all tasks, each queue one at a time in the order of the list; tasks wait for earlier ones only.

    The speed of a step is 1 over the contention factor of its queue among the queues that compute at that moment.
    """
    return _Simulation(tasks, contention_factor).run()


class _Simulation:
    def __init__(self, tasks: Sequence[SimulatedTask], contention_factor: ContentionFactor) -> None:
        self._tasks, self._contention_factor = tasks, contention_factor
        self._queues: dict[int, _Queue] = {}
        for number, task in enumerate(tasks):
            assert all(0 <= wait < number for wait in task.waits)
            self._queues.setdefault(task.queue, _Queue()).tasks.append(number)
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
            for queue in self._queues.values():
                if queue.task is None and queue.tasks and self._done.keys() >= {*self._tasks[queue.tasks[0]].waits}:
                    queue.task = queue.tasks.pop(0)
                    queue.step, queue.left = -1, self._tasks[queue.task].transfer
                    queue.began = queue.ready = self._now
                    queue.times = []
                    started |= self._finish_parts(queue)

    def _advance(self) -> None:
        """Lets time pass until the first step or transfer under way is over."""
        busy = {number: queue for number, queue in self._queues.items() if queue.task is not None}
        if not busy:
            return
        computing = frozenset(number for number, queue in busy.items() if queue.step >= 0)
        factors = {
            number: self._contention_factor(number, computing - {number}) if number in computing else 1.0
            for number in busy
        }
        ends = {number: queue.left * factors[number] for number, queue in busy.items()}
        passed = min(ends.values())
        self._now += passed
        for number, queue in busy.items():
            over = ends[number] == passed or math.isclose(ends[number], passed, rel_tol=1e-12)
            queue.left = 0.0 if over else queue.left - passed / factors[number]
            self._finish_parts(queue)

    def _finish_parts(self, queue: _Queue) -> bool:
        """Advances a queue to its next step that takes time; True if the task is done."""
        assert queue.task is not None
        steps = self._tasks[queue.task].steps
        while queue.left <= 0.0:
            if queue.step >= 0:
                queue.times.append((queue.began, self._now))
            queue.step += 1
            queue.began = self._now
            if queue.step == len(steps):
                self._done[queue.task] = TaskTimes(queue.ready, tuple(queue.times))
                queue.task = None
                return True
            queue.left = steps[queue.step]
        return False
