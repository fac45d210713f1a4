"""Placement as pure data: units of a graph, what each takes on each lane, and what lanes cost each other.

NN-Stretch gives whole branches to processors; a network that has branches of its own leaves open which layer goes where. A
problem knows no device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import SelectionError
from nnstretch.scheduler.simulation.events import Task, run_tasks
from nnstretch.scheduler.simulation.timing import Interplay, NoInterplay

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Units that lanes share.

    Attributes:
        seconds: (units, lanes); what a unit takes on a lane that works alone. Infinite where the lane cannot compute it, or may
            not: a unit with one finite entry is placed already.
        reads: for each unit the earlier units whose results it reads, ascending, each once.
        sizes: bytes of each unit's result.
        interplay: what handovers cost and how much lanes slow each other down.

    Raises:
        SelectionError: the parts do not fit together, or a unit has no lane.
    """

    seconds: NDArray[np.float64]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    interplay: Interplay = field(default_factory=NoInterplay)

    def __post_init__(self) -> None:
        units = len(self.reads)
        if self.seconds.ndim != 2 or len(self.seconds) != units or len(self.sizes) != units:
            raise SelectionError(
                f"seconds of shape {self.seconds.shape} and {len(self.sizes)} sizes do not fit {units} units; give each both"
            )
        if not np.all(self.seconds >= 0):
            raise SelectionError("a unit takes a negative time, or none that is a number; measure it again")
        for unit, sources in enumerate(self.reads):
            if list(sources) != sorted({s for s in sources if 0 <= s < unit}):
                raise SelectionError(f"unit {unit} reads {sources}; name earlier units, ascending, each once")
        stuck = [unit for unit, row in enumerate(self.seconds) if not np.isfinite(row).any()]
        if stuck:
            raise SelectionError(f"unit {stuck[0]} can run on no lane; give it one")

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return int(self.seconds.shape[1])

    @cached_property
    def read_bits(self) -> tuple[int, ...]:
        """`reads` as sets of bits."""
        return tuple(sum(1 << s for s in sources) for sources in self.reads)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each unit those that read its result."""
        found: list[list[int]] = [[] for _ in self.reads]
        for unit, sources in enumerate(self.reads):
            for source in sources:
                found[source].append(unit)
        return tuple(map(tuple, found))

    @cached_property
    def least(self) -> tuple[float, ...]:
        """Seconds of every unit on the lane that is fastest for it."""
        return tuple(map(float, self.seconds.min(axis=1)))

    @cached_property
    def tails(self) -> tuple[float, ...]:
        """Seconds from a unit's begin to the end of everything that depends on it, at best."""
        tails = [0.0] * len(self.reads)
        for unit in reversed(range(len(tails))):
            tails[unit] = self.least[unit] + max((tails[r] for r in self.readers[unit]), default=0.0)
        return tuple(tails)

    @cached_property
    def after(self) -> tuple[tuple[float, ...], ...]:
        """For every unit and lane: seconds from its end there to the end of everything that depends on it, at best.

        Whoever reads it on another lane begins no earlier than what it takes to fetch it there.
        """
        lanes = range(self.lanes)
        after = [(0.0,) * self.lanes for _ in self.reads]
        for unit in reversed(range(len(after))):
            fetch = [[0.0 if a == b else self._fetch(unit, a, b) for b in lanes] for a in lanes]
            after[unit] = tuple(
                max(
                    (min(fetch[a][b] + self._tail(r, b, after) for b in lanes) for r in self.readers[unit]), default=0.0
                )
                for a in lanes
            )
        return tuple(after)

    @cached_property
    def _handovers(self) -> dict[tuple[int, frozenset[int], int], float]:
        return {}

    def handover(self, lane: int, others: frozenset[int], size: int) -> float:
        """What the interplay says of a handover, remembered."""
        key = (lane, others, size)
        if key not in self._handovers:
            self._handovers[key] = self.interplay.handover_seconds(lane, others, size)
        return self._handovers[key]

    def _fetch(self, unit: int, source: int, lane: int) -> float:
        return self.handover(lane, frozenset({source}), self.sizes[unit])

    def _tail(self, unit: int, lane: int, after: Sequence[Sequence[float]]) -> float:
        return float(self.seconds[unit, lane]) + after[unit][lane]

    @cached_property
    def rate(self) -> float:
        """How much work all lanes get done at the same time at most, in seconds of one lane per second."""
        best = 1.0
        for group in range(1, 1 << self.lanes):
            members = [lane for lane in range(self.lanes) if group >> lane & 1]
            speeds = (1 / self.interplay.slowdown(lane, frozenset(members) - {lane}) for lane in members)
            best = max(best, sum(speeds))
        return best

    @property
    def bound(self) -> float:
        """Seconds below which no placement comes: of the longest chain of units, and of all work shared out evenly."""
        chains = (min(self._tail(u, lane, self.after) for lane in range(self.lanes)) for u in range(len(self.reads)))
        return max(max(chains, default=0.0), sum(self.least) / self.rate)

    def allowed(self, unit: int) -> list[int]:
        """The lanes that may compute a unit."""
        return [lane for lane in range(self.lanes) if math.isfinite(self.seconds[unit, lane])]


@dataclass(frozen=True)
class Placement:
    """Where units run and when.

    Attributes:
        lanes: one per unit.
        order: all units; every lane takes its own in this order, which is a topological one.
        makespan: seconds from the first begin to the last end.
        bound: seconds below which, as is proved, no placement comes.
    """

    lanes: tuple[int, ...]
    order: tuple[int, ...]
    makespan: float
    bound: float

    @property
    def optimal(self) -> bool:
        """Whether it is proved, up to rounding, that nothing is faster."""
        return self.makespan <= self.bound * (1 + _ROUNDING) + 1e-15

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan; 0 for a proven optimum."""
        return 0.0 if self.optimal else (self.makespan - self.bound) / self.makespan


def handover(problem: PlacementProblem, unit: int, lane: int, lanes: Sequence[int], fetched: int = 0) -> float:
    """Seconds from when all that a unit reads is done until `lane` can begin it.

    It fetches what other lanes made and nothing before it on the lane has `fetched`, a set of units as bits.
    """
    elsewhere = [s for s in problem.reads[unit] if lanes[s] != lane and not fetched >> s & 1]
    if not elsewhere:
        return 0.0
    others = frozenset(lanes[s] for s in elsewhere)
    return problem.handover(lane, others, sum(problem.sizes[s] for s in elsewhere))


def makespan(problem: PlacementProblem, lanes: Sequence[int], order: Sequence[int]) -> float:
    """Seconds that the units take on these lanes, each lane taking its own in this order as soon as it can."""
    position = {unit: place for place, unit in enumerate(order)}
    fetched = [0] * problem.lanes
    tasks = []
    for unit in order:
        lane = lanes[unit]
        waits = tuple(position[s] for s in problem.reads[unit])
        delay = handover(problem, unit, lane, lanes, fetched[lane])
        fetched[lane] |= problem.read_bits[unit]
        tasks.append(Task(lane, waits, delay, (float(problem.seconds[unit, lane]),)))
    times = run_tasks(tasks, problem.interplay.slowdown)
    return max((end for task in times for _, end in task.steps), default=0.0)
