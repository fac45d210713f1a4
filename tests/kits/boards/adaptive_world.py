"""A simulated world for policies: plans on processors that slow down and fail as a test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.scheduler.runtime.adaptive.estimator import Observation, PlanFacts
from nnstretch.scheduler.runtime.adaptive.policies import PlanChoice, Policy


def facts(**plans: Mapping[str, float]) -> list[PlanFacts]:
    """Plans from milliseconds on each processor; a run takes as long as the slowest processor."""
    return [
        PlanFacts(name, max(busy.values()) * 1e-3, {p: ms * 1e-3 for p, ms in busy.items()})
        for name, busy in plans.items()
    ]


def uses(plans: Sequence[PlanFacts]) -> dict[str, set[str]]:
    """The processors of each plan."""
    return {plan.name: set(plan.busy) for plan in plans}


THREE = facts(both={"C": 5.0, "G": 4.8}, C={"C": 9.0}, G={"G": 9.5})


@dataclass
class World:
    """Runs the plans that a policy chooses.

    Attributes:
        plans: facts without disturbance.
        slowness: processor -> current factor on its time; 1 by default.
        broken: processors that fail.
        named: whether a failure names its processors.
        noise: relative standard deviation of a run's time.
        attempts: choices that succeeded, with their seconds.
        failures: plans that were attempted and failed.
    """

    plans: list[PlanFacts]
    slowness: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    named: bool = True
    noise: float = 0.0
    seed: int = 0
    attempts: list[tuple[PlanChoice, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def seconds(self, plan: PlanFacts) -> float:
        """Seconds of a run now, without noise."""
        return max(seconds * self.slowness.get(name, 1.0) for name, seconds in plan.busy.items())

    def best(self) -> float:
        """Seconds of the fastest plan that works now."""
        return min(self.seconds(plan) for plan in self.plans if not self.broken & set(plan.busy))

    def run(self, policy: Policy, times: int = 1) -> list[PlanChoice]:
        """Runs as a session does; returns the choices that succeeded."""
        return [self._run(policy) for _ in range(times)]

    def _run(self, policy: Policy) -> PlanChoice:
        failed: set[str] = set()
        while True:
            choice = policy.choose(frozenset(failed))
            assert choice.plan not in failed
            plan = next(p for p in self.plans if p.name == choice.plan)
            factor = max(0.5, 1.0 + self.noise * self._rng.standard_normal())
            seconds = self.seconds(plan) * factor
            if lost := self.broken & set(plan.busy):
                failed.add(choice.plan)
                self.failures.append(choice.plan)
                policy.observe(Observation(choice.plan, seconds, failed=True, lost=lost if self.named else ()))
                continue
            busy = {n: s * self.slowness.get(n, 1.0) * factor for n, s in plan.busy.items()}
            policy.observe(Observation(choice.plan, seconds, busy if choice.traced else None))
            self.attempts.append((choice, seconds))
            return choice
