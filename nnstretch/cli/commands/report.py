"""`nnstretch report`: studies, trainings, packages, plans and answers as pages, Markdown, CSV and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import Json, option
from nnstretch.cli.outputs import check_endings, note_written
from nnstretch.report.tables.text import plain_table

if TYPE_CHECKING:
    from nnstretch.report.documents.document import Document, Table

_SHOWN, _COLUMNS = 12, 10  # rows and columns of a table in a terminal


def report_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A study (journal file or URL), the run folder of a training, a package, a plan, or an answer of "
            "bench, tune, stretch, quantize or sweep latency (.json), or the folder of a job. Several are compared.",
        ),
    ],
    output: Annotated[
        list[Path] | None,
        option("--output -o FILE", "Write a page (.html), Markdown (.md), tables (.csv) or charts (.svg, .png)."),
    ] = None,
    study: Annotated[str | None, option("--study NAME", "The study, where a storage has several.")] = None,
    json: Json = False,
) -> None:
    """Show what a file holds: fronts and trials of a study, learning curves, layers and memory of a plan.

    Several files are compared by their main figures. Without -o everything appears here in short.

    Example: nnstretch report model.nns -o model.html
    """
    with reporting(as_json=json) as report:
        from nnstretch.report.documents.readers import read_document
        from nnstretch.report.documents.writers import ENDINGS, write

        outputs = output or []
        check_endings(outputs, "reports are", ENDINGS)
        documents = [read_document(source, study) for source in sources]
        document = documents[0] if len(documents) == 1 else _together(sources, documents)
        for path in outputs:
            note_written(report, write(document, path))
        if not outputs:
            _show(report, document)
        report.finish(_answer(document))


def _together(sources: Sequence[str], documents: Sequence[Document]) -> Document:
    """One document of several: their figures side by side, then all their sections."""
    from nnstretch.report.documents.document import Document, compared

    if len({document.title for document in documents}) < len(documents):  # such as two folders with the name "run"
        documents = [replace(document, title=source) for source, document in zip(sources, documents, strict=True)]
    titles = [document.title for document in documents]
    sections = [compared(documents)]
    for document in documents:
        sections += [section.named(f"{document.title}: {section.title}") for section in document.sections]
    facts = {f"{document.title}: {name}": value for document in documents for name, value in document.facts.items()}
    return Document(" and ".join(titles), "Compared by their main figures.", {}, sections, facts)


def _show(report: Reporter, document: Document) -> None:
    from nnstretch.report.documents.document import cell_text

    report.show(document.title, document.lead)
    if document.figures:
        shown = plain_table("", ">value")
        for name, value in document.figures.items():
            shown.add_row(name, cell_text(value))
        report.show(shown)
    for section in document.sections:
        if section.table is not None and section.table.rows and not section.folded:
            _show_table(report, section.title, section.table)


def _show_table(report: Reporter, title: str, table: Table) -> None:
    """The marked rows first, because only some are shown."""
    titles = [name if table.is_text(number) else f">{name}" for number, name in enumerate(table.titles[:_COLUMNS])]
    shown = plain_table(*titles, title=title)
    order = sorted(range(len(table.rows)), key=lambda row: row not in table.marked)
    cells = table.rows_of_text()
    for row in order[:_SHOWN]:
        shown.add_row(*cells[row][:_COLUMNS])
    report.show(shown)
    left = {"rows": len(order) - _SHOWN, "columns": len(table.titles) - _COLUMNS}
    if more := " and ".join(f"{count} more {what}" for what, count in left.items() if count > 0):
        report.show(f"… {more}; -o report.html or report.csv has all")


def _answer(document: Document) -> dict[str, object]:
    return {
        "title": document.title,
        "figures": dict(document.figures),
        "tables": [
            {
                "title": section.title,
                "columns": list(section.table.titles),
                "rows": [list(row) for row in section.table.rows],
            }
            for section in document.sections
            if section.table is not None
        ],
        "facts": dict(document.facts),
    }
