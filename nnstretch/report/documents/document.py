"""What a report says, before it has a form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.report.charts.svg import Panel
from nnstretch.report.tables.text import count_text, duration_text

Cell = str | float | int | None
_NEAR_ZERO = 1e-4
"""Below, as errors are, no more than the order of magnitude counts."""


@dataclass(frozen=True)
class Table:
    """Rows of values.

    Attributes:
        titles: of the columns, with units.
        rows: values as they are; writers format them. None is an empty cell.
        texts: number of columns at the left that hold text.
        marked: indices of rows that stand out.
        bold: row and column of cells that stand out.
        notes: number of columns at the right that hold text, too.
        mixed: whether the cells of a column are different quantities, as in a list of figures.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: int = 1
    marked: frozenset[int] = frozenset()
    bold: frozenset[tuple[int, int]] = frozenset()
    notes: int = 0
    mixed: bool = False

    def is_text(self, column: int) -> bool:
        """Whether a column holds text."""
        return not self.texts <= column < self.first_note

    @property
    def first_note(self) -> int:
        """The first column of the text at the right; the number of columns if there is none."""
        return len(self.titles) - self.notes

    def decimals(self) -> list[int | None]:
        """Of each column: how many decimals its values are written with; None if each has its own."""
        columns = list(zip(*self.rows, strict=True))
        return [None] * len(columns) if self.mixed else list(map(_decimals, columns))

    def rows_of_text(self) -> list[list[str]]:
        """The cells as people read them."""
        decimals = self.decimals()
        return [list(map(cell_text, row, decimals)) for row in self.rows]


@dataclass(frozen=True)
class Section:
    """One subject.

    Attributes:
        title: its heading.
        text: a paragraph on how to read it; may be empty.
        panel: a chart.
        table: values.
        folded: whether the page shows the table on a click only.
        filters: whether readers can narrow the rows of the table, and the dots of the same rows in all charts.
    """

    title: str
    text: str = ""
    panel: Panel | None = None
    table: Table | None = None
    folded: bool = False
    filters: bool = False

    def named(self, title: str) -> Section:
        """The same section under another title, and without filters: rows of several sections have the same numbers."""
        return replace(self, title=title, filters=False)


@dataclass(frozen=True)
class Document:
    """A whole report.

    Attributes:
        title: names what it is about.
        lead: one or two sentences.
        figures: the most important values: meaning with unit -> value. Reports are compared by them.
        sections: in reading order.
        facts: name -> value, on how and where the results were made.
        headline: large numbers of the page and what they mean; the first figures if there are none. They may say more than
            figures, such as confidence intervals.
    """

    title: str
    lead: str
    figures: Mapping[str, Cell]
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)
    headline: Sequence[tuple[str, str]] = ()


def cell_text(value: Cell, decimals: int | None = None) -> str:
    """A value as people read it: with `decimals` digits after the point, else four in all, two near 0; "–" for none."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if decimals is not None and (value == 0 or abs(value) >= 0.5 * 10**-decimals):
            return f"{value:,.{decimals}f}"
        if 0 < abs(value) < _NEAR_ZERO:
            return f"{value:.1e}"
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value


def _decimals(column: Sequence[Cell]) -> int | None:
    """How many decimals show four digits of the largest value of a column, and two of the smallest if three decimals do.

    None if the column has no finite fractions, or if they are too small to be written so.
    """
    sizes = [abs(value) for value in column if isinstance(value, float) and value and math.isfinite(value)]
    if not sizes or max(sizes) < _NEAR_ZERO:
        return None
    largest, smallest = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
    return max(3 - largest, min(1 - smallest, 3), 0)


_UNITS: Sequence[tuple[re.Pattern[str], Callable[[float], str]]] = (
    (re.compile(r"^million "), lambda value: count_text(value * 1e6)),
    (re.compile(r"^MB (?=of )"), lambda value: f"{value:.3g} MB" if value >= 1 else f"{value * 1e3:.3g} kB"),
    (re.compile(r"^ms(?:, | (?=o))| (?:in )?ms(?=$|[ ,])| \(ms\)$"), lambda value: f"{_three_digits(value)} ms"),
    (re.compile(r"^seconds (?=o)"), duration_text),
    (re.compile(r"^minutes (?=o)"), lambda value: duration_text(60 * value)),
    (re.compile(r"^% | \(%\)(?=$|,)"), lambda value: f"{value:.4g} %"),
    (re.compile(r" in dB$"), lambda value: f"{value:.1f} dB"),
    (re.compile(r"^× "), lambda value: f"{value:.3g}×"),
    (re.compile(r"^share (?=of )"), lambda value: f"{value:.0%}"),
    (re.compile(r"(?<=relative error)$|^(?=relative error)"), lambda value: f"{value:.2g}"),
)
"""Where the name of a figure says its unit -> the value with this unit, which the name need not say then."""


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}"


def figure_text(name: str, value: Cell) -> tuple[str, str]:
    """A figure as the large numbers of a page show it: its value with the unit, and its name without."""
    if isinstance(value, int | float):
        for unit, text in _UNITS:
            if unit.search(name):
                return text(value), unit.sub("", name, count=1)
    return cell_text(value), name


def compared(documents: Sequence[Document]) -> Section:
    """The figures of several documents side by side, and the ratio of the last to the first where both have one."""
    names = list(dict.fromkeys(name for document in documents for name in document.figures))
    rows: list[list[Cell]] = []
    for name in names:
        values = [document.figures.get(name) for document in documents]
        first, last = values[0], values[-1]
        numbers = isinstance(first, int | float) and isinstance(last, int | float) and first
        ratio = float(last) / float(first) if numbers and first and last is not None else None
        rows.append([name, *values, ratio])
    titles = ["", *(document.title for document in documents), "last / first"]
    return Section("Side by side", "", table=Table(titles, rows, mixed=True))
