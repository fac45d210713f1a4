"""Charts of a selection: searches by episode (QS-DNN, figure 4) and Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from nnstretch.report.charts.svg import (
    BOTTOM,
    LEFT,
    WIDTH,
    Axes,
    Panel,
    dot,
    label,
    line,
    polyline,
    series_legend,
)
from nnstretch.report.tables.selection import amount_text

_MOST_DOTS = 500

Row = Mapping[str, Any]


def search_panel(rows: Sequence[Row]) -> Panel:
    """A dot per episode, a line of the best so far, dashed lines for selectors without episodes."""
    searching = [row for row in rows if row["curve"]]
    others = [row for row in rows if not row["curve"]]
    costs = [cost for row in searching for _, cost in row["curve"]] + [row["predicted_ms"] for row in rows]
    steps = [step for row in searching for step, _ in row["curve"]]
    axes = Axes(steps or [1, 2], costs)
    parts = [label(0, 12, "Searches episode by episode: every episode (dots) and the best so far (lines)", "strong")]
    parts += axes.frame("episode", "predicted ms")
    for number, row in enumerate(searching):
        every = max(1, len(row["curve"]) // _MOST_DOTS)
        for step, cost in row["curve"][::every]:
            x, y = axes.at(step, cost)
            parts.append(dot(x, y, 1.6, f"dot series-{number % 4}", opacity=0.45))
    for number, row in enumerate(searching):
        best = accumulate((cost for _, cost in row["curve"]), min)
        points = [axes.at(step, cost) for (step, _), cost in zip(row["curve"], best, strict=True)]
        parts.append(polyline(points, f"line series-{number % 4}"))
    parts += _ends(others, axes)
    return BOTTOM + 44, [*parts, *series_legend(LEFT, BOTTOM + 34, (row["selector"] for row in searching))]


def _ends(rows: Sequence[Row], axes: Axes) -> list[str]:
    """One dashed line per cost of the selectors without episodes."""
    parts: list[str] = []
    by_cost: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float(r["predicted_ms"])):
        by_cost.setdefault(f"{row['predicted_ms']:.4g}", []).append(row)
    above = float("inf")
    for cost, mine in by_cost.items():
        _, y = axes.at(axes.x0, mine[0]["predicted_ms"])
        names = ", ".join(row["selector"] for row in mine)
        parts.append(line(LEFT, y, WIDTH - 16, y, "bound"))
        above = min(y - 5, above - 14)
        parts.append(label(WIDTH - 18, above, f"{names}: {cost} ms", "bound-text", "end"))
    return parts


def front_panel(front: Row) -> Panel:
    """A dot per point; with two objectives the staircase of the front."""
    resources = [name for name in front["objectives"] if name != "latency"]
    first = "accuracy" if "accuracy" in resources else resources[0]
    scale = 1e-6 if first == "memory" else 1.0
    points = [(point["latency_ms"], point[first] * scale) for point in front["points"]]
    axes = Axes([x for x, _ in points], [y for _, y in points])
    unit = {"memory": "memory, MB", "accuracy": "top-1, %"}.get(first, f"{first}, sum of relative errors")
    parts = [label(0, 12, f"Pareto front: {' against '.join(front['objectives'])}", "strong")]
    parts += axes.frame("predicted ms", unit)
    if len(resources) == 1:
        stairs = [axes.at(*points[0])]
        for (_, y), (x, lower) in pairwise(points):
            stairs += [axes.at(x, y), axes.at(x, lower)]
        parts.append(polyline(stairs, "line series-0"))
    for point, place in zip(front["points"], points, strict=True):
        x, y = axes.at(*place)
        amounts = ", ".join(f"{r} {amount_text(r, point[r])}" for r in resources)
        parts.append(dot(x, y, 3, "dot series-0", f"{point['latency_ms']:.4g} ms, {amounts}"))
    return BOTTOM + 44, parts
