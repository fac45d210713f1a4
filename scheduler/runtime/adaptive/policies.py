"""The policies: a fixed order of plans, the fastest plan at the moment, and the thriftiest one that meets a deadline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from nnstretch.errors import UsageError
from nnstretch.scheduler.runtime.adaptive.circuit_breaker import CircuitBreaker
from nnstretch.scheduler.runtime.adaptive.estimator import SLOWED, LatencyEstimator
from nnstretch.scheduler.runtime.adaptive.policy import Choice, Observation, PlanFacts, Policy
from nnstretch.scheduler.runtime.adaptive.recent import SPAN
from nnstretch.support.durations import parse_milliseconds

GAIN = 0.9
"""A plan is changed for one that takes less than this share of its time: what is hardly faster is not worth it."""
PROBING = 0.02
"""Share of the time that may be lost by trying plans that were too slow the last time."""
PROBE_RUNS = 8
"""Runs between two such attempts at least."""
EXPLORING_RUNS = 500
"""Runs after which any other plan is tried too: what is known of it may have been measured when something disturbed it."""
TRACING = 0.05
"""Share of the time that may go into traced runs where a plan stays slow."""
_TRACED_RUNS = 12

Rank = tuple[float, ...]
"""The smaller, the better."""


class Goal(Protocol):
    """What makes a plan better than another."""

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """How good a plan is.

        Args:
            plan: the plan.
            seconds: that a run takes with it.
            staying: whether it is in use already, which is worth something.
        """


class Fastest:
    """The less time, the better."""

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """Seconds; those of a change count more."""
        return (seconds if staying else seconds / GAIN,)


class Deadline:
    """Few processors that are busy for a short time, of plans that are done in time; if none is, the less time the better."""

    def __init__(self, seconds: float) -> None:
        """A run shall take at most `seconds`."""
        self._limit = seconds

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """Plans that are done in time come first; a change must leave some of it."""
        needed = seconds if staying else seconds / GAIN
        if needed > self._limit:
            return (1.0, needed, 0.0)
        busy = sum(plan.busy.values())
        return (0.0, float(len(plan.busy)), busy if staying else busy / GAIN)


class Fixed:
    """The first plan, and while that fails the next one."""

    def __init__(self, names: Sequence[str], uses: Mapping[str, Collection[str]]) -> None:
        """Begins with the first plan.

        Args:
            names: of the plans, in the order in which they are to be used.
            uses: plan -> the parts that it needs and others may need, too.
        """
        self._names = list(names)
        self._breaker = CircuitBreaker(uses)
        self._current = self._names[0]

    def choose(self, excluded: frozenset[str] = frozenset()) -> Choice:
        """The first plan that works."""
        before, self._current = self._current, self._breaker.usable(self._names, excluded)[0]
        return Choice(self._current, _failure_reason(before, self._current, self._breaker))

    def observe(self, observation: Observation) -> None:
        """Only failures count."""
        _note(self._breaker, observation)


class Watching:
    """Whichever plan is best by what runs took of late; plans that were left are tried again now and then.

    A plan of several processors that has become slow is traced for a few runs, to learn which of them it is. What is not used
    is not known: as long as a plan could be better if the processors that the current one does not use were undisturbed, a
    single run of it finds out, as well as every `EXPLORING_RUNS`. Such runs cost at most `PROBING` of the time.
    """

    def __init__(self, plans: Sequence[PlanFacts], goal: Goal, uses: Mapping[str, Collection[str]]) -> None:
        """Begins with the plan that is best undisturbed; of equals the first.

        Args:
            plans: one at least, with different names.
            goal: what is better.
            uses: plan -> the parts that it needs and others may need, too.
        """
        self._facts = {plan.name: plan for plan in plans}
        self._names = list(self._facts)
        self._goal = goal
        self._estimator = LatencyEstimator(plans)
        self._breaker = CircuitBreaker(uses)
        self._current = min(plans, key=lambda plan: goal.rank(plan, plan.seconds, staying=False)).name
        self._unbeaten = self._best_of_others()
        self._run = 0
        self._credit = 0.0  # seconds that may be lost by trying, as saved since the last attempt or change of plan
        self._tracing = 0.0  # seconds of traced runs, less what they may take
        self._probe: str | None = None
        self._probed: dict[str, int] = {}
        self._explore_at = EXPLORING_RUNS
        self._promising = False

    def choose(self, excluded: frozenset[str] = frozenset()) -> Choice:
        """The plan that is best now, or one that may have become better."""
        self._probe = None
        here = self._estimator.expected(self._current)
        mine = self._rank(self._current, here)
        settled = mine <= self._unbeaten and self._run < self._explore_at
        if settled and not excluded and not self._breaker.failed_at(self._current):
            return Choice(self._current, traced=self._wants_trace())
        usable = self._breaker.usable(self._names, excluded)
        best = min(usable, key=lambda name: (self._rank(name, self._estimator.expected(name)), name != self._current))
        if best != self._current:
            return self._change(best, here)
        self._probe = self._worth_trying(usable, here, mine)
        if self._probe is None:
            return Choice(self._current, traced=self._wants_trace())
        reason = f"{self._probe} may have recovered"
        return Choice(self._probe, reason, traced=len(self._facts[self._probe].busy) > 1, probing=True)

    def observe(self, observation: Observation) -> None:
        """Learns from a run."""
        _note(self._breaker, observation)
        self._run += 1
        if observation.plan == self._probe:
            self._probed[observation.plan] = self._run
            self._explore_at = self._run + EXPLORING_RUNS
        if observation.failed:
            self._promising = False
            return
        seconds = observation.seconds
        if observation.plan == self._probe:
            here = self._estimator.expected(self._current)
            self._credit = min(0.0, self._credit - max(0.0, seconds - here))
            self._promising = self._rank(observation.plan, seconds) < self._rank(self._current, here)
        else:
            self._credit += PROBING * seconds
        self._tracing = max(0.0, self._tracing - TRACING * seconds)
        if observation.busy is not None and observation.plan != self._probe:
            self._tracing += seconds
        self._estimator.observe(observation)
        if observation.plan == self._probe:
            self._unbeaten = self._best_of_others()

    def _rank(self, name: str, seconds: float) -> Rank:
        return self._goal.rank(self._facts[name], seconds, staying=name == self._current)

    def _best_of_others(self) -> Rank:
        """What no other plan can be better than."""
        ranks = (self._rank(n, self._estimator.undisturbed(n)) for n in self._names if n != self._current)
        return min(ranks, default=(float("inf"),))

    def _change(self, name: str, here: float) -> Choice:
        before, self._current = self._current, name
        self._unbeaten = self._best_of_others()
        self._credit, self._tracing, self._promising = 0.0, 0.0, False
        reason = _failure_reason(before, name, self._breaker) or (
            f"{before} takes {here * 1e3:.3g} ms, {name} is expected to take {self._estimator.expected(name) * 1e3:.3g} ms"
        )
        return Choice(name, reason)

    def _worth_trying(self, usable: Sequence[str], here: float, mine: Rank) -> str | None:
        """A plan that would be better if all was well that nobody looks at, if there is time to find out."""
        seen = self._facts[self._current].busy
        hopeful = [n for n in usable if n != self._current and self._rank(n, self._estimator.hoped(n, seen)) < mine]
        if not hopeful and self._run >= self._explore_at:
            hopeful = [n for n in usable if n != self._current]
        if not hopeful:
            return None
        last = max(self._probed, key=lambda name: self._probed[name], default=None)
        if self._promising and last in hopeful:
            return last
        name = min(hopeful, key=lambda n: self._probed.get(n, 0))
        loss = max(0.0, self._estimator.expected(name) - here)
        rested = last is None or self._run - self._probed[last] >= PROBE_RUNS
        return name if rested and loss <= self._credit else None

    def _wants_trace(self) -> bool:
        """Whether the current plan is slow and it is not known, or not for sure any more, which of its processors it is."""
        name = self._current
        if len(self._facts[name].busy) < 2 or self._estimator.slowness(name) < SLOWED:
            return False
        if self._estimator.is_diagnosed(name):
            return self._tracing <= 0.0
        return self._tracing < max(_TRACED_RUNS * self._estimator.expected(name), 3 * SPAN)


def _note(breaker: CircuitBreaker, run: Observation) -> None:
    if run.failed:
        breaker.failed(run.plan, run.seconds, run.lost)
    else:
        breaker.ran(run.plan, run.seconds)


def _failure_reason(before: str, now: str, breaker: CircuitBreaker) -> str:
    """Why a plan was changed, if that is because one failed."""
    if before == now:
        return ""
    if lost := breaker.failed_at(before):
        return f"{lost} failed"
    return f"{now} may work again" if breaker.failed_at(now) else ""


def parse_policy(text: str) -> str | float:
    """What `fixed`, `adaptive` or `deadline=12ms` stands for: its name, or seconds.

    Raises:
        UsageError: it is none of them.
    """
    kind, equals, value = text.strip().partition("=")
    if kind in ("fixed", "adaptive") and not equals:
        return kind
    if kind == "deadline" and equals:
        return parse_milliseconds(value) * 1e-3
    raise UsageError(f"policy {text!r} is not known; write fixed, adaptive, or deadline=12ms")


def make_policy(
    kind: str | float, names: Sequence[str], facts: Sequence[PlanFacts], uses: Mapping[str, Collection[str]]
) -> Policy:
    """The policy that `parse_policy` has read.

    Args:
        kind: which.
        names: of the plans, in the order of `fixed`.
        facts: what each of them takes undisturbed; `fixed` needs none.
        uses: plan -> the parts that it needs and others may need, too: if one fails, plans without it are better.
    """
    if kind == "fixed":
        return Fixed(names, uses)
    return Watching(facts, Fastest() if isinstance(kind, str) else Deadline(kind), uses)
