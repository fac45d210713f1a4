"""Pages: HTML files that need nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nnstretch.report.charts.style import page_style
from nnstretch.report.charts.svg import element


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def page(title: str, parts: Sequence[str], footer: Html, style: str = "") -> str:
    """A whole page.

    Args:
        title: of the window; the parts have the heading.
        parts: HTML, one below the other.
        footer: the last line.
        style: rules beside those of all pages.
    """
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page_style()}{style}</style>"
    )
    body = f"{''.join(parts)}<footer>{footer}</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def opening(title: str, lead: str, figures: Sequence[tuple[str, str]] = ()) -> str:
    """The heading, what is said below it, and large numbers, each with what it is."""
    shown = "".join(
        element("div", element("b", escape(value)), element("span", escape(what)), class_="figure")
        for value, what in figures
    )
    below = f'<div class="figures">{shown}</div>' if figures else ""
    return f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{below}'


def section(title: str, text: str, content: str, anchor: str | None = None) -> str:
    """A heading, a paragraph if `text` is not empty, and HTML; `anchor` is a name that links lead to."""
    paragraph = f"<p>{text if isinstance(text, Html) else escape(text)}</p>" if text else ""
    name = f' id="{escape(anchor)}"' if anchor else ""
    return f'<h2{name}>{escape(title)}</h2>{paragraph}<div class="scroll">{content}</div>'


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1, kinds: Sequence[str | None] = ()
) -> str:
    """A table.

    Args:
        titles: of the columns.
        rows: cells, as text or `Html`.
        texts: the first columns, as many as this, are text, the others numbers.
        kinds: for every row a class that makes it stand out, or None.
    """
    heads = "".join(
        element("th", escape(title), class_="number" if number >= texts else None)
        for number, title in enumerate(titles)
    )
    lines = "".join(
        element("tr", *(_cell(cell, number >= texts) for number, cell in enumerate(row)), class_=kind)
        for row, kind in zip(rows, kinds or [None] * len(rows), strict=True)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def folded(title: str, content: str) -> str:
    """HTML that is shown once its title is clicked on."""
    return element("details", element("summary", escape(title)), content)


def items(texts: Sequence[str]) -> str:
    """A list."""
    return element("ul", *(element("li", escape(text)) for text in texts))


def _cell(cell: str, is_number: bool) -> str:
    content = cell if isinstance(cell, Html) else escape(cell)
    # Not `element`, which closes what is empty: browsers would take the next cell to lie in it.
    return f'<td class="number">{content}</td>' if is_number else f"<td>{content}</td>"
