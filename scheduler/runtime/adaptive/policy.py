"""What a policy is told and what it answers. Policies know plans by name and how long runs took; they know no device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PlanFacts:
    """A plan as it is when nothing disturbs it.

    Attributes:
        name: of the plan.
        seconds: that a run takes.
        busy: processor -> seconds of a run in which it computes; all processors of the plan are in it.
    """

    name: str
    seconds: float
    busy: Mapping[str, float]


@dataclass(frozen=True)
class Observation:
    """What became of a run.

    Attributes:
        plan: that was run.
        seconds: that it took, or took to fail.
        busy: processor -> seconds that it computed, of a run that was traced.
        failed: whether there is no answer.
        lost: parts of the plan, as the policy was told of them, that made it fail; empty if that is not known.
    """

    plan: str
    seconds: float
    busy: Mapping[str, float] | None = None
    failed: bool = False
    lost: Collection[str] = ()


@dataclass(frozen=True)
class Choice:
    """Which plan the next run takes.

    Attributes:
        plan: its name.
        reason: why it is not the one before, in a few words; empty if it is, or if there was none.
        traced: whether the run shall tell what each processor took, which costs a little.
        probing: whether this run is to find out how fast a plan has become; the run after it may take the former plan again.
    """

    plan: str
    reason: str = ""
    traced: bool = False
    probing: bool = False


class Policy(Protocol):
    """Decides which plan a run takes. Not thread-safe; runs are told in the order of their choices."""

    def choose(self, excluded: frozenset[str] = frozenset()) -> Choice:
        """The plan of the next run.

        Args:
            excluded: plans that failed with the inputs of this run; not all there are.
        """

    def observe(self, observation: Observation) -> None:
        """Takes note of what became of the run that was chosen last."""
