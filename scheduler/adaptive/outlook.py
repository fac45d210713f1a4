"""What plans are expected to take now, from what runs took of late."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.scheduler.adaptive.policy import Observation, PlanFacts
from nnstretch.scheduler.adaptive.recent import Recent

SLOWED = 1.15
"""From this many times its undisturbed time on, something counts as slowed."""
_FASTER = 0.97


@dataclass
class _Known:
    """A plan: undisturbed seconds, its recent runs, and what its processors had to do with their slowness at the last one."""

    facts: PlanFacts
    seconds: float
    recent: Recent = field(default_factory=Recent)
    blame: float = 1.0


class Outlook:
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
        change = self._blame(plan.facts, self._slowness) / plan.blame
        if not 1.0 / SLOWED < change < SLOWED:
            plan.recent = Recent()  # its runs are from when its processors were otherwise
        plan.recent.add(run.seconds, plan.seconds)
        slowness = plan.recent.slowness
        if slowness < _FASTER and plan.recent.is_full:
            plan.seconds *= slowness
        if run.busy is not None:
            for name, seconds in run.busy.items():
                self._tell(name, seconds, plan.facts.busy[name])
        elif len(plan.facts.busy) == 1 or slowness < SLOWED:
            for name in plan.facts.busy:
                self._tell(name, run.seconds, plan.seconds)
        plan.blame = self._blame(plan.facts, self._slowness)

    def runs(self, name: str) -> int:
        """How many recent runs of a plan are known."""
        return len(self._plans[name].recent)

    def slowness(self, name: str) -> float:
        """How many times as long as undisturbed a plan's recent runs took."""
        return self._plans[name].recent.slowness

    def undisturbed(self, name: str) -> float:
        """Seconds of a run that nothing disturbs."""
        return self._plans[name].seconds

    def expected(self, name: str) -> float:
        """Seconds that a run is expected to take: as its last runs, changed as its processors have since."""
        plan = self._plans[name]
        change = self._blame(plan.facts, self._slowness) / plan.blame
        return plan.seconds * plan.recent.slowness * change

    def hoped(self, name: str, seen: Collection[str]) -> float:
        """As `expected`, but if all processors that are not among `seen` are undisturbed."""
        plan = self._plans[name]
        return plan.seconds * self._blame(plan.facts, {n: s for n, s in self._slowness.items() if n in seen})

    def is_diagnosed(self, name: str) -> bool:
        """Whether the processors of a plan explain how slow it is."""
        plan = self._plans[name]
        return plan.recent.slowness < plan.blame * SLOWED

    @staticmethod
    def _blame(plan: PlanFacts, slowness: Mapping[str, float]) -> float:
        """How many times as long a plan takes whose processors are so slow: as that one has it which holds it up most."""
        return max(
            1.0,
            *(
                1.0 + min(1.0, busy / plan.seconds) * (slowness.get(name, 1.0) - 1.0)
                for name, busy in plan.busy.items()
            ),
        )

    def _tell(self, name: str, seconds: float, undisturbed: float) -> None:
        recent = self._processors[name]
        recent.add(seconds, undisturbed)
        self._slowness[name] = recent.slowness
