"""Measured runs of the network without branches, which decide where predictions are too close to each other.

Designs that run are tuned, so that their latency is known. A plan without branches is predicted, from routines with default
parameters and from learned costs. Beside a measured design it may look ahead or behind by what tuning saves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.branching.latency.prediction import PlanRunner
from nnstretch.branching.search.unbranched import UnbranchedPlan

CLOSE = 0.1
"""Relative difference below which the order of two predictions is uncertain."""


@dataclass(eq=False)
class PlanRuns:
    """Runs plans without branches, each once.

    Attributes:
        runner: runs a plan; tuning it takes seconds.
        progress: called before every run.
        end: `time.monotonic()` at which no further run begins.
        measured_ms: milliseconds of the plans that ran, by `place_of`; `inf` for those that cannot.
    """

    runner: PlanRunner
    progress: Callable[[], None]
    end: float = math.inf
    measured_ms: dict[str, float] = field(default_factory=dict)

    def compared(self, plans: Sequence[UnbranchedPlan], designs: Sequence[float]) -> list[UnbranchedPlan]:
        """The plans, one per place; those that compete for the first place have measured seconds.

        Plans run in the order of their seconds, until those that are close to the fastest way have run. No plan runs if
        nothing is close to it. Once one ran, the fastest one runs as well, since runs may be slower than all predictions.

        Args:
            plans: without branches.
            designs: seconds of the fastest branched design, and those over its share of the MACs. The second are what it
                needs to be ahead of its equal-MACs control.
        """
        fastest: dict[str, UnbranchedPlan] = {}
        for plan in sorted(plans, key=lambda one: one.seconds):
            fastest.setdefault(place_of(plan), plan)
        known = {place: self._known(place, plan) for place, plan in fastest.items()}
        while time.monotonic() < self.end:
            place = self._next(known, designs)
            if place is None:
                break
            self.progress()
            plan = known[place]
            self.measured_ms[place] = 1e3 * self.runner(plan.processor, plan.pool)
            known[place] = self._known(place, plan)
        return list(known.values())

    def _known(self, place: str, plan: UnbranchedPlan) -> UnbranchedPlan:
        """A plan with its measured seconds, if it ran."""
        ms = self.measured_ms.get(place, math.inf)
        return replace(plan, seconds=1e-3 * ms, is_measured=True) if math.isfinite(ms) else plan

    def _next(self, plans: dict[str, UnbranchedPlan], designs: Sequence[float]) -> str | None:
        """The place of the fastest plan that did not run and is close to the fastest way, if it has to run."""
        least = min([*(plan.seconds for plan in plans.values()), max(designs, default=math.inf)], default=math.inf)
        close = [place for place, plan in plans.items() if plan.seconds <= (1 + CLOSE) * least]
        contenders = len(close) + sum(least / (1 + CLOSE) <= seconds <= (1 + CLOSE) * least for seconds in designs)
        waiting = [place for place in close if place not in self.measured_ms]
        is_open = contenders > 1 or any(plan.is_measured for plan in plans.values())
        return min(waiting, key=lambda place: plans[place].seconds, default=None) if is_open else None


def place_of(plan: UnbranchedPlan) -> str:
    """What is equal for plans that run in the same way."""
    return plan.pool or ("several" if plan.processor is None else f"processor {plan.processor}")
