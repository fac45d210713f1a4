"""Exact search: branch and bound over all schedules of a small problem, event by event.

A free queue begins a part of a ready unit, or waits. The queue that begins the first part of a split unit
decides the split; the other queues then owe their parts. Queues begin the next part of their order as soon as
they can, so after waiting a queue takes none of the units that it could have begun before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.scheduler.placement.problem import PlacementProblem, Schedule, Turn, transfer

_EPSILON = 1e-12
"""Relative difference below which two schedules count as equally fast."""
_SAME = 1e-12
"""Seconds below which two ends count as one event."""


@dataclass
class _State:
    """A moment of a partial schedule.

    Attributes:
        now: seconds from the begin.
        done, started: units, as bits, whose parts are all done, and with parts that have begun.
        work: least seconds of all parts that have not begun.
        ways: of units that have started; -1 for others.
        order: parts in the order in which they began.
        running: for each queue None, or (unit, seconds left of its transfer, seconds left of its part).
        owed: for each queue, as bits, started units whose part on it has not begun.
        barred: for each queue units that it may not begin next.
        fetched: for each queue units whose results it has.
    """

    now: float
    done: int
    started: int
    work: float
    ways: list[int]
    order: tuple[Turn, ...]
    running: list[tuple[int, float, float] | None]
    owed: list[int]
    barred: list[int]
    fetched: list[int]

    def copy(self) -> _State:
        return _State(
            self.now,
            self.done,
            self.started,
            self.work,
            self.ways.copy(),
            self.order,
            self.running.copy(),
            self.owed.copy(),
            self.barred.copy(),
            self.fetched.copy(),
        )


@dataclass(eq=False)
class ExactSearch:
    """Searches the schedule with the least cost: its makespan and the seconds that follow it.

    Attributes:
        problem: units and queues.
        exits: units whose ways determine what follows.
        following: seconds that follow the makespan, by the ways of `exits`.
        plan: a known schedule, then the best one found.
        cost: of the schedule.
        states: number of states after which the search is given up.
    """

    problem: PlacementProblem
    exits: Sequence[int]
    following: Mapping[tuple[int, ...], float]
    plan: Schedule
    cost: float
    states: int

    def __post_init__(self) -> None:
        problem = self.problem
        self._count = len(problem.reads)
        self._all = (1 << self._count) - 1
        self._reads = problem.read_bits
        self._readers = [sum(1 << r for r in readers) for readers in problem.readers]
        self._wanted = sum(1 << u for u in self.exits)
        self._with = [
            [[n for n, way in enumerate(ways) if any(p.queue == queue for p in way)] for queue in range(problem.queues)]
            for ways in problem.ways
        ]
        self._delays: dict[tuple[int, ...], float] = {}
        self._least_after: dict[tuple[int, ...], float] = {}
        self._seen: dict[tuple[object, ...], float] = {}

    def run(self, entries: int) -> bool:
        """Searches; whether `plan` is proved optimal. Without proof the search was given up.

        The first `entries` units are done when it begins; each has one way.
        """
        queues = self.problem.queues
        start = _State(
            now=0.0,
            done=(1 << entries) - 1,
            started=(1 << entries) - 1,
            work=sum(self.problem.least_work[entries:]),
            ways=[*[0] * entries, *[-1] * (self._count - entries)],
            order=tuple((u, part.queue) for u in range(entries) for part in self.problem.ways[u][0]),
            running=[None] * queues,
            owed=[0] * queues,
            barred=[0] * queues,
            fetched=[0] * queues,
        )
        self._decide(start, 0)
        return self.states > 0

    def _decide(self, state: _State, queue: int) -> None:
        """Tries all actions of free queues, from `queue` on."""
        while queue < self.problem.queues and state.running[queue] is not None:
            queue += 1
        if queue == self.problem.queues:
            self._pass(state)
            return
        ready = self._ready(state, queue)
        for unit in ready:
            for way in self._with[unit][queue] if state.ways[unit] < 0 else (state.ways[unit],):
                begun = self._begin(state, unit, way, queue)
                if self._is_hopeful(begun):
                    self._decide(begun, queue + 1)
        idle = state.copy()
        idle.barred[queue] |= sum(1 << u for u in ready)
        if self._is_hopeful(idle):
            self._decide(idle, queue + 1)

    def _ready(self, state: _State, queue: int) -> list[int]:
        """Units with a part that a queue may begin now, those with the longest path to the end first."""
        units = [
            u
            for u in range(self._count)
            if (not state.started >> u & 1 or state.owed[queue] >> u & 1)
            and not state.barred[queue] >> u & 1
            and self._reads[u] & ~state.done == 0
            and self._with[u][queue]
        ]
        return sorted(units, key=lambda u: (-self.problem.tails[u], u))

    def _begin(self, state: _State, unit: int, way: int, queue: int) -> _State:
        begun = state.copy()
        if state.ways[unit] < 0:
            begun.started |= 1 << unit
            begun.ways[unit] = way
            begun.work -= self.problem.least_work[unit]
            for part in self.problem.ways[unit][way]:
                begun.owed[part.queue] |= 1 << unit
                begun.work += part.seconds
        seconds = self.problem.part((unit, queue), begun.ways).seconds
        delay = self._delay(state, unit, queue)
        begun.work -= seconds
        begun.owed[queue] &= ~(1 << unit)
        begun.fetched[queue] |= self._reads[unit]
        begun.order = (*state.order, (unit, queue))
        begun.running[queue] = (unit, delay, seconds)
        begun.barred[queue] = 0
        return begun

    def _pass(self, state: _State) -> None:
        """Advances to the next end of a transfer or part."""
        busy = [queue for queue, task in enumerate(state.running) if task is not None]
        if not busy:
            if state.done == self._all:
                self._finish(state)
            return
        if self.states <= 0 or self._is_known(state):
            return
        self.states -= 1
        computing = frozenset(queue for queue in busy if (task := state.running[queue]) and task[1] <= 0)
        factors = {
            queue: self.problem.interference.contention_factor(queue, computing - {queue})
            if queue in computing
            else 1.0
            for queue in busy
        }
        ends = {}
        for queue in busy:
            task = state.running[queue]
            assert task is not None
            ends[queue] = task[1] if task[1] > 0 else task[2] * factors[queue]
        passed = min(ends.values())
        later = state.copy()
        later.now += passed
        ended = 0
        for queue in busy:
            task = state.running[queue]
            assert task is not None
            unit, delay, left = task
            over = ends[queue] - passed <= _SAME
            if delay > 0:
                later.running[queue] = (unit, 0.0 if over else delay - passed, left)
                over = over and left <= 0
            else:
                later.running[queue] = (unit, 0.0, left - passed / factors[queue])
            if over:
                later.running[queue] = None
                ended |= 1 << unit
        for queue, task in enumerate(later.running):  # a unit is done when its last part is
            ended &= ~later.owed[queue]
            if task is not None:
                ended &= ~(1 << task[0])
        later.done |= ended
        self._decide(later, 0)

    def _finish(self, state: _State) -> None:
        cost = state.now + self.following[tuple(state.ways[u] for u in self.exits)]
        if cost < self.cost * (1 - _EPSILON):
            self.plan, self.cost = (tuple(state.ways), state.order), cost

    def _is_hopeful(self, state: _State) -> bool:
        """Whether a schedule that begins like this may beat the best one, by its longest path and by its remaining work."""
        after, work = self.problem.after, state.work
        limit = self.cost * (1 - _EPSILON) - state.now - self._following(state)
        for task in state.running:
            if task is not None:
                unit, delay, left = task
                work += left
                if delay + left + after[unit][state.ways[unit]] >= limit:
                    return False
        if work / self.problem.rate >= limit:
            return False
        if any(
            owed >> unit & 1 and self._least_part(state, (unit, queue)) + after[unit][state.ways[unit]] >= limit
            for queue, owed in enumerate(state.owed)
            if owed
            for unit in range(self._count)
        ):
            return False
        return not any(
            all(self._least(state, unit, way) >= limit for way in range(len(after[unit])))
            for unit in range(self._count)
            if not state.started >> unit & 1 and self._reads[unit] & ~state.done == 0
        )

    def _delay(self, state: _State, unit: int, queue: int) -> float:
        """Seconds of the transfer before a queue can begin its part of a unit."""
        fetched = state.fetched[queue] & self._reads[unit]
        key = (unit, queue, fetched, *(state.ways[s] for s in self.problem.reads[unit]))
        if key not in self._delays:
            self._delays[key] = transfer(self.problem, (unit, queue), state.ways, fetched)
        return self._delays[key]

    def _least(self, state: _State, unit: int, way: int) -> float:
        """Seconds from now to the end of a unit that is ready and computed in a way, and of all that follows, at best."""
        parts = self.problem.ways[unit][way]
        longest = max(self._delay(state, unit, part.queue) + part.seconds for part in parts)
        return longest + self.problem.after[unit][way]

    def _least_part(self, state: _State, turn: Turn) -> float:
        """Seconds from now to the end of a part that a queue owes, at best."""
        return self._delay(state, *turn) + self.problem.part(turn, state.ways).seconds

    def _following(self, state: _State) -> float:
        """Seconds after the makespan, at best, as far as it is decided how the exits are computed."""
        places = tuple(state.ways[u] for u in self.exits)
        if places not in self._least_after:
            self._least_after[places] = min(
                seconds
                for ways, seconds in self.following.items()
                if all(place in (-1, way) for place, way in zip(places, ways, strict=True))
            )
        return self._least_after[places]

    def _is_known(self, state: _State) -> bool:
        """Whether the same was reached before, as early or earlier.

        What nobody will ask for any more does not tell states apart.
        """
        owed = 0
        for some in state.owed:
            owed |= some
        places = tuple(
            state.ways[u] if (self._readers[u] & ~state.started) or (self._wanted | owed) >> u & 1 else -1
            for u in range(self._count)
        )
        running = tuple(
            None if task is None else (task[0], round(task[1] / _SAME), round(task[2] / _SAME))
            for task in state.running
        )
        fetched = tuple(self._fetched(state, queue) for queue in range(len(running)))
        key = (state.started, places, running, tuple(state.owed), tuple(state.barred), fetched)
        known = self._seen.get(key)
        if known is not None and known <= state.now:
            return True
        self._seen[key] = state.now
        return False

    def _fetched(self, state: _State, queue: int) -> int:
        """Which results, that somebody may still read, a queue has fetched."""
        later = ~state.started | state.owed[queue]
        return sum(1 << u for u in range(self._count) if state.fetched[queue] >> u & 1 and self._readers[u] & later)
