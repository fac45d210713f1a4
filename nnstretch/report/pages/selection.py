"""The page of a selection: selectors compared, the Pareto front, and every layer's candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnstretch.report.charts.selection import front_panel, search_panel
from nnstretch.report.charts.svg import panel_picture
from nnstretch.report.pages import render
from nnstretch.report.tables.selection import candidate_rows, certainty_text, comparison_rows, front_rows, front_titles


def selection_html(answer: Mapping[str, Any], model: str) -> str:
    """The page as text.

    Args:
        answer: the object that `tune --json` prints.
        model: its name, for the title.
    """
    tables: dict[str, dict[str, Any]] = {"comparison": {}, "front": {}, "candidates": {}}
    if selectors := answer.get("comparison"):
        kinds = ["chosen" if row["optimal"] else None for row in selectors]
        chart = panel_picture(search_panel(selectors), "Predicted latency by episode")
        tables["comparison"] = {"chart": chart, "rows": comparison_rows(selectors), "kinds": kinds}
    if front := answer.get("pareto"):
        chart = panel_picture(front_panel(front), "Pareto front")
        tables["front"] = {"chart": chart, "titles": front_titles(front), "rows": front_rows(front)}
    if "explanation" in answer:
        found = list(candidate_rows(answer["explanation"]))
        kinds = ["chosen" if chosen else None for _, chosen, _ in found]
        tables["candidates"] = {"rows": [cells for cells, _, _ in found], "kinds": kinds}
    return render(
        "selection.html",
        title=f"Selected routines of {model}",
        figures=[],
        answer=answer,
        certainty=certainty_text(answer["optimal"], answer["gap"]),
        **tables,
    )
