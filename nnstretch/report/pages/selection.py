"""The page of a selection: selectors compared, the Pareto front, and every layer's candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.report.charts.selection import front_svg, search_svg
from nnstretch.report.pages.render import render
from nnstretch.report.tables.selection import amount_text, certainty_text, parameters_text, thinned


def selection_html(answer: Mapping[str, Any], model: str) -> str:
    """The page as text.

    Args:
        answer: the object that `tune --json` prints.
        model: its name, for the title.
    """
    return render(
        "selection.html",
        title=f"Selected routines of {model}",
        figures=[],
        answer=answer,
        certainty=certainty_text(answer["optimal"], answer["gap"]),
        comparison=_comparison(answer["comparison"]) if "comparison" in answer else {},
        front=_front(answer["pareto"]) if "pareto" in answer else {},
        candidates=_candidates(answer["explanation"]) if "explanation" in answer else {},
    )


def _comparison(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    best = min(row["predicted_ms"] for row in rows)
    cells = [
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
    return {"chart": search_svg(rows), "rows": cells, "kinds": ["chosen" if row["optimal"] else None for row in rows]}


def _front(front: Mapping[str, Any]) -> dict[str, Any]:
    resources = [name for name in front["objectives"] if name != "latency"]
    rows = [
        (f"{point['latency_ms']:.3f}", *(amount_text(r, point[r]) for r in resources))
        for point in thinned(front["points"])
    ]
    return {"chart": front_svg(front), "titles": ("latency ms", *resources), "rows": rows}


def _candidates(units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows for the units that have a choice; a unit's name and figures stand in its first row."""
    rows: list[Sequence[str]] = []
    kinds: list[str | None] = []
    for unit in units:
        if len(unit["candidates"]) < 2:
            continue
        for number, candidate in enumerate(unit["candidates"]):
            first, chosen = number == 0, bool(candidate["chosen"])
            kinds.append("chosen" if chosen else None)
            rows.append(
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
    return {"rows": rows, "kinds": kinds}
