"""The selection of routines as tables for terminals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnstretch.report.tables.text import (
    FAR_OFF,
    clocks_text,
    ms_text,
    operator_text,
    parameters_text,
    plain_table,
    quietness_lines,
    times_text,
)
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

_MOST_POINTS = 40
"""Largest number of front points in a table; JSON has all."""
_NEAR = 1.25
"""Measured latency over the one that is predicted for the present clock up to which the clock explains the difference."""

Row = Mapping[str, Any]


def amount_text(resource: str, amount: float) -> str:
    """An amount of a resource: bytes as MB, top-1 in percent, errors as powers of ten."""
    if resource == "accuracy":
        return f"{amount:.2f} %"
    return f"{amount / 1e6:.2f} MB" if resource == "memory" else f"{amount:.2e}"


def certainty_text(optimal: bool, gap: float) -> str:
    """The proved optimality of an answer, as text."""
    return "proved optimal" if optimal else f"at most {gap:.2%} from the optimum"


def choice_text(answer: Row) -> str:
    """How good the choice of routines is, in words for those who do not know selectors."""
    within = " within the limits" if answer.get("limits") else ""
    if answer["optimal"]:
        return f"by the measured times, no other choice of routines{within} is faster: all were compared or ruled out"
    return f"by the measured times, another choice of routines{within} is at most {answer['gap']:.2%} faster"


def difference_text(answer: Row) -> str:
    """Why a plan took much longer or less long than predicted, if it did, or what disturbed the tuning; and what to do."""
    predicted, measured, clocks = answer["predicted_ms"], answer["measured_ms"], answer.get("clocks", {})
    busy = " ".join(quietness_lines(None, OtherPrograms.from_json(answer.get("other_programs"))))
    again = f"{busy} with --fresh" if busy else ""
    if not predicted or max(measured, predicted) < FAR_OFF * min(measured, predicted):
        return again if answer["measurements"] else ""
    far = f"measured {times_text(measured / predicted)} the predicted latency"
    at_this_clock = predicted / min(clocks.values(), default=1.0)
    if predicted < measured < _NEAR * at_this_clock:
        return (
            f"{far}: predictions hold at the reference frequency; the processors run at another one now "
            f"({clocks_text(clocks)} of it), at which about {ms_text(at_this_clock)} ms are expected"
        )
    if again:
        return f"{far}: {again}"
    slow = "either the machine was disturbed, or the layers are slow together"
    why = slow if measured > predicted else "the machine was disturbed when routines were measured"
    return f"{far}: {why}; tune again on a quiet machine, with --fresh"


def dtypes_text(found: Row) -> str:
    """The predicted latencies of a network in each element type, and how many layers a hybrid computes in each."""
    predicted = ", ".join(f"{name} {ms_text(ms)} ms" for name, ms in found["predicted_ms"].items())
    counts = Counter(found["layers"].values())
    return f"predicted: {predicted}; layers: {', '.join(f'{counts[name]} in {name}' for name in sorted(counts))}"


def accuracy_text(found: Row) -> str:
    """Measured accuracies of a hybrid and of the network in float32."""
    top1 = found["top1"]
    return (
        f"top-1 on {found['images']} validation images: {top1['hybrid']:.2f} %, in float32 {top1['float32']:.2f} % (may lose "
        f"{found['points']:g} points)"
    )


CANDIDATE_TITLES = ("layer", "op", "routine", ">ms", ">adapts ms", ">greedy loses ms", "parameters", "layouts")
COMPARISON_TITLES = ("selector", "optimality", ">predicted ms", ">over the best", ">states", ">seconds")


def candidate_rows(units: Sequence[Row]) -> Iterator[tuple[list[str], bool, bool]]:
    """Cells of every candidate, fastest first per layer, whether it is chosen, and whether it is the layer's last.

    A layer's name and figures stand in its first row.
    """
    for unit in units:
        candidates = unit["candidates"]
        for number, candidate in enumerate(candidates):
            first, chosen = number == 0, bool(candidate["chosen"])
            cells = [
                unit["name"] if first else "",
                operator_text(unit["op"]) if first else "",
                candidate["routine"],
                f"{candidate['cost_ms']:.3f}",
                f"{unit['adapts_ms']:.3f}" if chosen and unit["adapts_ms"] else "",
                f"{unit['greedy_loss_ms']:.3f}" if first and unit["greedy_loss_ms"] else "",
                parameters_text(candidate["parameters"]),
                candidate["layouts"],
            ]
            yield cells, chosen, number == len(candidates) - 1


def comparison_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of every selector. "Over the best" is a share of the selector's own cost, as the proved gap is."""
    best = min(row["predicted_ms"] for row in rows)
    return [
        (
            row["selector"],
            certainty_text(row["optimal"], row["gap"]),
            f"{row['predicted_ms']:.3f}",
            f"{1 - best / row['predicted_ms']:.2%}" if best else "",
            str(row["states"] or ""),
            f"{row['seconds']:.3f}",
        )
        for row in rows
    ]


