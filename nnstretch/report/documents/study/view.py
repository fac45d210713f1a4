"""A study as the sections of its report see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.report.documents.hypervolume import undominated
from nnstretch.report.documents.study.importance import importances
from nnstretch.report.documents.study.records import StudyRecord, TrialRecord
from nnstretch.sweeps.objectives import OBJECTIVES
from nnstretch.sweeps.study import ABOUT, DESIGN


@dataclass(frozen=True, eq=False)
class StudyView:
    """What the sections of a report have in common. Trials that were given up are in none of its lists.

    Attributes:
        study: what was read.
    """

    study: StudyRecord

    @cached_property
    def counted(self) -> list[TrialRecord]:
        """The trials that count."""
        return [trial for trial in self.study.trials if not trial.is_given_up]

    @cached_property
    def trials(self) -> list[TrialRecord]:
        """Those of them with finite values."""
        return [trial for trial in self.counted if trial.is_complete]

    @cached_property
    def feasible(self) -> list[TrialRecord]:
        """Those of them that keep the constraints."""
        return [trial for trial in self.trials if trial.is_feasible]

    @cached_property
    def objectives(self) -> list[str]:
        """Names of the values; with units in studies of nnstretch."""
        names = self.study.objectives
        if ABOUT not in self.study.attrs:
            return names
        return [f"{name} ({OBJECTIVES[name].unit})" if name in OBJECTIVES else name for name in names]

    @property
    def signs(self) -> Sequence[int]:
        """1 for an objective that is minimised, -1 for one that is maximised."""
        return self.study.signs

    @cached_property
    def losses(self) -> np.ndarray:
        """Values of the feasible trials, to be minimised: trials × objectives."""
        values = np.array([trial.values for trial in self.feasible], dtype=np.float64)
        return values.reshape(len(self.feasible), len(self.signs)) * self.signs

    @cached_property
    def best(self) -> list[TrialRecord]:
        """Feasible trials that no other feasible one beats: the front, or the trial of the best value."""
        if not self.feasible:
            return []
        if len(self.objectives) == 1:
            return [self.feasible[int(self.losses[:, 0].argmin())]]
        return [self.feasible[number] for number in undominated(self.losses)]

    @cached_property
    def best_designs(self) -> frozenset[tuple[str, str]]:
        """The best trials' designs, each with its data type; several trials may have one. Empty in studies of others."""
        if ABOUT not in self.study.attrs:
            return frozenset()
        known = [trial for trial in self.best if DESIGN in trial.attrs]
        return frozenset((str(trial.attrs[DESIGN]), str(trial.params.get("dtype", DEFAULT_DTYPE))) for trial in known)

    @cached_property
    def best_numbers(self) -> frozenset[int]:
        """Numbers of the best trials."""
        return frozenset(trial.number for trial in self.best)

    def best_value(self, objective: int) -> float | None:
        """The best feasible value of an objective."""
        return float(self.losses[:, objective].min()) * self.signs[objective] if self.feasible else None

    @cached_property
    def importances(self) -> Mapping[str, Mapping[str, float]]:
        """Objective -> parameter -> share of the importance."""
        losses = {
            name: [trial.values[number] * sign for trial in self.trials]
            for number, (name, sign) in enumerate(zip(self.objectives, self.signs, strict=True))
        }
        return importances(self.trials, losses)
