"""The interface of policies, which choose the plan of each run. Policies know names of plans and times of runs, no devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PlanFacts:
    """Undisturbed times of a plan.

    Attributes:
        name: of the plan.
        seconds: of a run.
        busy: processor -> seconds that it computes in a run, for all processors of the plan.
    """

    name: str
    seconds: float
    busy: Mapping[str, float]


@dataclass(frozen=True)
class Observation:
    """The outcome of a run.

    Attributes:
        plan: its plan.
        seconds: its duration, up to the failure if it failed.
        busy: processor -> seconds that it computed; None if the run was not traced.
        failed: whether it failed.
        lost: parts of the plan that made it fail; empty if unknown.
    """

    plan: str
    seconds: float
    busy: Mapping[str, float] | None = None
    failed: bool = False
    lost: Collection[str] = ()


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
