"""Exact search: branch and bound over all plans of a small problem, event by event.

Whenever a lane is free, it begins one of the units that are ready, or waits for something that is not. A lane begins what comes
next in its order as soon as it can; so, having waited, it takes none of the units that it could have begun before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.scheduler.placement.local_search import Plan
from nnstretch.scheduler.placement.problem import PlacementProblem, handover

_EPSILON = 1e-12
"""Share of a plan's time by which another must be faster to count as better."""
_SAME = 1e-12
"""Seconds; ends that differ by less are one event."""


@dataclass(frozen=True)
class Found:
    """The best plan, its cost, and whether that is proved; without proof the search was given up."""

    plan: Plan
    cost: float
    proved: bool


def search(
    problem: PlacementProblem,
    entry: tuple[int, ...],
    exits: Sequence[int],
    after: Mapping[tuple[int, ...], float],
    incumbent: Plan,
    cost: float,
    most_states: int,
) -> Found:
    """The plan with the least cost: its makespan and what comes after it.

    Args:
        problem: units and lanes.
        entry: where the first units are, which are done when the search begins.
        exits: units of which somebody wants to know where they ran.
        after: seconds that follow the makespan, by the lanes of `exits`.
        incumbent: a plan to beat.
        cost: of the incumbent.
        most_states: the search is given up after so many.
    """
    return _Search(problem, tuple(exits), after, incumbent, cost, most_states).run(entry)


@dataclass
class _State:
    """A moment of a plan. `running` has for each lane None, or (unit, seconds left of its handover, seconds left of it)."""

    now: float
    done: int
    started: int
    work: float
    lanes: list[int]
    order: tuple[int, ...]
    running: list[tuple[int, float, float] | None]
    barred: list[int]
    fetched: list[int]

    def copy(self) -> _State:
        return _State(
            self.now,
            self.done,
            self.started,
            self.work,
            self.lanes.copy(),
            self.order,
            self.running.copy(),
            self.barred.copy(),
            self.fetched.copy(),
        )


