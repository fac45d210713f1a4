"""Numbers and tables as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def count_text(count: float | None) -> str:
    """A count in a form that fits a table: 1.81 G, 11.7 M, 7.2 k; "–" if it is not known."""
    if count is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {unit}"
    return f"{count:.3g}"


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table with a line under its head; a column whose title starts with ">" is set to the right and not broken."""
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        if column.startswith(">"):
            made.add_column(column[1:], justify="right", no_wrap=True)
        else:
            made.add_column(column, overflow="fold")
    return made
