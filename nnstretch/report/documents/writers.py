"""Documents as pages, Markdown, CSV and pictures."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from markupsafe import Markup

from nnstretch import __version__
from nnstretch.report.charts.style import COLOURS
from nnstretch.report.charts.svg import Panel, element, label, panel_picture, stacked
from nnstretch.report.documents.document import Cell, Document, Section, Table, cell_text, figure_text
from nnstretch.report.pages import render
from nnstretch.support.settings import atomic_write, write_text

_MOST_FIGURES = 8
"""At the top of a page; the others stand in a table."""
_MOST_LARGE_LETTERS = 12
"""Of a word at the top of a page; more overlap with the next figure."""
_MOST_ROWS = 500
"""Of a table in a page that needs no script."""


def write(document: Document, path: Path) -> list[Path]:
    """Writes a document in the form that the file's ending names.

    Args:
        document: what to write.
        path: ending in one of `ENDINGS`. Markdown has its charts, and CSV its tables, in files beside it if there are several.

    Returns:
        The files that were written.

    Raises:
        FileError: a file cannot be written.
        MissingExtraError: a PNG needs a library that is not installed.
    """
    return _WRITERS[path.suffix.lower()](document, path)


def html(document: Document) -> str:
    """One page that needs no network; a script in it pages, sorts and filters the rows of tables that readers can filter."""
    figures = list(document.figures.items())
    large = [(meaning, value) for meaning, value in figures if _is_short(value)][:_MOST_FIGURES]
    headline = document.headline or [figure_text(meaning, value) for meaning, value in large]
    sections = [_html_section(section) for section in document.sections]
    if len(figures) > (_MOST_FIGURES if document.headline else len(large)):
        rest = Section("Figures", table=Table(["", "value"], figures, mixed=True))
        sections.insert(0, _html_section(rest))
    return render(
        "document.html",
        title=document.title,
        figures=[(value.replace(" ", "\N{NO-BREAK SPACE}"), meaning) for value, meaning in headline],
        lead=document.lead,
        sections=sections,
        facts=list(document.facts.items()),
        live=any(section["data"] for section in sections),
        version=__version__,
    )


def _is_short(value: Cell) -> bool:
    """Whether a figure fits in its column in large letters."""
    return value is not None and (not isinstance(value, str) or len(value) <= _MOST_LARGE_LETTERS)


def _html_section(section: Section) -> Mapping[str, object]:
    table = section.table or Table((), ())
    live = bool(table.rows) and (section.filters or len(table.rows) > _MOST_ROWS)
    first = table.rows[0] if table.rows else ()
    return {
        "title": section.title,
        "text": section.text,
        "chart": Markup(panel_picture(section.panel, section.title)) if section.panel else "",  # noqa: S704 - escaped by svg
        "titles": table.titles,
        "data": Markup(_live_data(table)) if live else "",  # noqa: S704 - has no character that ends it
        "rows": [] if live else _html_rows(table),
        "texts": table.texts,
        "end": table.first_note,
        "kinds": ["chosen" if number in table.marked else None for number in range(len(table.rows))],
        "folded": section.folded,
        "linked": section.filters,
        "hints": ["word" if isinstance(cell, str) else "low..high" for cell in first],
    }


def _html_rows(table: Table) -> list[list[str]]:
    """The texts of a table's cells, with elements around those that stand out."""
    bold = Markup('<b class="best">{}</b>')
    return [
        [bold.format(cell) if (i, j) in table.bold else cell for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows_of_text())
    ]


def _live_data(table: Table) -> str:
    """The rows of a table as JSON, from which a script in the page makes those that are looked at."""
    columns = [
        list(map(_compact, column)) if float in set(map(type, column)) else column
        for column in zip(*table.rows, strict=True)
    ]
    data = {"columns": columns, "decimals": table.decimals(), "marked": sorted(table.marked)}
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c")