class _Search:
    def __init__(
        self,
        problem: PlacementProblem,
        exits: tuple[int, ...],
        after: Mapping[tuple[int, ...], float],
        incumbent: Plan,
        cost: float,
        most_states: int,
    ) -> None:
        self._problem, self._exits, self._after = problem, exits, after
        self._plan, self._cost = incumbent, cost
        self._left = most_states
        self._count = len(problem.reads)
        self._all = (1 << self._count) - 1
        self._reads = problem.read_bits
        self._readers = [sum(1 << r for r in readers) for readers in problem.readers]
        self._wanted = sum(1 << u for u in exits)
        self._seconds = [[float(s) for s in row] for row in problem.seconds]
        self._allowed = [problem.allowed(u) for u in range(self._count)]
        self._least_after: dict[tuple[int, ...], float] = {}
        self._seen: dict[tuple[object, ...], float] = {}

    def run(self, entry: tuple[int, ...]) -> Found:
        lanes, begun = self._problem.lanes, len(entry)
        start = _State(
            now=0.0,
            done=(1 << begun) - 1,
            started=(1 << begun) - 1,
            work=sum(self._problem.least[begun:]),
            lanes=[*entry, *[-1] * (self._count - begun)],
            order=tuple(range(begun)),
            running=[None] * lanes,
            barred=[0] * lanes,
            fetched=[0] * lanes,
        )
        self._decide(start, 0)
        return Found(self._plan, self._cost, self._left > 0)

    def _decide(self, state: _State, lane: int) -> None:
        """Tries all that free lanes can do now, from `lane` on."""
        while lane < self._problem.lanes and state.running[lane] is not None:
            lane += 1
        if lane == self._problem.lanes:
            self._pass(state)
            return
        ready = self._ready(state, lane)
        for unit in ready:
            begun = self._begin(state, unit, lane)
            if self._is_hopeful(begun):
                self._decide(begun, lane + 1)
        idle = state.copy()
        idle.barred[lane] |= sum(1 << u for u in ready)
        if self._is_hopeful(idle):
            self._decide(idle, lane + 1)

    def _ready(self, state: _State, lane: int) -> list[int]:
        """What a lane may begin now, the longest way to the end first."""
        closed = state.started | state.barred[lane]
        units = [
            u
            for u in range(self._count)
            if not closed >> u & 1 and self._reads[u] & ~state.done == 0 and lane in self._allowed[u]
        ]
        return sorted(units, key=lambda u: (-self._problem.tails[u], u))

    def _begin(self, state: _State, unit: int, lane: int) -> _State:
        begun = state.copy()
        delay = self._delay(state, unit, lane)
        begun.fetched[lane] |= self._reads[unit]
        begun.started |= 1 << unit
        begun.lanes[unit] = lane
        begun.order = (*state.order, unit)
        begun.running[lane] = (unit, delay, self._seconds[unit][lane])
        begun.barred[lane] = 0
        begun.work = state.work - self._problem.least[unit]
        return begun

    def _delay(self, state: _State, unit: int, lane: int) -> float:
        """Seconds of the handover before a lane can begin a unit."""
        return handover(self._problem, unit, lane, state.lanes, state.fetched[lane])

    def _pass(self, state: _State) -> None:
        """Lets time pass until something ends."""
        busy = [lane for lane, task in enumerate(state.running) if task is not None]
        if not busy:
            if state.done == self._all:
                self._finish(state)
            return
        if self._left <= 0 or self._is_known(state):
            return
        self._left -= 1
        computing = frozenset(lane for lane in busy if (task := state.running[lane]) and task[1] <= 0)
        factors = {
            lane: self._problem.interplay.slowdown(lane, computing - {lane}) if lane in computing else 1.0
            for lane in busy
        }
        ends = {}
        for lane in busy:
            task = state.running[lane]
            assert task is not None
            ends[lane] = task[1] if task[1] > 0 else task[2] * factors[lane]
        passed = min(ends.values())
        later = state.copy()
        later.now += passed
        for lane in busy:
            task = state.running[lane]
            assert task is not None
            unit, delay, left = task
            over = ends[lane] - passed <= _SAME
            if delay > 0:
                later.running[lane] = (unit, 0.0 if over else delay - passed, left)
                over = over and left <= 0
            else:
                later.running[lane] = (unit, 0.0, left - passed / factors[lane])
            if over:
                later.running[lane] = None
                later.done |= 1 << unit
        self._decide(later, 0)

    def _finish(self, state: _State) -> None:
        cost = state.now + self._after[tuple(state.lanes[u] for u in self._exits)]
        if cost < self._cost * (1 - _EPSILON):
            self._plan, self._cost = (tuple(state.lanes), state.order), cost

    def _is_hopeful(self, state: _State) -> bool:
        """Whether a plan that begins like this may beat the best one: by its longest chain, and by the work that is left."""
        after, work = self._problem.after, state.work
        limit = self._cost * (1 - _EPSILON) - state.now - self._following(state)
        for lane, task in enumerate(state.running):
            if task is not None:
                unit, delay, left = task
                work += left
                if delay + left + after[unit][lane] >= limit:
                    return False
        if work / self._problem.rate >= limit:
            return False
        return not any(
            all(
                self._delay(state, unit, lane) + self._seconds[unit][lane] + after[unit][lane] >= limit
                for lane in self._allowed[unit]
            )
            for unit in range(self._count)
            if not state.started >> unit & 1 and self._reads[unit] & ~state.done == 0
        )

    def _following(self, state: _State) -> float:
        """Seconds after the makespan, at best, as far as it is decided where the exits are."""
        places = tuple(state.lanes[u] for u in self._exits)
        if places not in self._least_after:
            self._least_after[places] = min(
                seconds
                for lanes, seconds in self._after.items()
                if all(place in (-1, lane) for place, lane in zip(places, lanes, strict=True))
            )
        return self._least_after[places]

    def _is_known(self, state: _State) -> bool:
        """Whether the same was reached before, as early or earlier.

        What nobody will ask for any more does not tell states apart.
        """
        places = tuple(
            state.lanes[u] if self._readers[u] & ~state.started or self._wanted >> u & 1 else -1
            for u in range(self._count)
        )
        running = tuple(
            None if task is None else (task[0], round(task[1] / _SAME), round(task[2] / _SAME))
            for task in state.running
        )
        fetched = tuple(self._fetched(state, lane) for lane in range(len(running)))
        key = (state.started, places, running, tuple(state.barred), fetched)
        known = self._seen.get(key)
        if known is not None and known <= state.now:
            return True
        self._seen[key] = state.now
        return False

    def _fetched(self, state: _State, lane: int) -> int:
        """Which results, that somebody may still read, a lane has fetched."""
        return sum(
            1 << u for u in range(self._count) if state.fetched[lane] >> u & 1 and self._readers[u] & ~state.started
        )
