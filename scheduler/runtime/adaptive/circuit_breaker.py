"""Which plans fail, whose fault that is, and when they are worth another attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FIRST_RUNS = 8
MOST_DOUBLINGS = 7
SHARE = 0.02
"""Share of the time that failed attempts may take."""


class _Cause(NamedTuple):
    """What failed: a part that plans may have in common, or a plan, where no part is to blame."""

    name: str
    is_part: bool


@dataclass
class _Failure:
    attempts: int
    run: int  # from which on it may be tried again
    seconds: float  # likewise, in seconds of all runs


class CircuitBreaker:
    """What failed rests for some runs, and with it all plans that use it.

    That is twice as many after each failure on, and more if failing takes long.
    """

    def __init__(self, uses: Mapping[str, Collection[str]]) -> None:
        """Nothing has failed.

        Args:
            uses: plan -> the parts that it needs. A plan that is not there shares none with others.
        """
        self._uses = uses
        self._failures: dict[_Cause, _Failure] = {}
        self._runs = 0
        self._seconds = 0.0

    def usable(self, plans: Sequence[str], excluded: Collection[str]) -> list[str]:
        """The plans that are not excluded and do not rest; if that is none, the one that has failed least often.

        Args:
            plans: all plans.
            excluded: some of them, not all.
        """
        left = [plan for plan in plans if plan not in excluded]
        awake = [plan for plan in left if not any(self._rests(failure) for failure in self._known(plan).values())]
        return awake or [min(left, key=lambda plan: max((f.attempts, f.run) for f in self._known(plan).values()))]

    def failed_at(self, plan: str) -> str:
        """What of a plan has failed and was not seen to work since: the part, or the plan itself; "" if nothing has."""
        return next((cause.name for cause in self._known(plan)), "")

    def ran(self, plan: str, seconds: float) -> None:
        """A run was answered, so all of its plan works."""
        self._pass(seconds)
        for cause in self._known(plan):
            del self._failures[cause]

    def failed(self, plan: str, seconds: float, lost: Collection[str] = ()) -> None:
        """An attempt was not, because of these of the plan's parts; if none is known, it is the plan that fails."""
        self._pass(seconds)
        parts = [_Cause(part, is_part=True) for part in self._uses.get(plan, ()) if part in lost]
        for cause in parts or [_Cause(plan, is_part=False)]:
            attempts = self._failures[cause].attempts + 1 if cause in self._failures else 1
            factor = 1 << min(attempts - 1, MOST_DOUBLINGS)
            self._failures[cause] = _Failure(
                attempts, self._runs + FIRST_RUNS * factor, self._seconds + seconds / SHARE
            )

    def _known(self, plan: str) -> dict[_Cause, _Failure]:
        """What has failed of a plan."""
        if not self._failures:
            return {}
        parts = [_Cause(part, is_part=True) for part in self._uses.get(plan, ())]
        return {
            cause: self._failures[cause] for cause in (*parts, _Cause(plan, is_part=False)) if cause in self._failures
        }

    def _pass(self, seconds: float) -> None:
        self._runs += 1
        self._seconds += seconds

    def _rests(self, failure: _Failure) -> bool:
        return self._runs < failure.run or self._seconds < failure.seconds