def _compact(value: Cell) -> Cell:
    """A value with the digits that the page may show; infinite ones are words, because JSON has none."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    return round(value) if abs(value) >= 1e4 else float(f"{value:.5g}")


def markdown(document: Document, charts: Mapping[str, str]) -> str:
    """The text; `charts` has the file of each section's chart by its title."""
    lines = [f"# {document.title}", "", document.lead, ""]
    lines += _markdown_table(Table(["", "value"], list(document.figures.items()), mixed=True))
    for section in document.sections:
        lines += ["", f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        if section.title in charts:
            lines += [f"![{section.title}]({charts[section.title]})", ""]
        if section.table is not None:
            lines += _markdown_table(section.table)
    if document.facts:
        lines += ["", "## How this was made", ""]
        lines += _markdown_table(Table(["", "value"], list(document.facts.items()), 2))
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    def row(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"

    rule = ["---" if table.is_text(number) else "---:" for number in range(len(table.titles))]
    bold = table.bold | {(number, 0) for number in table.marked}
    cells = [
        [f"**{cell}**" if (i, j) in bold else cell for j, cell in enumerate(cells)]
        for i, cells in enumerate(table.rows_of_text())
    ]
    return [row([str(title) for title in table.titles]), row(rule), *map(row, cells)]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _write_html(document: Document, path: Path) -> list[Path]:
    write_text(path, html(document))
    return [path]


def _write_markdown(document: Document, path: Path) -> list[Path]:
    charts = {}
    for section in document.sections:
        if section.panel is not None:
            file = path.with_name(f"{path.stem}-{_slug(section.title)}.svg")
            write_text(file, stacked([section.panel], section.title))
            charts[section.title] = file.name
    write_text(path, markdown(document, charts))
    return [path, *(path.with_name(name) for name in charts.values())]


def _write_csv(document: Document, path: Path) -> list[Path]:
    tables = {section.title: section.table for section in document.sections if section.table is not None}
    if not tables:
        tables = {"figures": Table(["figure", "value"], list(document.figures.items()))}
    written = []
    for title, table in tables.items():
        file = path if len(tables) == 1 else path.with_name(f"{path.stem}-{_slug(title)}.csv")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.titles)
        writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
        write_text(file, text.getvalue())
        written.append(file)
    return written


def picture(document: Document) -> str:
    """All charts in one SVG, one below the other; the figures as text if there is no chart."""
    panels = [_titled(section.title, section.panel) for section in document.sections if section.panel is not None]
    return stacked(panels or [_figures_panel(document)], document.title)


def _figures_panel(document: Document) -> Panel:
    lines = [f"{meaning}: {cell_text(value)}" for meaning, value in document.figures.items()]
    texts = [label(0, 40 + 20 * number, text) for number, text in enumerate(lines)]
    return 40 + 20 * len(lines), [label(0, 14, document.title, "strong"), *texts]


def _titled(title: str, panel: Panel) -> Panel:
    height, content = panel
    return height + 24, [label(0, 14, title, "strong"), element("g", *content, transform="translate(0 24)")]


def _write_svg(document: Document, path: Path) -> list[Path]:
    write_text(path, picture(document))
    return [path]


def _write_png(document: Document, path: Path) -> list[Path]:
    import resvg_py

    with atomic_write(path) as file:
        file.write(bytes(resvg_py.svg_to_bytes(svg_string=_in_light_colours(picture(document)), zoom=2)))
    return [path]


def _in_light_colours(svg: str) -> str:
    """An SVG whose colours are values: renderers of PNG know no variables and no dark mode."""
    plain = re.sub(r"svg\{--.*?\}(?=@media)", "", svg)
    plain = re.sub(r"@media \(prefers-color-scheme:dark\)\{svg\{.*?\}\}", "", plain)
    return re.sub(r"var\(--([a-z0-9-]+)\)", lambda match: COLOURS[match[1]][0], plain)


_WRITERS: Mapping[str, Callable[[Document, Path], list[Path]]] = {
    ".html": _write_html,
    ".md": _write_markdown,
    ".csv": _write_csv,
    ".svg": _write_svg,
    ".png": _write_png,
}
ENDINGS = tuple(_WRITERS)
"""Of the files that `write` can write."""
