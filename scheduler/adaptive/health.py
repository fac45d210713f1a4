"""Which plans fail, and when they are worth another attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

FIRST_RUNS = 8
MOST_DOUBLINGS = 7
SHARE = 0.02
"""Share of the time that failed attempts may take."""


@dataclass
class _Failure:
    attempts: int
    run: int  # from which on it may be tried again
    seconds: float  # likewise, in seconds of all runs


class Health:
    """Plans that failed rest for some runs: twice as many after each failure on, and more if failing takes long."""

    def __init__(self) -> None:
        """Nothing has failed."""
        self._failures: dict[str, _Failure] = {}
        self._runs = 0
        self._seconds = 0.0

    def usable(self, plans: Sequence[str], excluded: Collection[str]) -> list[str]:
        """The plans that are not excluded and do not rest; if that is none, the one that has failed least often.

        Args:
            plans: all plans.
            excluded: some of them, not all.
        """
        left = [plan for plan in plans if plan not in excluded]
        if not self._failures:
            return left
        awake = [plan for plan in left if not self._rests(plan)]
        return awake or [min(left, key=lambda plan: (self._failures[plan].attempts, self._failures[plan].run))]

    def has_failed(self, plan: str) -> bool:
        """Whether its last attempt failed."""
        return plan in self._failures

    def ran(self, plan: str, seconds: float) -> None:
        """A run was answered."""
        self._pass(seconds)
        self._failures.pop(plan, None)

    def failed(self, plan: str, seconds: float) -> None:
        """An attempt was not."""
        self._pass(seconds)
        attempts = self._failures[plan].attempts + 1 if plan in self._failures else 1
        factor = 1 << min(attempts - 1, MOST_DOUBLINGS)
        self._failures[plan] = _Failure(attempts, self._runs + FIRST_RUNS * factor, self._seconds + seconds / SHARE)

    def _pass(self, seconds: float) -> None:
        self._runs += 1
        self._seconds += seconds

    def _rests(self, plan: str) -> bool:
        failure = self._failures.get(plan)
        return failure is not None and (self._runs < failure.run or self._seconds < failure.seconds)
