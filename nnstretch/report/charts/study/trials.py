"""Charts of a study: trials by two objectives, importances of parameters, parallel coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnstretch.report.charts.svg import (
    BOTTOM,
    GLYPH,
    WIDTH,
    Axes,
    Panel,
    box,
    dot,
    element,
    label,
    polyline,
)
from nnstretch.report.charts.svg import (
    line as straight,
)

_NAMES = 210
_BAR = 14
_SIDE = 70


@dataclass(frozen=True)
class Mark:
    """A trial in a chart.

    Attributes:
        x, y: its values.
        row: its row in the table of trials.
        best: whether it lies on the front.
        feasible: whether it keeps the constraints.
        tip: text for the pointer; "" leaves it to the page, which knows the row.
    """

    x: float
    y: float
    row: int
    best: bool
    feasible: bool
    tip: str


def scatter_panel(marks: Sequence[Mark], x_name: str, y_name: str, *, line: bool) -> Panel:
    """A dot per trial, the front on top; with `line` its trials are joined in the order of x.

    Dots of a kind are a group, whose colour they share: there may be thousands.
    """
    axes = Axes([mark.x for mark in marks], [mark.y for mark in marks])
    parts = axes.frame(x_name, y_name)
    for class_, opacity, radius, chosen in (
        ("dot series-2", 0.35, 2.4, [mark for mark in marks if not mark.best and not mark.feasible]),
        ("dot series-0", 0.7, 2.4, [mark for mark in marks if not mark.best and mark.feasible]),
        ("dot series-1", 1.0, 4.2, [mark for mark in marks if mark.best]),
    ):
        dots = [dot(*axes.at(mark.x, mark.y), radius, None, mark.tip, row=mark.row) for mark in chosen]
        if dots:
            parts.append(element("g", *dots, class_=class_, fill_opacity=opacity))
    front = sorted(axes.at(mark.x, mark.y) for mark in marks if mark.best)
    if line and len(front) > 1:
        parts.append(polyline(front, "line series-1"))
    return BOTTOM + 44, parts


def importance_panel(importances: Mapping[str, Mapping[str, float]]) -> Panel:
    """A group of bars per objective, the most important parameter first."""
    y, parts = 14.0, []
    for objective, values in importances.items():
        parts.append(label(0, y, objective, "strong"))
        y += 10
        longest = max(values.values()) or 1.0
        for name, value in sorted(values.items(), key=lambda item: -item[1]):
            width = value / longest * (WIDTH - _NAMES - 60)
            shown = name if len(name) * GLYPH < _NAMES else f"{name[: int(_NAMES / GLYPH) - 1]}…"
            parts.append(label(_NAMES - 8, y + _BAR - 3, shown, "small", "end"))
            parts.append(box(_NAMES, y, max(width, 1), _BAR - 2, "conv", f"{name}: {value:.3f}", 1.5))
            parts.append(label(_NAMES + width + 6, y + _BAR - 3, f"{value:.2f}", "small"))
            y += _BAR + 3
        y += 22
    return y, parts


def parallel_panel(axes: Mapping[str, Sequence[Any]], best: Sequence[bool]) -> Panel:
    """A vertical axis per parameter and objective, a line per trial, those on the front in colour and on top.

    Args:
        axes: name -> a number or word per trial; at least two axes.
        best: whether a trial lies on the front.
    """
    top, bottom = 40.0, 300.0
    gap = (WIDTH - 2 * _SIDE) / (len(axes) - 1)
    columns = []
    parts: list[str] = []
    for number, (name, values) in enumerate(axes.items()):
        x = _SIDE + number * gap
        places, ticks = _places(values, top, bottom)
        columns.append((x, places))
        parts.append(straight(x, top, x, bottom, "axis"))
        parts.append(label(x, top - (24 if number % 2 else 10), name, "small", "middle"))
        parts += [label(x + 4, y + 4, text, "small") for y, text in ticks]
    order = sorted(range(len(best)), key=lambda trial: best[trial])
    lines = []
    for trial in order:
        points = [(x, places[trial]) for x, places in columns]
        lines.append(polyline(points, "line thin best series-1" if best[trial] else "line thin series-2"))
    return bottom + 16, [*lines, *parts]


def _places(values: Sequence[Any], top: float, bottom: float) -> tuple[list[float], list[tuple[float, str]]]:
    """Heights of values on an axis, and the texts beside it: the ends of numbers, or all words."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        span = (high - low) or 1.0
        ends = [(bottom, f"{low:.3g}"), (top, f"{high:.3g}")] if high > low else [(bottom, f"{low:.3g}")]
        return [bottom - (value - low) / span * (bottom - top) for value in values], ends
    words = list(dict.fromkeys(map(str, values)))
    step = (bottom - top) / max(1, len(words) - 1)
    at = {word: bottom - number * step for number, word in enumerate(words)}
    return [at[str(value)] for value in values], [(y, word) for word, y in at.items()]
