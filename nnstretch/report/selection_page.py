"""The report of a selection: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nnstretch.report.selection_picture import front_svg, search_svg
from nnstretch.report.selection_table import amount_text, certainty_text, parameters_text, thinned
from nnstretch.report.style import page_style
from nnstretch.report.svg import element

_SEARCHES = (
    "Random search and Q-learning try one assignment after another; dots are episodes, lines the best so far. "
    "The other selectors come to their answers (dashed) at once. Predicted latency is the sum of measured routines and adapt "
    "layers."
)
_FRONT = (
    "No assignment of routines is better than one of these in everything. Memory counts prepared weights and workspaces. "
    "Rest the pointer on a dot to see its values; a limit such as --limit memory=… picks the fastest plan within it."
)
_CANDIDATES = (
    "Each layer's routines with their best parameters, the fastest first; the chosen one is marked. Adapts is what bringing "
    "its inputs into the right layouts costs. Greedy loses is the least by which the whole network would be slower if this "
    "layer took what is fastest for itself."
)


def selection_html(answer: Mapping[str, Any], model: str) -> str:
    """The report as text.

    Args:
        answer: what `tune --json` prints.
        model: its name, for the title.
    """
    title = f"How the routines of {model} were selected"
    lead = (
        f"Predicted {answer['predicted_ms']:.3f} ms, measured {answer['measured_ms']:.3f} ms; selected by "
        f"{answer['selector']}, {certainty_text(answer['optimal'], answer['gap'])}."
    )
    sections = [f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>']
    if "comparison" in answer:
        content = search_svg(answer["comparison"]) + _comparison(answer["comparison"])
        sections.append(_section("All selectors on the same problem", _SEARCHES, content))
    if "pareto" in answer:
        sections.append(_section("Pareto front", _FRONT, front_svg(answer["pareto"]) + _front(answer["pareto"])))
    if "explanation" in answer:
        sections.append(_section("Candidates of every layer", _CANDIDATES, _explanation(answer["explanation"])))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page_style()}</style>"
    )
    footer = "<footer>Made by nnstretch tune.</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}{footer}</body></html>\n'


def _section(title: str, text: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><p>{escape(text)}</p><div class="scroll">{content}</div>'


def _table(titles: Sequence[str], rows: Sequence[tuple[Sequence[str], bool]], texts: int) -> str:
    """A table of (cells, whether the row stands out); the first columns, as many as `texts`, are text, the others numbers."""
    heads = "".join(
        element("th", escape(t), class_="number" if number >= texts else None) for number, t in enumerate(titles)
    )
    lines = "".join(
        element(
            "tr",
            "".join(
                element("td", escape(cell), class_="number" if number >= texts else None)
                for number, cell in enumerate(cells)
            ),
            class_="chosen" if strong else None,
        )
        for cells, strong in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    best = min(row["predicted_ms"] for row in rows)
    lines = [
        (
            (
                row["selector"],
                certainty_text(row["optimal"], row["gap"]),
                f"{row['predicted_ms']:.3f}",
                f"{row['predicted_ms'] / best - 1:.2%}" if best else "",
                str(row["states"] or ""),
                f"{row['seconds']:.3f}",
            ),
            bool(row["optimal"]),
        )
        for row in rows
    ]
    return _table(("selector", "proof", "predicted ms", "over the best", "states", "seconds"), lines, texts=2)


def _front(front: Mapping[str, Any]) -> str:
    resources = [name for name in front["objectives"] if name != "latency"]
    lines = [
        ((f"{point['latency_ms']:.3f}", *(amount_text(r, point[r]) for r in resources)), False)
        for point in thinned(front["points"])
    ]
    return _table(("latency ms", *resources), lines, texts=0)


def _explanation(units: Sequence[Mapping[str, Any]]) -> str:
    lines: list[tuple[Sequence[str], bool]] = []
    for unit in units:
        if len(unit["candidates"]) < 2:
            continue
        for number, candidate in enumerate(unit["candidates"]):
            first, chosen = number == 0, bool(candidate["chosen"])
            lines.append(
                (
                    (
                        unit["name"] if first else "",
                        unit["op"] if first else "",
                        candidate["routine"],
                        parameters_text(candidate["parameters"]),
                        candidate["layouts"],
                        f"{candidate['cost_ms']:.3f}",
                        f"{unit['adapts_ms']:.3f}" if chosen and unit["adapts_ms"] else "",
                        f"{unit['greedy_loss_ms']:.3f}" if first and unit["greedy_loss_ms"] else "",
                    ),
                    chosen,
                )
            )
    titles = ("layer", "op", "routine", "parameters", "layouts", "ms", "adapts ms", "greedy loses ms")
    return _table(titles, lines, texts=5)
