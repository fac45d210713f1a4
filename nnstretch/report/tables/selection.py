"""The selection of routines as tables for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nnstretch.report.tables.text import plain_table

_MOST_POINTS = 40
"""Largest number of front points in a terminal table; JSON has all."""

Row = Mapping[str, Any]


def amount_text(resource: str, amount: float) -> str:
    """An amount of a resource: bytes as MB, errors as powers of ten."""
    return f"{amount / 1e6:.2f} MB" if resource == "memory" else f"{amount:.2e}"


def parameters_text(parameters: Mapping[str, int]) -> str:
    """Routine parameters in one line."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def certainty_text(optimal: bool, gap: float) -> str:
    """The proved optimality of an answer, as text."""
    return "proved optimal" if optimal else f"at most {gap:.2%} from the optimum"


def explanation_table(units: Sequence[Row]) -> Any:
    """A line per candidate, fastest first per layer; the chosen one is highlighted.

    Layers with a single candidate are omitted.
    """
    shown = plain_table(
        "layer", "op", "routine", "parameters", "layouts", ">ms", ">adapts ms", ">greedy loses ms", title="Candidates"
    )
    for unit in units:
        if len(unit["candidates"]) < 2:
            continue
        for number, candidate in enumerate(unit["candidates"]):
            first, chosen = number == 0, candidate["chosen"]
            shown.add_row(
                unit["name"] if first else "",
                unit["op"] if first else "",
                ("● " if chosen else "  ") + candidate["routine"],
                parameters_text(candidate["parameters"]),
                candidate["layouts"],
                f"{candidate['cost_ms']:.3f}",
                f"{unit['adapts_ms']:.3f}" if chosen and unit["adapts_ms"] else "",
                f"{unit['greedy_loss_ms']:.3f}" if first and unit["greedy_loss_ms"] else "",
                style="bold" if chosen else "dim",
                end_section=number == len(unit["candidates"]) - 1,
            )
    lost = sum(unit["greedy_loss_ms"] for unit in units)
    adapts = sum(unit["adapts_ms"] for unit in units)
    shown.caption = (
        f"● chosen. Adapt layers cost {adapts:.3f} ms in all. What a layer's fastest candidate would lose is the least by "
        f"which the whole network would be slower with it ({lost:.3f} ms in all, layer by layer)."
    )
    shown.caption_justify = "left"
    return shown


def comparison_table(rows: Sequence[Row]) -> Any:
    """A line per selector."""
    shown = plain_table(
        "selector", ">predicted ms", ">over the best", "optimality", ">states", ">seconds", title="All selectors"
    )
    best = min(row["predicted_ms"] for row in rows)
    for row in rows:
        over = row["predicted_ms"] / best - 1 if best else 0.0
        shown.add_row(
            row["selector"],
            f"{row['predicted_ms']:.3f}",
            f"{over:.2%}" if over > 1e-9 else "–",
            certainty_text(row["optimal"], row["gap"]),
            str(row["states"] or ""),
            f"{row['seconds']:.3f}",
        )
    return shown


def front_table(front: Row) -> Any:
    """A line per point of a Pareto front, fastest first; long fronts are thinned."""
    resources = [name for name in front["objectives"] if name != "latency"]
    shown = plain_table(">latency ms", *(f">{name}" for name in resources), title="Pareto front")
    points = front["points"]
    for point in thinned(points):
        shown.add_row(f"{point['latency_ms']:.3f}", *(amount_text(r, point[r]) for r in resources))
    count = f"{len(points)} points" if len(points) <= _MOST_POINTS else f"{_MOST_POINTS} of {len(points)} points"
    missing = "" if front["gap"] is None else f", points left out gain at most {front['gap']:.2%}"
    shown.caption = count + ("" if front["complete"] else missing or ", not complete")
    shown.caption_justify = "left"
    return shown


def thinned(points: Sequence[Row]) -> list[Row]:
    """At most a fixed number of points, both ends included."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS)]
