"""Policies: a fixed order of plans, the currently fastest plan, or the one with the fewest processors that meets a deadline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nnstretch.errors import UsageError
from nnstretch.scheduler.runtime.adaptive.circuit_breaker import CircuitBreaker
from nnstretch.scheduler.runtime.adaptive.estimator import SLOWED, SPAN, LatencyEstimator, Observation, PlanFacts
from nnstretch.support.durations import parse_milliseconds

GAIN = 0.9
"""A plan replaces the one in use if it takes less than this share of its time."""
PROBING = 0.02
"""Largest share of the time that probing slower plans may lose."""
PROBE_RUNS = 8
"""Smallest number of runs between two probes."""
EXPLORING_RUNS = 500
"""Runs after which any plan may be probed: its known time may have been measured under disturbance."""
TRACING = 0.05
"""Largest share of the time for traced runs while a plan stays slow."""
_TRACED_RUNS = 12

Rank = tuple[float, ...]
"""Smaller is better."""


@dataclass(frozen=True)
class PlanChoice:
    """The plan of the next run.

    Attributes:
        plan: its name.
        reason: why the plan has changed, in a few words; empty if it has not.
        traced: whether to trace the run, which shows the times of processors and costs a little.
        probing: whether the run only measures how fast a plan is now. The plan in use stays the same.
    """

    plan: str
    reason: str = ""
    traced: bool = False
    probing: bool = False


class Policy(Protocol):
    """Chooses the plan of each run. Not thread-safe; runs are observed in the order of their choices."""

    def choose(self, excluded: frozenset[str] = frozenset()) -> PlanChoice:
        """The plan of the next run.

        Args:
            excluded: plans that failed with the inputs of this run; never all plans.
        """

    def observe(self, observation: Observation) -> None:
        """Observes the outcome of the run that was chosen last."""


class Goal(Protocol):
    """Ranks plans."""

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """The rank of a plan.

        Args:
            plan: the plan.
            seconds: of a run with it.
            staying: whether it is in use, which improves its rank.
        """


class Fastest:
    """Ranks plans by their latency."""

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """Seconds; plans that are not in use count as slower."""
        return (seconds if staying else seconds / GAIN,)


@dataclass(frozen=True)
class Deadline:
    """Ranks plans within the deadline by their number of processors and busy time, others by latency."""

    limit: float
    """Seconds of a run."""

    def rank(self, plan: PlanFacts, seconds: float, *, staying: bool) -> Rank:
        """Plans within the deadline first; plans that are not in use need a margin."""
        needed = seconds if staying else seconds / GAIN
        if needed > self.limit:
            return (1.0, needed, 0.0)
        busy = sum(plan.busy.values())
        return (0.0, float(len(plan.busy)), busy if staying else busy / GAIN)


class Fixed:
    """The first plan in a fixed order that works."""

    def __init__(self, names: Sequence[str], uses: Mapping[str, Collection[str]]) -> None:
        """Begins with the first of `names`; `uses` has the parts that each plan needs and may share with others."""
        self._names = list(names)
        self._breaker = CircuitBreaker(uses)
        self._current = self._names[0]

    def choose(self, excluded: frozenset[str] = frozenset()) -> PlanChoice:
        """The first plan that works."""
        before, self._current = self._current, self._breaker.usable(self._names, excluded)[0]
        return PlanChoice(self._current, _failure_reason(before, self._current, self._breaker))

    def observe(self, observation: Observation) -> None:
        """Records failures."""
        _record(self._breaker, observation)


class Adaptive:
    """The plan that is best by recent runs; other plans are probed now and then.

    A slow plan of several processors is traced for a few runs to find the slow processor. The speed of
    processors that the current plan does not use is unknown. If a plan would be better with those
    undisturbed, and every `EXPLORING_RUNS`, it is probed by a single run. Probes cost at most `PROBING` of
    the time.
    """

    def __init__(self, plans: Sequence[PlanFacts], goal: Goal, uses: Mapping[str, Collection[str]]) -> None:
        """Begins with the plan that is best undisturbed; the first of equals.

        Args:
            plans: at least one, with distinct names.
            goal: ranks plans.
            uses: plan -> the parts that it needs; plans may share them.
        """
        self._facts = {plan.name: plan for plan in plans}
        self._names = list(self._facts)
        self._goal = goal
        self._estimator = LatencyEstimator(plans)
        self._breaker = CircuitBreaker(uses)
        self._current = min(plans, key=lambda plan: goal.rank(plan, plan.seconds, staying=False)).name
        self._unbeaten = self._best_of_others()
        self._run = 0
        self._credit = 0.0  # seconds that probes may lose, saved since the last probe or switch
        self._tracing = 0.0  # seconds of traced runs beyond their share
        self._probe: str | None = None
        self._probed: dict[str, int] = {}
        self._explore_at = EXPLORING_RUNS
        self._promising = False

    def choose(self, excluded: frozenset[str] = frozenset()) -> PlanChoice:
        """The plan with the best expected rank, or a plan to probe."""
        self._probe = None
        here = self._estimator.expected(self._current)
        mine = self._rank(self._current, here)
        stays = mine <= self._unbeaten and self._run < self._explore_at
        if stays and not excluded and not self._breaker.failed_at(self._current):
            return PlanChoice(self._current, traced=self._wants_trace())
        usable = self._breaker.usable(self._names, excluded)
        best = min(usable, key=lambda name: (self._rank(name, self._estimator.expected(name)), name != self._current))
        if best != self._current:
            return self._change(best, here)
        self._probe = self._worth_trying(usable, here, mine)
        if self._probe is None:
            return PlanChoice(self._current, traced=self._wants_trace())
        reason = f"{self._probe} may have recovered"
        return PlanChoice(self._probe, reason, traced=len(self._facts[self._probe].busy) > 1, probing=True)

    def observe(self, observation: Observation) -> None:
        """Updates estimates, failures and the time that probes may lose."""
        _record(self._breaker, observation)
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
        """A bound: the best rank of other plans if undisturbed."""
        ranks = (self._rank(n, self._estimator.undisturbed(n)) for n in self._names if n != self._current)
        return min(ranks, default=(float("inf"),))

    def _change(self, name: str, here: float) -> PlanChoice:
        before, self._current = self._current, name
        self._unbeaten = self._best_of_others()
        self._credit, self._tracing, self._promising = 0.0, 0.0, False
        reason = _failure_reason(before, name, self._breaker) or (
            f"{before} takes {here * 1e3:.3g} ms, {name} is expected to take {self._estimator.expected(name) * 1e3:.3g} ms"
        )
        return PlanChoice(name, reason)

    def _worth_trying(self, usable: Sequence[str], here: float, mine: Rank) -> str | None:
        """A plan that would be better if the unused processors were undisturbed, if there is time to probe it."""
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
        """Whether the current plan is slow and the slow processor is unknown or no longer certain."""
        name = self._current
        if len(self._facts[name].busy) < 2 or self._estimator.slowness(name) < SLOWED:
            return False
        if self._estimator.is_diagnosed(name):
            return self._tracing <= 0.0
        return self._tracing < max(_TRACED_RUNS * self._estimator.expected(name), 3 * SPAN)


def _record(breaker: CircuitBreaker, run: Observation) -> None:
    if run.failed:
        breaker.failed(run.plan, run.seconds, run.lost)
    else:
        breaker.ran(run.plan, run.seconds)


def _failure_reason(before: str, now: str, breaker: CircuitBreaker) -> str:
    """Why the plan changed, if a failure is the reason."""
    if before == now:
        return ""
    if lost := breaker.failed_at(before):
        return f"{lost} failed"
    return f"{now} may work again" if breaker.failed_at(now) else ""


def parse_policy(text: str) -> str | float:
    """Parses `fixed`, `adaptive` or `deadline=12ms`: the name, or the deadline in seconds.

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
    """Makes the policy that `parse_policy` has parsed.

    Args:
        kind: result of `parse_policy`.
        names: of the plans, in the order of `fixed`.
        facts: undisturbed times of the plans; `fixed` needs none.
        uses: plan -> the parts that it needs; plans may share them. If a part fails, plans without it are preferred.
    """
    if kind == "fixed":
        return Fixed(names, uses)
    return Adaptive(facts, Fastest() if isinstance(kind, str) else Deadline(kind), uses)
