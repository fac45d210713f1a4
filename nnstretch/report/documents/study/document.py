"""The document of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from nnstretch.report.documents.document import Cell, Document, Section
from nnstretch.report.documents.facts import environment_facts, facts_of
from nnstretch.report.documents.study.ladder import fidelities
from nnstretch.report.documents.study.opening import open_study
from nnstretch.report.documents.study.sections import (
    failures,
    fronts,
    history,
    importance,
    parallel,
    trial_table,
)
from nnstretch.report.documents.study.view import StudyView
from nnstretch.report.documents.study.workers import workers
from nnstretch.sweeps.study import ABOUT
from nnstretch.sweeps.workers.stamps import ENVIRONMENT
from nnstretch.sweeps.workers.storage import shown

_STATES = {"complete": "complete", "pruned": "pruned", "fail": "failed", "running": "running", "waiting": "queued"}
"""State of a trial -> its name in a report."""


def read_study(storage: str, name: str | None = None) -> Document:
    """The document of a study.

    Args:
        storage: a journal file, or a URL of a database or of Optuna's proxy.
        name: of the study; None if the storage has one only.

    Raises:
        FileError: the storage cannot be read.
        UsageError: there is no such study, or several and no name.
        MissingExtraError: Optuna is not installed.
    """
    study = open_study(storage, name)
    view = StudyView(study)
    queued = sum(trial.state == "waiting" for trial in view.counted)
    lead = f"{len(view.trials)} of {len(view.counted) - queued} trials are complete."
    if queued:
        lead += f" {queued} more are queued; a sweep of more trials begins with them."
    if infinite := sum(trial.state == "complete" and not trial.is_complete for trial in view.counted):
        lead += f" {infinite} more have an infinite value and are in no figure."
    if given_up := len(study.trials) - len(view.counted):
        lead += (
            f" {given_up} others do not count: their workers died and they were queued again, or they were too many."
        )
    facts = {**_facts(view), "storage": shown(storage)}
    return Document(f"Study {study.name}", lead, _figures(view), _sections(view), facts)


def _sections(view: StudyView) -> list[Section]:
    """All that there is something to show of."""
    found = [*fidelities(view), *failures(view), *workers(view)]
    if not view.trials:
        return found
    return [
        *fronts(view),
        *trial_table(view),
        *history(view),
        *found,
        *importance(view),
        *parallel(view),
    ]


def _figures(view: StudyView) -> dict[str, Cell]:
    counts = Counter(trial.state for trial in view.counted)
    figures: dict[str, Cell] = {f"{shown} trials": counts[state] for state, shown in _STATES.items() if counts[state]}
    if len(view.objectives) > 1 and view.best_designs:
        figures["designs on the front"] = len(view.best_designs)
    elif len(view.objectives) > 1:
        figures["trials on the front"] = len(view.best)
    elif view.best:
        figures["best trial"] = view.best[0].number
    return figures | {f"best {name}": view.best_value(number) for number, name in enumerate(view.objectives)}


def _facts(view: StudyView) -> dict[str, str]:
    """What the study is about, and what its workers were."""
    attrs = dict(view.study.attrs)
    ours = {name: value for name, value in attrs.items() if isinstance(value, dict)}  # others may use the same names
    about, found = (attrs.pop(name) if name in ours else {} for name in (ABOUT, ENVIRONMENT))
    stamps = {name: attrs.pop(name) for name in ours if name.startswith(f"{ENVIRONMENT}.")}
    facts = facts_of({**attrs, **about})
    facts |= environment_facts(found)
    trials = Counter(trial.attrs.get(ENVIRONMENT) for trial in view.counted)
    for key, stamp in stamps.items():
        name = key.removeprefix(f"{ENVIRONMENT}.")
        facts[f"environment {name}, {trials[name]} trials"] = _differences(stamp, found)
    return facts


def _differences(stamp: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How one environment differs from another."""
    known = environment_facts(other)
    differences = [f"{name} {value}" for name, value in environment_facts(stamp).items() if known.get(name) != value]
    return ", ".join(differences) or "as above"
