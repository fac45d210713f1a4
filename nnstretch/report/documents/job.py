"""Answers of `scripts/transform_and_train.py`: accuracies of all networks, and the chosen one beside its alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nnstretch.report.documents.branching import branching_document
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.tables.text import duration_text
from nnstretch.support.measures import TOP1, Measure

_ACCURACIES = "The {} on the test images is reported; the design was chosen by the validation images."


def job_document(answer: Mapping[str, Any]) -> Document:
    """The document of an answer.

    Args:
        answer: what the job writes to `answer.json`.

    Raises:
        KeyError, TypeError, ValueError: fields are missing.
        DesignError: its design is damaged.
    """
    networks = [answer["original"], *answer["candidates"]]
    measure = Measure(**answer.get("measure", TOP1._asdict()))  # answers of earlier versions lack it
    figures: dict[str, Cell] = {f"{measure.name} (%), {one['name']}": one[f"test_{measure.key}"] for one in networks}
    accuracies = Section("Accuracies", _ACCURACIES.format(measure.name), table=_accuracies(answer, networks, measure))
    facts = {f"duration, {kind}": duration_text(seconds) for kind, seconds in answer["seconds"].items()}
    if answer["comparison"] is None:
        lead = "The job measured no latency; its stage `measure` was left out."
        return Document(f"Job {answer['model']}", lead, figures, [accuracies], facts)
    compared = branching_document(answer["comparison"])
    return replace(
        compared,
        figures={**compared.figures, **figures},
        sections=[accuracies, *compared.sections],
        facts={**compared.facts, **facts},
    )


def _accuracies(answer: Mapping[str, Any], networks: Sequence[Mapping[str, Any]], measure: Measure) -> Table:
    """The measure of every network, in int8 too where networks were quantised; the chosen one is marked."""
    int8, (title, key) = {one["name"]: one[measure.key] for one in answer["int8"]}, measure
    rows = [
        [one["name"], one[f"test_{key}"], one[f"validation_{key}"], *([int8.get(one["name"])] if int8 else [])]
        for one in networks
    ]
    marked = frozenset(number for number, one in enumerate(networks) if one["name"] == answer["chosen"])
    titles = ("network", f"{title} (%)", f"validation {title} (%)", *([f"int8 {title} (%)"] if int8 else []))
    return Table(titles, rows, marked=marked)
