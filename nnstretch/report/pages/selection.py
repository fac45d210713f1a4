"""The report of a selection as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.report.charts.selection import front_svg, search_svg
from nnstretch.report.pages.page import Html, opening, page, section, table
from nnstretch.report.tables.selection import amount_text, certainty_text, parameters_text, thinned

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
    sections = [opening(title, lead)]
    if "comparison" in answer:
        content = search_svg(answer["comparison"]) + _comparison(answer["comparison"])
        sections.append(section("All selectors on the same problem", _SEARCHES, content))
    if "pareto" in answer:
        sections.append(section("Pareto front", _FRONT, front_svg(answer["pareto"]) + _front(answer["pareto"])))
    if "explanation" in answer:
        sections.append(section("Candidates of every layer", _CANDIDATES, _explanation(answer["explanation"])))
    return page(title, sections, Html("Made by nnstretch tune."))


def _comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    best = min(row["predicted_ms"] for row in rows)
    lines = [
        (
            row["selector"],
            certainty_text(row["optimal"], row["gap"]),
            f"{row['predicted_ms']:.3f}",
            f"{row['predicted_ms'] / best - 1:.2%}" if best else "",
            str(row["states"] or ""),
            f"{row['seconds']:.3f}",
        )
        for row in rows
    ]
    titles = ("selector", "optimality", "predicted ms", "over the best", "states", "seconds")
    return table(titles, lines, texts=2, kinds=["chosen" if row["optimal"] else None for row in rows])


def _front(front: Mapping[str, Any]) -> str:
    resources = [name for name in front["objectives"] if name != "latency"]
    lines = [
        (f"{point['latency_ms']:.3f}", *(amount_text(r, point[r]) for r in resources))
        for point in thinned(front["points"])
    ]
    return table(("latency ms", *resources), lines, texts=0)


def _explanation(units: Sequence[Mapping[str, Any]]) -> str:
    lines: list[Sequence[str]] = []
    kinds: list[str | None] = []
    for unit in units:
        if len(unit["candidates"]) < 2:
            continue
        for number, candidate in enumerate(unit["candidates"]):
            first, chosen = number == 0, bool(candidate["chosen"])
            kinds.append("chosen" if chosen else None)
            lines.append(
                (
                    unit["name"] if first else "",
                    unit["op"] if first else "",
                    candidate["routine"],
                    parameters_text(candidate["parameters"]),
                    candidate["layouts"],
                    f"{candidate['cost_ms']:.3f}",
                    f"{unit['adapts_ms']:.3f}" if chosen and unit["adapts_ms"] else "",
                    f"{unit['greedy_loss_ms']:.3f}" if first and unit["greedy_loss_ms"] else "",
                )
            )
    titles = ("layer", "op", "routine", "parameters", "layouts", "ms", "adapts ms", "greedy loses ms")
    return table(titles, lines, texts=5, kinds=kinds)
