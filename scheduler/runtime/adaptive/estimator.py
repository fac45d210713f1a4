"""What plans are expected to take now, from what runs took of late."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.scheduler.runtime.adaptive.policy import Observation, PlanFacts
from nnstretch.scheduler.runtime.adaptive.recent import Recent

SLOWED = 1.15
"""From this many times its undisturbed time on, something counts as slowed."""
_FASTER = 0.97
_LEARNING = 0.05  # how far what counts as undisturbed follows runs that are faster


@dataclass
class _Known:
    """A plan.

    Attributes:
        facts: as they were given.
        seconds: of a run that nothing disturbs, as far as is known now.
        recent: its last runs.
        blame: how many times as long it takes with its processors as they are.
        blamed: the same as it was at its last run.
        settled: whether its last traced run said the same of its processors as those before.
    """

    facts: PlanFacts
    seconds: float
    recent: Recent = field(default_factory=Recent)
    blame: float = 1.0
    blamed: float = 1.0
    settled: bool = True


class LatencyEstimator:
    """How slow processors are, and what that makes of the plans that use them.

    A plan that was run is known by its own runs. Those of another plan tell of its processors too: a processor that takes
    twice as long makes every plan slower that uses it, by as much as it is busy there. Which processor slows a plan of
    several is only known from a run that was traced.
    """

    def __init__(self, plans: Sequence[PlanFacts]) -> None:
        """Nothing is disturbed, as far as is known."""
        self._plans = {plan.name: _Known(plan, plan.seconds) for plan in plans}
        self._processors = {name: Recent() for plan in plans for name in plan.busy}
        self._slowness = dict.fromkeys(self._processors, 1.0)

    def observe(self, run: Observation) -> None:
        """Takes note of a run that was answered."""
        plan = self._plans[run.plan]
        if not _alike(plan.blame, plan.blamed):
            plan.recent = Recent()  # what it holds is from when its processors were otherwise
        plan.recent.add(run.seconds, plan.seconds)
        slowness = plan.recent.slowness
        if slowness < _FASTER and plan.recent.is_full:
            plan.seconds *= 1.0 - _LEARNING * (1.0 - slowness)
        if run.busy is not None:
            times = {name: (seconds, plan.facts.busy[name]) for name, seconds in run.busy.items()}
            self._tell(times)
            plan.settled = all(_alike(a / b, self._slowness[name]) for name, (a, b) in times.items())
        elif self._tells(plan):
            self._tell(dict.fromkeys(plan.facts.busy, (run.seconds, plan.seconds)))
        plan.blamed = plan.blame

    def slowness(self, name: str) -> float:
        """How many times as long as undisturbed a plan's recent runs took."""
        return self._plans[name].recent.slowness

    def undisturbed(self, name: str) -> float:
        """Seconds of a run that nothing disturbs."""
        return self._plans[name].seconds

    def expected(self, name: str) -> float:
        """Seconds that a run is expected to take: as its last runs, less as its processors have recovered since.

        If these have become slower, it takes what they make of it, unless its last runs were slower still for that reason.
        """
        plan = self._plans[name]
        now = plan.recent.slowness * min(1.0, plan.blame / plan.blamed)
        return plan.seconds * (max(now, plan.blame) if plan.blame > plan.blamed * SLOWED else now)

    def hoped(self, name: str, seen: Collection[str]) -> float:
        """As `expected`, but if all processors that are not among `seen` are undisturbed."""
        plan = self._plans[name]
        return plan.seconds * _blame(plan, {n: s for n, s in self._slowness.items() if n in seen})

    def is_diagnosed(self, name: str) -> bool:
        """Whether what is known of a plan's processors explains how slow it is."""
        plan = self._plans[name]
        return plan.settled and plan.recent.slowness < plan.blame * SLOWED

    @staticmethod
    def _tells(plan: _Known) -> bool:
        """Whether a plan's last runs, of which only the seconds are known, say something new of each of its processors."""
        if plan.recent.slowness < SLOWED:
            return plan.blame >= SLOWED
        return len(plan.facts.busy) == 1

    def _tell(self, times: Mapping[str, tuple[float, float]]) -> None:
        """Takes note of seconds that processors took, with those that they take undisturbed."""
        for name, (seconds, undisturbed) in times.items():
            self._processors[name].add(seconds, undisturbed)
            self._slowness[name] = self._processors[name].slowness
        for plan in self._plans.values():
            plan.blame = _blame(plan, self._slowness)


def _alike(one: float, other: float) -> bool:
    return other / SLOWED < one < other * SLOWED


def _blame(plan: _Known, slowness: Mapping[str, float]) -> float:
    """How many times as long a plan takes whose processors are so slow: as the one says that holds it up most."""
    shares = {name: min(1.0, busy / plan.seconds) for name, busy in plan.facts.busy.items()}
    return max(1.0, *(1.0 + share * (slowness.get(name, 1.0) - 1.0) for name, share in shares.items()))
