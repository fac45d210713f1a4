"""Optuna studies: fronts, trials, importances. Any study can be read, whoever made it."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.errors import FileError, UsageError
from nnstretch.report.charts.curves import curve_panel
from nnstretch.report.charts.study import Mark, importance_panel, parallel_panel, scatter_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.hypervolume import hypervolume, undominated

if TYPE_CHECKING:
    import optuna

_MOST_COLUMNS = 12
"""Of what a trial noted beside its parameters and values."""
_HISTORY_POINTS = 60
"""At which the hypervolume is computed."""
_MOST_PAIRS = 3


def is_journal(path: Path) -> bool:
    """Whether a file is a journal of Optuna: a line per operation."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "op_code" in first


def read_study(storage: str, name: str | None = None) -> Document:
    """The document of a study.

    Args:
        storage: a journal file, or a URL that Optuna takes.
        name: of the study; None if the storage has one only.

    Raises:
        FileError: the storage cannot be read.
        UsageError: there is no such study, or several and no name.
        MissingExtraError: Optuna is not installed.
    """
    study = _open(storage, name)
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE" and trial.values]
    view = _View(study, trials, _objectives(study), _signs(study))
    counts = Counter(trial.state.name.lower() for trial in study.get_trials(deepcopy=False))
    best = view.best
    figures: dict[str, Cell] = {
        **{
            f"{state} trials": counts[state]
            for state in ("complete", "pruned", "fail", "running", "waiting")
            if counts[state]
        },
        "trials on the front" if len(view.objectives) > 1 else "best trial": len(best)
        if len(view.objectives) > 1
        else None,
        **{f"best {name}": view.best_value(number) for number, name in enumerate(view.objectives)},
    }
    if len(view.objectives) == 1 and best:
        figures["best trial"] = best[0].number
    facts = {key: _short(value) for key, value in study.user_attrs.items()}
    facts |= {"storage": _without_password(storage), "sampler's objectives": ", ".join(view.objectives)}
    lead = f"{len(trials)} of {sum(counts.values())} trials are complete."
    return Document(f"Study {study.study_name}", lead, figures, _sections(view) if trials else (), facts)


def _open(storage: str, name: str | None) -> optuna.Study:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if "://" in storage:
            opened: Any = optuna.storages.get_storage(storage)
        else:
            opened = optuna.storages.JournalStorage(JournalFileBackend(storage))
        names = [found.study_name for found in opened.get_all_studies()]
    except Exception as error:  # whatever a database's driver raises
        raise FileError(f"cannot read the studies of {_without_password(storage)}: {_line(error)}") from error
    if name is None and len(names) > 1:
        raise UsageError(
            f"{_without_password(storage)} has several studies ({', '.join(names)}); name one with --study"
        )
    wanted = names[0] if name is None and names else name
    if wanted not in names:
        raise UsageError(
            f"{_without_password(storage)} has no study {wanted or ''} (it has: {', '.join(names) or 'none'})"
        )
    return optuna.load_study(study_name=wanted, storage=opened)


@dataclass(frozen=True, eq=False)
class _View:
    """A study as charts see it.

    Attributes:
        study: where it comes from.
        trials: those that are complete.
        objectives: their names.
        signs: 1 for an objective that is minimised, -1 for one that is maximised.
    """

    study: optuna.Study
    trials: Sequence[optuna.trial.FrozenTrial]
    objectives: Sequence[str]
    signs: Sequence[int]

    @cached_property
    def best(self) -> list[optuna.trial.FrozenTrial]:
        """Feasible trials that no other feasible one beats: the front, or the trial of the best value."""
        feasible = [trial for trial in self.trials if is_feasible(trial)]
        if not feasible:
            return []
        values = np.array([trial.values for trial in feasible]) * self.signs
        if len(self.objectives) == 1:
            return [feasible[int(values.argmin())]]
        return [feasible[number] for number in undominated(values)]

    def best_value(self, objective: int) -> float | None:
        """The best feasible value of an objective."""
        values = [trial.values[objective] * self.signs[objective] for trial in self.trials if is_feasible(trial)]
        return min(values) * self.signs[objective] if values else None


