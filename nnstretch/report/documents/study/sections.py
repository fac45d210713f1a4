"""Sections on the values and parameters of trials."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from nnstretch.report.charts.curves import curve_panel
from nnstretch.report.charts.study.trials import Mark, importance_panel, parallel_panel, scatter_panel
from nnstretch.report.documents.document import Cell, Section, Table
from nnstretch.report.documents.hypervolume import hypervolume_history, is_estimated
from nnstretch.report.documents.study.records import TrialRecord
from nnstretch.report.documents.study.view import StudyView
from nnstretch.sweeps.study import ERROR

_MOST_COLUMNS = 12
"""Of what a trial noted beside its parameters and values."""
_HISTORY_POINTS = 60
"""At which the hypervolume is computed."""
_MOST_PAIRS = 3
_MOST_LINES = 400
"""Of parallel coordinates."""
_MOST_AXES = 8
"""Parameters of parallel coordinates."""
_MOST_BARS = 12
"""Parameters per objective in the chart of importances."""


def fronts(view: StudyView) -> list[Section]:
    """A chart per pair of objectives."""
    return [_front(view, *pair) for pair in list(combinations(range(len(view.objectives)), 2))[:_MOST_PAIRS]]


def _front(view: StudyView, first: int, second: int) -> Section:
    marks = [
        Mark(trial.values[first], trial.values[second], row, trial.number in view.best_numbers, trial.is_feasible,
             _tip(view, trial) if trial.number in view.best_numbers else "")
        for row, trial in enumerate(_rows(view))
    ]  # fmt: skip
    names = view.objectives[first], view.objectives[second]
    text = "Large dots are feasible trials that no other beats in every objective; faint ones break a constraint."
    chart = scatter_panel(marks, *names, line=len(view.objectives) == 2)
    return Section(f"{names[0]} against {names[1]}", text, chart)


def _tip(view: StudyView, trial: TrialRecord) -> str:
    values = [f"{name}: {value:.5g}" for name, value in zip(view.objectives, trial.values, strict=True)]
    return "\n".join([f"trial {trial.number}", *values])


def _rows(view: StudyView) -> list[TrialRecord]:
    """The trials in the order of their table: the best first."""
    return sorted(view.trials, key=lambda trial: trial.number not in view.best_numbers)


def trial_table(view: StudyView) -> list[Section]:
    """All complete trials."""
    trials = _rows(view)
    parameters = list(dict.fromkeys(name for trial in trials for name in trial.params))
    notes = _notes(trials)
    titles = ["trial", *view.objectives, "feasible", *parameters, *notes]
    columns: list[Sequence[Cell]] = [
        [trial.number for trial in trials],
        *zip(*(trial.values for trial in trials), strict=True),
        ["yes" if trial.is_feasible else "no" for trial in trials],
        *(_cells([trial.params.get(name) for trial in trials]) for name in parameters),
        *(_cells([trial.attrs.get(name) for trial in trials]) for name in notes),
    ]
    rows = list(zip(*columns, strict=True))
    text = (
        "Rows in bold are the best trials. A range or a word narrows the rows, and the dots above; a title sorts them."
    )
    return [
        Section("Trials", text, table=Table(titles, rows, 0, frozenset(range(len(view.best)))), filters=True),
    ]


def _notes(trials: Sequence[TrialRecord]) -> list[str]:
    """Attributes that are numbers, words or yes and no, the most frequent first."""
    found = Counter(
        name for trial in trials for name, value in trial.attrs.items() if isinstance(value, bool | int | float | str)
    )
    return [name for name, _ in found.most_common(_MOST_COLUMNS)]


def _cells(values: Sequence[Any]) -> list[Cell]:
    """Values as cells of a column; most columns are as they are."""
    return list(values if set(map(type, values)) <= _PLAIN else map(_cell, values))


_PLAIN = {int, float, str, type(None)}


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, int | float | str) else json.dumps(value)


def history(view: StudyView) -> list[Section]:
    """The best value, or the hypervolume of the front, from trial to trial."""
    if not view.feasible:
        return []
    numbers = [float(trial.number) for trial in view.feasible]
    if len(view.objectives) == 1:
        values = np.minimum.accumulate(view.losses[:, 0]) * view.signs[0]
        points = list(zip(numbers, values.tolist(), strict=True))
        return [Section("Best so far", "", curve_panel({"best": points}, "trial", view.objectives[0]))]
    low, high = view.losses.min(axis=0), view.losses.max(axis=0)
    scaled = (view.losses - low) / np.where(high > low, high - low, 1.0)
    points = [(numbers[count - 1], volume) for count, volume in hypervolume_history(scaled, _HISTORY_POINTS)]
    text = "Share of the box between the best and the worst feasible value of every objective that the front dominates."
    if is_estimated(len(view.objectives)):
        text += " Estimated by random places, to about 0.4 % of the box."
    chart = curve_panel({"hypervolume": points}, "trial", "share of the box")
    return [Section("Hypervolume", text, chart)]


def importance(view: StudyView) -> list[Section]:
    """Bars of the most important parameters per objective."""
    if not view.importances:
        return []
    count = max(map(len, view.importances.values()))
    text = (
        "How much the best tenth of the trials differs from all of them in a parameter (PED-ANOVA); shares of the sum."
    )
    if count > _MOST_BARS:
        text += f" The {_MOST_BARS} most important of {count} parameters."
    shown = {name: dict(list(values.items())[:_MOST_BARS]) for name, values in view.importances.items()}
    titles = ["parameter", *view.importances]
    names = dict.fromkeys(name for values in view.importances.values() for name in values)
    rows = [[name, *(values.get(name) for values in view.importances.values())] for name in names]
    return [Section("Importance of parameters", text, importance_panel(shown), Table(titles, rows), folded=True)]


def parallel(view: StudyView) -> list[Section]:
    """Parallel coordinates of the most important parameters, and of all objectives."""
    if len(view.trials) < 2:
        return []
    others = [trial for trial in view.trials if trial.number not in view.best_numbers]
    best = _thinned(view.best, _MOST_LINES // 2)
    trials = [*_thinned(others, _MOST_LINES - len(best)), *best]
    shared = [name for name in view.trials[0].params if all(name in trial.params for trial in view.trials)]
    sums = {name: sum(values.get(name, 0.0) for values in view.importances.values()) for name in shared}
    chosen = sorted(sorted(shared, key=lambda name: -sums[name])[:_MOST_AXES], key=shared.index)
    axes: dict[str, list[Any]] = {name: [trial.params[name] for trial in trials] for name in chosen}
    for number, name in enumerate(view.objectives):
        axes[name] = [trial.values[number] for trial in trials]
    if len(axes) < 2:
        return []
    text = "A line per trial from axis to axis; the best trials are in colour."
    if len(trials) < len(view.trials):
        text += f" {len(trials)} of {len(view.trials)} trials, {len(best)} of the {len(view.best)} best among them."
    if len(chosen) < len(shared):
        text += f" The {len(chosen)} most important of {len(shared)} parameters."
    chart = parallel_panel(axes, [trial.number in view.best_numbers for trial in trials])
    return [Section("Parameters and values together", text, chart)]


def _thinned(trials: Sequence[TrialRecord], most: int) -> list[TrialRecord]:
    """A number of trials at most, evenly from all of them."""
    if len(trials) <= most:
        return list(trials)
    return [trials[round(place)] for place in np.linspace(0, len(trials) - 1, most)]


def failures(view: StudyView) -> list[Section]:
    """Why trials failed."""
    reasons = Counter(
        str(trial.attrs.get(ERROR, "no reason is noted")) for trial in view.counted if trial.state == "fail"
    )
    if not reasons:
        return []
    return [Section("Failed trials", "", table=Table(["reason", "trials"], reasons.most_common()))]
