"""Studies of sweeps: what a study is about, and how one is created or resumed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UsageError
from nnstretch.sweeps.objectives import Direction
from nnstretch.sweeps.workers.stamps import stamp_study
from nnstretch.sweeps.workers.storage import open_storage, shown

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

ABOUT = "nnstretch"
"""Attribute of a study with what it is about."""
DESIGN, RUNG, FILES = "design", "rung", "weights"
"""Attributes of a trial: its design, the last fidelity that it reached, and the key of its result with the trained weights."""
VALUES = "values."
"""Begin of the attributes with the values at every fidelity: `values.measured`."""
ERROR = "error"
"""Attribute of a failed trial: the reason."""
TARGET = "target"
"""Attribute of a trial: the target that its design was measured on."""
RATIOS = "limits"
"""Attribute of a trial: what was reached of every limit."""
WARM = "warm start"
"""Attribute of a trial whose design the analytic search has found: its rank."""

_FORMAT = 1


@dataclass(frozen=True)
class StudySpec:
    """A study as the user names it.

    Attributes:
        storage: a journal file or a URL.
        name: in the storage.
        objectives: names of its values.
        directions: for each of them.
        about: what must be the same in every process that works on it, such as the model and the processors.
        resume: go on with the study if there is one.
        workers: processes that write to it.
    """

    storage: str
    name: str
    objectives: Sequence[str]
    directions: Sequence[Direction]
    about: Mapping[str, Any]
    resume: bool = False
    workers: int = 1

    def open(self) -> Study:
        """Creates the study, or resumes it.

        Raises:
            UsageError: there is one and `resume` is false, or it is about something else.
            FileError: the storage cannot be used.
        """
        from optuna import create_study, load_study
        from optuna.exceptions import DuplicatedStudyError

        storage = open_storage(self.storage, workers=self.workers)
        wanted = {"format": _FORMAT, "objectives": list(self.objectives), **self.about}
        try:
            study = create_study(storage=storage, study_name=self.name, directions=list(self.directions))
        except DuplicatedStudyError:
            if not self.resume:
                raise UsageError(
                    f"{shown(self.storage)} has a study {self.name!r} already; go on with it (`resume=True`), or give another "
                    "name (`study`)"
                ) from None
            study = load_study(storage=storage, study_name=self.name)
            self._check(study, wanted)
            return study
        with without_experimental_warnings():
            study.set_metric_names(list(self.objectives))
        study.set_user_attr(ABOUT, wanted)
        stamp_study(study)
        return study

    def _check(self, study: Study, wanted: Mapping[str, Any]) -> None:
        """Refuses a study about something else.

        Raises:
            UsageError: it is.
        """
        found = study.user_attrs.get(ABOUT)
        place = f"study {self.name!r} in {shown(self.storage)}"
        if not isinstance(found, dict):
            raise UsageError(f"{place} was not made by nnstretch; give another name (`study`)")
        if found.get("format") != _FORMAT:
            raise UsageError(f"{place} was made by another version of nnstretch; give another name (`study`)")
        different = [key for key in wanted if found.get(key) != wanted[key]]
        if different:
            key = different[0]
            raise UsageError(
                f"{place} is for {key} {_text(found.get(key))}, not for {_text(wanted[key])}; give the same, or another "
                "name (`study`)"
            )


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silences Optuna's warnings that parts of it may change, or will: the version is pinned by tests."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        for category in (ExperimentalWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        yield


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def states(study: Study) -> dict[str, int]:
    """Numbers of trials by state; those that were queued again or given back do not count."""
    from nnstretch.sweeps.workers.leases import is_given_up

    counts = {"complete": 0, "pruned": 0, "fail": 0, "running": 0, "waiting": 0}
    for trial in study.get_trials(deepcopy=False):
        if not is_given_up(trial):
            counts[trial.state.name.lower()] += 1
    return counts


def feasible_front(study: Study) -> list[FrozenTrial]:
    """The trials that no other one dominates, in order of the first objective; of equal values, the first trial."""
    signs = [1.0 if direction.name == "MINIMIZE" else -1.0 for direction in study.directions]
    found: dict[tuple[float, ...], FrozenTrial] = {}
    for trial in sorted(study.best_trials, key=lambda trial: trial.number):
        if all(value <= 0 for value in trial.constraints.values()):
            found.setdefault(tuple(trial.values), trial)
    return sorted(found.values(), key=lambda trial: signs[0] * trial.values[0])
