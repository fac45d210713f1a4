"""Circuit breaker: which plans failed, the part that failed, and when they are tried again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FIRST_RUNS = 8
MOST_DOUBLINGS = 7
SHARE = 0.02
"""Largest share of the time that failed attempts may take."""


class _Cause(NamedTuple):
    """What failed: a part that several plans may use, or a plan if no part is known to have failed."""

    name: str
    is_part: bool


@dataclass
class _Failure:
    attempts: int
    run: int  # number of the run from which it may be tried again
    seconds: float  # and total seconds of runs from which it may


class CircuitBreaker:
    """Plans that use a failed part are not used for some runs.

    The number of runs doubles with each further failure, and is larger if the failed attempt took long.
    """

    def __init__(self, uses: Mapping[str, Collection[str]]) -> None:
        """`uses` has the parts that each plan needs. Plans without an entry share no part with others."""
        self._uses = uses
        self._failures: dict[_Cause, _Failure] = {}
        self._runs = 0
        self._seconds = 0.0

    def usable(self, plans: Sequence[str], excluded: Collection[str]) -> list[str]:
        """The plans that are neither excluded nor blocked; if there are none, the one that has failed least often.

        `excluded` is a proper subset of all `plans`.
        """
        left = [plan for plan in plans if plan not in excluded]
        awake = [plan for plan in left if not any(self._is_blocked(failure) for failure in self._known(plan).values())]
        return awake or [min(left, key=lambda plan: max((f.attempts, f.run) for f in self._known(plan).values()))]

    def failed_at(self, plan: str) -> str:
        """The part of a plan, or the plan itself, that has failed and has not worked since; "" if there is none."""
        return next((cause.name for cause in self._known(plan)), "")

    def ran(self, plan: str, seconds: float) -> None:
        """Records a successful run: all parts of its plan work."""
        self._pass(seconds)
        for cause in self._known(plan):
            del self._failures[cause]

    def failed(self, plan: str, seconds: float, lost: Collection[str] = ()) -> None:
        """Records a failed attempt.

        Args:
            plan: that failed.
            seconds: duration of the attempt.
            lost: parts that made it fail; empty if unknown, which blames the plan.
        """
        self._pass(seconds)
        parts = [_Cause(part, is_part=True) for part in self._uses.get(plan, ()) if part in lost]
        for cause in parts or [_Cause(plan, is_part=False)]:
            attempts = self._failures[cause].attempts + 1 if cause in self._failures else 1
            factor = 1 << min(attempts - 1, MOST_DOUBLINGS)
            self._failures[cause] = _Failure(
                attempts, self._runs + FIRST_RUNS * factor, self._seconds + seconds / SHARE
            )

    def _known(self, plan: str) -> dict[_Cause, _Failure]:
        """The recorded failures of a plan and its parts."""
        if not self._failures:
            return {}
        parts = [_Cause(part, is_part=True) for part in self._uses.get(plan, ())]
        return {
            cause: self._failures[cause] for cause in (*parts, _Cause(plan, is_part=False)) if cause in self._failures
        }

    def _pass(self, seconds: float) -> None:
        self._runs += 1
        self._seconds += seconds

    def _is_blocked(self, failure: _Failure) -> bool:
        return self._runs < failure.run or self._seconds < failure.seconds
