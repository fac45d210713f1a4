"""The placement problem as pure data: times of units on queues or split between queues, and interference between queues.

NN-Stretch gives whole branches to processors. In a network with branches of its own the placement of layers
is open, and in one without branches several processors can compute shares of a layer. A problem knows no
device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import SelectionError
from nnstretch.scheduler.simulation.events import SimulatedTask, run_tasks
from nnstretch.scheduler.simulation.timing import InterferenceModel, NoInterference

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Part:
    """The part of a unit that a queue computes: its seconds without contention, and the bytes of the result that it makes."""

    queue: int
    seconds: float
    size: int


Way = tuple[Part, ...]
"""How a unit is computed: whole (one part), or split into parts on different queues."""

Turn = tuple[int, int]
"""The part of a unit that a queue computes: unit and queue."""

Schedule = tuple[tuple[int, ...], tuple[Turn, ...]]
"""A schedule: the number of each unit's way, and the order of all parts, in which every queue takes its own."""


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Units that queues share.

    Attributes:
        seconds: (units, queues); time of a unit on a queue without contention. Infinite where the queue
            cannot or may not compute it; a unit with one finite entry is already placed.
        reads: for each unit the earlier units whose results it reads, ascending, each once.
        sizes: bytes of each unit's result.
        interference: costs of transfers, and contention factors.
        splits: for each unit the ways to split it; empty: no unit may be split.

    Raises:
        SelectionError: the parts do not fit together, or a unit has no queue.
    """

    seconds: NDArray[np.float64]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    interference: InterferenceModel = field(default_factory=NoInterference)
    splits: tuple[tuple[Way, ...], ...] = ()

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
        self._check_splits()
        stuck = [unit for unit, ways in enumerate(self.ways) if not ways]
        if stuck:
            raise SelectionError(f"unit {stuck[0]} can run on no queue; give it one")

    def _check_splits(self) -> None:
        if self.splits and len(self.splits) != len(self.reads):
            raise SelectionError(
                f"splits of {len(self.splits)} units do not fit {len(self.reads)}; give each its own, or none"
            )
        for unit, splits in enumerate(self.splits):
            for way in splits:
                queues = {part.queue for part in way if 0 <= part.queue < self.queues}
                if len(queues) != len(way) or not all(0 <= part.seconds < math.inf for part in way):
                    raise SelectionError(
                        f"unit {unit} is split into {way}; name different queues and finite seconds that are not negative"
                    )

    @property
    def queues(self) -> int:
        """How many queues there are."""
        return int(self.seconds.shape[1])

    @cached_property
    def ways(self) -> tuple[tuple[Way, ...], ...]:
        """All ways of every unit: whole on each queue that may compute it, then split."""
        splits = self.splits or ((),) * len(self.reads)
        return tuple(
            (*((Part(queue, float(s), size),) for queue, s in enumerate(row) if math.isfinite(s)), *split)
            for row, size, split in zip(self.seconds, self.sizes, splits, strict=True)
        )

    @cached_property
    def read_bits(self) -> tuple[int, ...]:
        """`reads` as bit sets."""
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
    def least_work(self) -> tuple[float, ...]:
        """For every unit the least total seconds of all parts over its ways."""
        return tuple(min(sum(part.seconds for part in way) for way in ways) for ways in self.ways)

    @cached_property
    def tails(self) -> tuple[float, ...]:
        """For every unit a lower bound of the seconds from its begin to the end of everything that depends on it."""
        tails = [0.0] * len(self.reads)
        for unit in reversed(range(len(tails))):
            least = min(max(part.seconds for part in way) for way in self.ways[unit])
            tails[unit] = least + max((tails[r] for r in self.readers[unit]), default=0.0)
        return tuple(tails)

    @cached_property
    def after(self) -> tuple[tuple[float, ...], ...]:
        """For every unit and way a lower bound of the seconds from its end to the end of everything that depends on it.

        Readers first fetch the parts that other queues made.
        """
        after: list[tuple[float, ...]] = [()] * len(self.reads)
        for unit in reversed(range(len(after))):
            after[unit] = tuple(
                max((self._least_tail(r, way, after) for r in self.readers[unit]), default=0.0)
                for way in self.ways[unit]
            )
        return tuple(after)

    def _least_tail(self, reader: int, source: Way, after: Sequence[Sequence[float]]) -> float:
        """Least seconds from the end of a unit, computed in the way `source`, to the end of a reader and all that follows."""
        return min(
            max(self.fetch(source, part.queue) + part.seconds for part in way) + later
            for way, later in zip(self.ways[reader], after[reader], strict=True)
        )

    @cached_property
    def _transfers(self) -> dict[tuple[int, frozenset[int], int], float]:
        return {}

    def transfer(self, queue: int, others: frozenset[int], size: int) -> float:
        """Seconds of a transfer, cached."""
        key = (queue, others, size)
        if key not in self._transfers:
            self._transfers[key] = self.interference.transfer_seconds(queue, others, size)
        return self._transfers[key]

    def fetch(self, parts: Iterable[Part], queue: int) -> float:
        """Seconds of the transfer of those parts that other queues than `queue` made."""
        elsewhere = [part for part in parts if part.queue != queue]
        if not elsewhere:
            return 0.0
        return self.transfer(queue, frozenset(part.queue for part in elsewhere), sum(part.size for part in elsewhere))

    @cached_property
    def rate(self) -> float:
        """Upper bound of the work that all queues do per second, in seconds of one queue without contention."""
        best = 1.0
        for group in range(1, 1 << self.queues):
            members = [queue for queue in range(self.queues) if group >> queue & 1]
            speeds = (1 / self.interference.contention_factor(queue, frozenset(members) - {queue}) for queue in members)
            best = max(best, sum(speeds))
        return best

    @property
    def bound(self) -> float:
        """A lower bound of the makespan: the longest path of units, and all work evenly divided."""
        chains = (
            min(
                max(part.seconds for part in way) + after
                for way, after in zip(self.ways[unit], self.after[unit], strict=True)
            )
            for unit in range(len(self.reads))
        )
        return max(max(chains, default=0.0), sum(self.least_work) / self.rate)

    def part(self, turn: Turn, ways: Sequence[int]) -> Part:
        """The part that a queue computes of a unit, in the way that the unit is computed."""
        unit, queue = turn
        return self._part_on[unit][ways[unit]][queue]

    @cached_property
    def _part_on(self) -> list[list[dict[int, Part]]]:
        return [[{part.queue: part for part in way} for way in ways] for ways in self.ways]


@dataclass(frozen=True)
class Placement:
    """A solution of a placement problem.

    Attributes:
        ways: one per unit.
        order: all parts; every queue takes its own in this order, and each comes after all parts of what it reads.
        makespan: seconds from the first begin to the last end.
        bound: proved lower bound of the makespan of any placement.
    """

    ways: tuple[Way, ...]
    order: tuple[Turn, ...]
    makespan: float
    bound: float

    @property
    def optimal(self) -> bool:
        """Whether the makespan equals the bound up to rounding."""
        return self.makespan <= self.bound * (1 + _ROUNDING) + 1e-15

    @property
    def gap(self) -> float:
        """(makespan - bound) / makespan; 0 for a proven optimum."""
        return 0.0 if self.optimal else (self.makespan - self.bound) / self.makespan


def transfer(problem: PlacementProblem, turn: Turn, ways: Sequence[int], fetched: int = 0) -> float:
    """Seconds of the transfer before a queue can begin its part of a unit.

    The queue fetches results of other queues that it has not `fetched` (a set of units as bits).
    """
    unit, queue = turn
    missing = (s for s in problem.reads[unit] if not fetched >> s & 1)
    return problem.fetch((part for s in missing for part in problem.ways[s][ways[s]]), queue)


def makespan(problem: PlacementProblem, ways: Sequence[int], order: Sequence[Turn]) -> float:
    """Seconds of a schedule: units computed in these ways, each queue taking its parts in this order as soon as it can."""
    tasks_of: list[list[int]] = [[] for _ in problem.reads]
    fetched = [0] * problem.queues
    tasks: list[SimulatedTask] = []
    for turn in order:
        unit, queue = turn
        waits = tuple(task for s in problem.reads[unit] for task in tasks_of[s])
        delay = transfer(problem, turn, ways, fetched[queue])
        fetched[queue] |= problem.read_bits[unit]
        tasks_of[unit].append(len(tasks))
        tasks.append(SimulatedTask(queue, waits, delay, (problem.part(turn, ways).seconds,)))
    times = run_tasks(tasks, problem.interference.contention_factor)
    return max((end for task in times for _, end in task.steps), default=0.0)