def is_feasible(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether a trial keeps all its constraints."""
    return all(value <= 0 for value in trial.constraints.values())


def _objectives(study: optuna.Study) -> list[str]:
    return study.metric_names or [f"objective {number}" for number in range(len(study.directions))]


def _signs(study: optuna.Study) -> list[int]:
    return [-1 if direction.name == "MAXIMIZE" else 1 for direction in study.directions]


def _sections(view: _View) -> list[Section]:
    best = {trial.number for trial in view.best}
    sections = [_front(view, best, pair) for pair in list(combinations(range(len(view.objectives)), 2))[:_MOST_PAIRS]]
    sections.append(_trials(view, best))
    sections.append(_history(view))
    importances = _importances(view)
    if importances:
        text = "Share of the variance between good trials and the others that a parameter explains (PED-ANOVA)."
        sections.append(Section("Importance of parameters", text, importance_panel(importances)))
    if len(view.trials) > 1:
        text = "A line per trial from axis to axis; trials on the front are in colour."
        sections.append(Section("Parameters and values together", text, _parallel(view, best)))
    return sections


def _front(view: _View, best: set[int], pair: tuple[int, int]) -> Section:
    first, second = pair
    marks = [
        Mark(
            trial.values[first],
            trial.values[second],
            row,
            trial.number in best,
            is_feasible(trial),
            f"trial {trial.number}\n"
            + "\n".join(f"{n}: {v:.5g}" for n, v in zip(view.objectives, trial.values, strict=True)),
        )
        for row, trial in enumerate(view.trials)
    ]
    names = view.objectives[first], view.objectives[second]
    line = len(view.objectives) == 2
    text = "Large dots are feasible trials that no other beats in every objective; faint ones break a constraint."
    return Section(f"{names[0]} against {names[1]}", text, scatter_panel(marks, *names, line=line))


def _trials(view: _View, best: set[int]) -> Section:
    parameters = list(dict.fromkeys(name for trial in view.trials for name in trial.params))
    notes = _notes(view.trials)
    titles = ["trial", *view.objectives, "feasible", *parameters, *notes]
    rows: list[Sequence[Cell]] = [
        (
            trial.number,
            *trial.values,
            "yes" if is_feasible(trial) else "no",
            *(_cell(trial.params.get(name)) for name in parameters),
            *(_cell(trial.user_attrs.get(name)) for name in notes),
        )
        for trial in view.trials
    ]
    marked = frozenset(row for row, trial in enumerate(view.trials) if trial.number in best)
    text = "Rows in bold are the best trials. A range or a word narrows the rows, and the dots above."
    return Section("Trials", text, table=Table(titles, rows, 0, marked), filters=True)


def _notes(trials: Sequence[optuna.trial.FrozenTrial]) -> list[str]:
    """Attributes that are numbers, words or yes and no, the most frequent first."""
    found = Counter(
        name
        for trial in trials
        for name, value in trial.user_attrs.items()
        if isinstance(value, bool | int | float | str)
    )
    return [name for name, _ in found.most_common(_MOST_COLUMNS)]


def _history(view: _View) -> Section:
    signed = [[v * s for v, s in zip(t.values, view.signs, strict=True)] for t in view.trials if is_feasible(t)]
    numbers = [trial.number for trial in view.trials if is_feasible(trial)]
    if len(view.objectives) == 1 or not signed:
        so_far: list[tuple[float, float]] = []
        for number, values in zip(numbers, signed, strict=True):
            least = min(values[0], so_far[-1][1]) if so_far else values[0]
            so_far.append((number, least))
        shown = [(number, value * view.signs[0]) for number, value in so_far] or [(0.0, 0.0)]
        return Section("Best so far", "", curve_panel({"best": shown}, "trial", view.objectives[0]))
    worst = [max(column) for column in zip(*signed, strict=True)]
    best = [min(column) for column in zip(*signed, strict=True)]
    scaled = [
        [(v - low) / ((high - low) or 1.0) for v, low, high in zip(values, best, worst, strict=True)]
        for values in signed
    ]
    step = max(1, len(scaled) // _HISTORY_POINTS)
    ends = sorted({*range(step, len(scaled), step), len(scaled)})
    points = [(float(numbers[end - 1]), hypervolume(scaled[:end], [1.0] * len(worst))) for end in ends]
    text = "Share of the box between the best and the worst feasible value of every objective that the front dominates."
    return Section("Hypervolume", text, curve_panel({"hypervolume": points}, "trial", "share of the box"))


def _importances(view: _View) -> Mapping[str, Mapping[str, float]]:
    """Objective -> parameter -> importance; empty where trials are too few or all alike."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    found = {}
    for number, name in enumerate(view.objectives):

        def signed(trial: optuna.trial.FrozenTrial, number: int = number) -> float:
            return float(trial.values[number] * view.signs[number])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[name] = get_param_importances(view.study, evaluator=PedAnovaImportanceEvaluator(), target=signed)
            except (ValueError, RuntimeError, ZeroDivisionError):
                continue
    return {name: values for name, values in found.items() if values}


def _parallel(view: _View, best: set[int]) -> tuple[float, Sequence[str]]:
    shared = [name for name in view.trials[0].params if all(name in trial.params for trial in view.trials)]
    axes: dict[str, list[Any]] = {name: [trial.params[name] for trial in view.trials] for name in shared[:8]}
    for number, name in enumerate(view.objectives):
        axes[name] = [trial.values[number] for trial in view.trials]
    return parallel_panel(axes, [trial.number in best for trial in view.trials])


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 300 else f"{text[:300]}…"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _without_password(storage: str) -> str:
    """A URL without its user and password."""
    scheme, separator, rest = storage.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else storage
