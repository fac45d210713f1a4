"""A study as reports see it, without Optuna's classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nnstretch.sweeps.workers.leases import GIVEN_UP

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

STATES = ("running", "complete", "pruned", "fail", "waiting")
"""States of a trial, by Optuna's number."""
METRICS = "study:metric_names"
"""System attribute of a study with the names of its values."""
_CONSTRAINTS = "constraints"
_MAXIMISED = 2  # Optuna's number of a direction


@dataclass(slots=True)
class TrialRecord:
    """A trial.

    Attributes:
        number: in the study.
        state: one of `STATES`.
        values: of the objectives; empty without any.
        params: name -> value.
        distributions: name -> where the value comes from.
        attrs: what its worker noted.
        system_attrs: what Optuna noted.
        begin: when it began; None: it waits.
        end: when it ended.
    """

    number: int
    state: str
    values: Sequence[float] = ()
    params: dict[str, Any] = field(default_factory=dict)
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)
    begin: datetime | None = None
    end: datetime | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether it does not count: its worker died and it was queued again, or it was one too many."""
        return self.state == "fail" and GIVEN_UP in self.attrs

    @property
    def is_complete(self) -> bool:
        """Whether it has finite values."""
        return self.state == "complete" and bool(self.values) and all(map(math.isfinite, self.values))

    @property
    def is_feasible(self) -> bool:
        """Whether it keeps all its constraints."""
        for name, value in self.system_attrs.items():
            if name == _CONSTRAINTS:
                if any(one > 0 for one in value):
                    return False
            elif name.startswith(f"{_CONSTRAINTS}:") and value > 0:
                return False
        return True


@dataclass
class StudyRecord:
    """A study.

    Attributes:
        name: in its storage.
        directions: of the objectives, as Optuna's numbers.
        attrs: what its maker noted.
        system_attrs: what Optuna noted.
        trials: all of them, by number.
    """

    name: str
    directions: Sequence[int]
    attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)
    trials: list[TrialRecord] = field(default_factory=list)

    @property
    def objectives(self) -> list[str]:
        """Names of the values."""
        return self.system_attrs.get(METRICS) or [f"objective {number}" for number in range(len(self.directions))]

    @property
    def signs(self) -> list[int]:
        """1 for an objective that is minimised, -1 for one that is maximised."""
        return [-1 if direction == _MAXIMISED else 1 for direction in self.directions]


def record_of(study: Study) -> StudyRecord:
    """A study that Optuna has opened."""
    names = study.metric_names
    found = StudyRecord(study.study_name, [int(d) for d in study.directions], dict(study.user_attrs))
    if names:
        found.system_attrs[METRICS] = names
    known: Mapping[Any, BaseDistribution] = _Known()
    for trial in study.get_trials(deepcopy=False):
        distributions = {name: known[distribution] for name, distribution in trial.distributions.items()}
        record = TrialRecord(trial.number, STATES[trial.state.value], tuple(trial.values or ()), dict(trial.params))
        record.distributions, record.attrs, record.system_attrs = distributions, trial.user_attrs, trial.system_attrs
        record.begin, record.end = _aware(trial.datetime_start), _aware(trial.datetime_complete)
        found.trials.append(record)
    return found


class _Known(dict[Any, Any]):
    """Equal distributions as one object, by which trials can be grouped."""

    def __missing__(self, distribution: Any) -> Any:
        self[distribution] = distribution
        return distribution


def _aware(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone()
