"""Placement as pure data: units of a graph, what they take on queues or split between queues, and what queues cost each other.

NN-Stretch gives whole branches to processors; a network that has branches of its own leaves open which layer goes where, and
one without any still has layers that several processors can compute shares of. A problem knows no device.
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
from nnstretch.scheduler.simulation.timing import InterferenceModel, NoInterference

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Part:
    """What a queue computes of a unit: seconds if it works alone, and bytes of the unit's result that it makes."""

    queue: int
    seconds: float
    size: int


Way = tuple[Part, ...]
"""How a unit is computed: whole, which is one part, or split, by parts on different queues that read the same results."""

Turn = tuple[int, int]
"""The part of a unit that a queue computes: unit and queue."""

Plan = tuple[tuple[int, ...], tuple[Turn, ...]]
"""The way of each unit, by number, and the order of all parts: every queue takes its own in this order."""


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """Units that queues share.

    Attributes:
        seconds: (units, queues); what a unit takes on a queue that works alone. Infinite where the queue cannot
        compute it, or may
            not: a unit with one finite entry is placed already.
        reads: for each unit the earlier units whose results it reads, ascending, each once.
        sizes: bytes of each unit's result.
        interference: what transfers cost and how much queues slow each other down.
        splits: for each unit the ways to split it, if there are any; empty: no unit may be split.

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
    def least_work(self) -> tuple[float, ...]:
        """Seconds of all parts of every unit in the way in which they are fewest."""
        return tuple(min(sum(part.seconds for part in way) for way in ways) for ways in self.ways)

    @cached_property
    def tails(self) -> tuple[float, ...]:
        """Seconds from a unit's begin to the end of everything that depends on it, at best."""
        tails = [0.0] * len(self.reads)
        for unit in reversed(range(len(tails))):
            least = min(max(part.seconds for part in way) for way in self.ways[unit])
            tails[unit] = least + max((tails[r] for r in self.readers[unit]), default=0.0)
        return tuple(tails)

    @cached_property
    def after(self) -> tuple[tuple[float, ...], ...]:
        """For every unit and way: seconds from its end to the end of everything that depends on it, at best.

        Who reads it begins no earlier than what it takes to fetch what other queues made of it.
        """
        after: list[tuple[float, ...]] = [()] * len(self.reads)
        for unit in reversed(range(len(after))):
            after[unit] = tuple(
                max((self._least_tail(r, way, after) for r in self.readers[unit]), default=0.0)
                for way in self.ways[unit]
            )
        return tuple(after)

    def _least_tail(self, reader: int, source: Way, after: Sequence[Sequence[float]]) -> float:
        """Seconds from the end of a unit that was computed in a way to the end of a reader, and of all that follows."""
        return min(
            max(self._fetch(source, part.queue) + part.seconds for part in way) + later
            for way, later in zip(self.ways[reader], after[reader], strict=True)
        )

    @cached_property
    def _transfers(self) -> dict[tuple[int, frozenset[int], int], float]:
        return {}

    def transfer(self, queue: int, others: frozenset[int], size: int) -> float:
        """What the interference says of a transfer, remembered."""
        key = (queue, others, size)
        if key not in self._transfers:
            self._transfers[key] = self.interference.transfer_seconds(queue, others, size)
        return self._transfers[key]

    def _fetch(self, source: Way, queue: int) -> float:
        elsewhere = [part for part in source if part.queue != queue]
        if not elsewhere:
            return 0.0
        return self.transfer(queue, frozenset(part.queue for part in elsewhere), sum(part.size for part in elsewhere))

    @cached_property
    def rate(self) -> float:
        """How much work all queues get done at the same time at most, in seconds of one queue per second."""
        best = 1.0
        for group in range(1, 1 << self.queues):
            members = [queue for queue in range(self.queues) if group >> queue & 1]
            speeds = (1 / self.interference.contention_factor(queue, frozenset(members) - {queue}) for queue in members)
            best = max(best, sum(speeds))
        return best

    @property
    def bound(self) -> float:
        """Seconds below which no placement comes: of the longest chain of units, and of all work shared out evenly."""
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
    """Where units run and when.

    Attributes:
        ways: one per unit.
        order: all parts; every queue takes its own in this order, in which each comes after all parts of what it reads.
        makespan: seconds from the first begin to the last end.
        bound: seconds below which, as is proved, no placement comes.
    """

    ways: tuple[Way, ...]
    order: tuple[Turn, ...]
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


def transfer(problem: PlacementProblem, turn: Turn, ways: Sequence[int], fetched: int = 0) -> float:
    """Seconds from when all that a unit reads is done until a queue can begin its part of it.

    The queue fetches what other queues made and nothing before on the queue has `fetched`, a set of units as bits.
    """
    unit, queue = turn
    elsewhere = [
        part
        for s in problem.reads[unit]
        if not fetched >> s & 1
        for part in problem.ways[s][ways[s]]
        if part.queue != queue
    ]
    if not elsewhere:
        return 0.0
    return problem.transfer(queue, frozenset(part.queue for part in elsewhere), sum(part.size for part in elsewhere))


def makespan(problem: PlacementProblem, ways: Sequence[int], order: Sequence[Turn]) -> float:
    """Seconds that the units take in these ways, each queue taking its parts in this order as soon as it can."""
    tasks_of: list[list[int]] = [[] for _ in problem.reads]
    fetched = [0] * problem.queues
    tasks: list[Task] = []
    for turn in order:
        unit, queue = turn
        waits = tuple(task for s in problem.reads[unit] for task in tasks_of[s])
        delay = transfer(problem, turn, ways, fetched[queue])
        fetched[queue] |= problem.read_bits[unit]
        tasks_of[unit].append(len(tasks))
        tasks.append(Task(queue, waits, delay, (problem.part(turn, ways).seconds,)))
    times = run_tasks(tasks, problem.interference.contention_factor)
    return max((end for task in times for _, end in task.steps), default=0.0)
