"""Fidelities of a sweep of designs: how many trials reached each, which were promoted, and what that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.report.charts.study.ladder import Rung, ladder_panel
from nnstretch.report.documents.document import Cell, Section, Table
from nnstretch.report.documents.study.records import TrialRecord
from nnstretch.report.documents.study.view import StudyView
from nnstretch.sweeps.objectives import Fidelity
from nnstretch.sweeps.study import DESIGN, VALUES


def fidelities(view: StudyView) -> list[Section]:
    """Trials per fidelity, and the promoted ones; nothing for studies in which all trials end at the same one."""
    evaluated = [one for trial in view.counted if (one := _evaluated(trial)).values]
    if all(len(one.values) < 2 and one.trial.state == "complete" for one in evaluated):
        return []
    return [_ladder(evaluated), *_promotions(view, [one for one in evaluated if len(one.values) > 1])]


@dataclass(frozen=True)
class _Evaluated:
    """A trial, and its values at the fidelities that it has reached, cheapest first."""

    trial: TrialRecord
    values: Mapping[Fidelity, Mapping[str, float]]

    @property
    def end(self) -> Fidelity:
        """The last fidelity."""
        return max(self.values)


_KEYS = {fidelity: f"{VALUES}{fidelity.label}" for fidelity in Fidelity}
"""Attributes of a trial by fidelity."""


def _evaluated(trial: TrialRecord) -> _Evaluated:
    found = {fidelity: trial.attrs.get(key) for fidelity, key in _KEYS.items()}
    return _Evaluated(trial, {fidelity: values for fidelity, values in found.items() if isinstance(values, dict)})


def _ladder(evaluated: Sequence[_Evaluated]) -> Section:
    rungs = []
    for fidelity in Fidelity:
        here = [one for one in evaluated if fidelity in one.values]
        ended = [one.trial for one in here if one.end is fidelity]
        pruned = [trial for trial in ended if trial.state == "pruned"]
        infeasible = sum(not trial.is_feasible for trial in pruned)
        if here:
            rungs.append(Rung(fidelity.label, len(here), len(here) - len(ended), len(pruned) - infeasible, infeasible))
    titles = ["fidelity", "trials", "promoted", "pruned", "beyond a limit"]
    rows: list[Sequence[Cell]] = [
        [rung.name, rung.trials, rung.promoted, rung.pruned, rung.infeasible] for rung in rungs
    ]
    text = (
        "Every trial begins at the cheapest fidelity. One that is within all limits and among the best of those that have "
        "reached its fidelity is promoted to the next; the others are pruned."
    )
    return Section("Fidelities", text, ladder_panel(rungs), Table(titles, rows))


def _promotions(view: StudyView, promoted: Sequence[_Evaluated]) -> list[Section]:
    """The values of promoted trials at every fidelity."""
    if not promoted:
        return []
    known = {(fidelity, name) for one in promoted for fidelity, values in one.values.items() for name in values}
    columns = [(f, name) for name in view.study.objectives for f in Fidelity if (f, name) in known]
    titles = ["design", "trial", "ended at", *(f"{name}, {fidelity.label}" for fidelity, name in columns)]
    rows: list[Sequence[Cell]] = [
        (
            str(one.trial.attrs.get(DESIGN, "")),
            one.trial.number,
            one.end.label,
            *(one.values.get(fidelity, {}).get(name) for fidelity, name in columns),
        )
        for one in promoted
    ]
    marked = frozenset(row for row, one in enumerate(promoted) if one.trial.number in view.best_numbers)
    text = "Values of promoted trials from fidelity to fidelity. Rows in bold are the best trials."
    return [Section("Promotions", text, table=Table(titles, rows, 1, marked), folded=True)]