def front_titles(front: Row) -> list[str]:
    """The objectives of a Pareto front."""
    names = {"latency": "latency ms", "accuracy": "top-1"}
    types = ["int8 layers"] if "images" in front else []
    return [*(names.get(name, name) for name in front["objectives"]), *types]


def front_rows(front: Row) -> list[list[str]]:
    """Cells of the points of a Pareto front, fastest first; long fronts are thinned, both ends included."""
    points, last = front["points"], len(front["points"]) - 1
    if len(points) > _MOST_POINTS:
        points = [points[round(i * last / (_MOST_POINTS - 1))] for i in range(_MOST_POINTS)]
    resources = [name for name in front["objectives"] if name != "latency"]
    rows = [[f"{point['latency_ms']:.3f}", *(amount_text(r, point[r]) for r in resources)] for point in points]
    if "images" in front:
        rows = [[*row, str(point["layers"].get("int8", 0))] for row, point in zip(rows, points, strict=True)]
    return rows


def explanation_table(units: Sequence[Row]) -> Table:
    """A line per candidate; the chosen one is highlighted."""
    shown = plain_table(*CANDIDATE_TITLES, title="Candidates")
    for cells, chosen, last in candidate_rows(units):
        cells[2] = ("● " if chosen else "  ") + cells[2]
        shown.add_row(*cells, style="bold" if chosen else "dim", end_section=last)
    lost = sum(unit["greedy_loss_ms"] for unit in units)
    adapts = sum(unit["adapts_ms"] for unit in units)
    shown.caption = (
        f"● chosen. Adapt layers cost {adapts:.3f} ms in all. What a layer's fastest candidate would lose is the least by "
        f"which the whole network would be slower with it ({lost:.3f} ms in all, layer by layer)."
    )
    return shown


def comparison_table(rows: Sequence[Row]) -> Table:
    """A line per selector."""
    shown = plain_table(*COMPARISON_TITLES, title="All selectors")
    for cells in comparison_rows(rows):
        shown.add_row(*cells)
    return shown


def front_table(front: Row) -> Table:
    """A line per point of a Pareto front."""
    shown = plain_table(*(f">{title}" for title in front_titles(front)), title="Pareto front")
    for cells in front_rows(front):
        shown.add_row(*cells)
    points = len(front["points"])
    count = counted(points, "point") if points <= _MOST_POINTS else f"{_MOST_POINTS} of {points} points"
    missing = "" if front["gap"] is None else f", points left out gain at most {front['gap']:.2%}"
    shown.caption = count + ("" if front["complete"] else missing or ", not complete")
    if "images" in front:
        how = f"{counted(front['measured_plans'], 'plan')} of {front['candidates']}"
        shown.caption += f"; top-1 measured of {how}, on {counted(front['images'], 'image')}"
    return shown
