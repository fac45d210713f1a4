"""Chart of latencies by the cost of a transfer between processors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.report.charts.svg import BOTTOM, LEFT, TOP, WIDTH, Axes, dot, label, line, polyline, stacked

_NAMES = 190
_UNIT = 20.0  # microseconds; the axis is linear below and logarithmic above
_APART = 15.0
_LINE = 15.0
_RIGHT = float(WIDTH - _NAMES)


@dataclass(frozen=True)
class DelayRow:
    """What was measured with one delay.

    Attributes:
        ms: way to run the network -> milliseconds.
        said: what stands below the delay: name of the line -> its text; every row has the same names.
        answer: the way that the search returns; its dot has a ring.
    """

    ms: Mapping[str, float]
    said: Mapping[str, str]
    answer: str


@dataclass(frozen=True)
class DelayPanel:
    """One chart of the picture.

    Attributes:
        title: over the chart.
        rows: microseconds that a transfer takes longer -> what was measured.
    """

    title: str
    rows: Mapping[float, DelayRow]


def transfer_delay_picture(panels: Sequence[DelayPanel], branched: str) -> str:
    """A stand-alone SVG with a chart per panel, a line per way to run the network, and texts below each delay.

    Args:
        panels: with one row or more each.
        branched: the way that stands out.
    """
    return stacked([_panel(panel, branched) for panel in panels], panels[0].title, margin=float(LEFT) / 4)


def _panel(panel: DelayPanel, branched: str) -> tuple[float, list[str]]:
    """Height and elements of one chart."""
    every = [ms for row in panel.rows.values() for ms in row.ms.values()]
    axes = Axes([_place(us) for us in panel.rows], [0.0, *every], right=_RIGHT)
    parts = [
        label(0, 14, f"{panel.title}: milliseconds, by the delay added to every transfer between processors", "strong")
    ]
    parts += [part for part in axes.frame("", "ms") if 'text-anchor="middle"' not in part]
    parts += [part for us, row in panel.rows.items() for part in _below(axes, us, row)]
    lines = list(next(iter(panel.rows.values())).said)
    parts += [label(_RIGHT + 10, BOTTOM + 18 + _LINE * (n + 1), name, "small") for n, name in enumerate(lines)]
    ends: list[tuple[float, str]] = []
    for way in dict.fromkeys(way for row in panel.rows.values() for way in row.ms):
        parts += _line(axes, panel, way, branched)
        last = [row.ms[way] for row in panel.rows.values() if way in row.ms][-1]
        ends.append((axes.at(axes.x1, last)[1], way))
    for us, row in panel.rows.items():
        x, y = axes.at(_place(us), row.ms.get(row.answer, 0.0))
        parts += [dot(x, y, 6.0, "ring", f"the search returns: {row.answer}, +{us:g} µs")] * (row.answer in row.ms)
    lowest = -math.inf
    for y, way in sorted(ends):
        lowest = max(y + 4, lowest + _APART)
        parts.append(label(_RIGHT + 10, lowest, way, "strong" if way == branched else "small"))
    return max(BOTTOM + (len(lines) + 1) * _LINE, lowest) + 34, parts


def _below(axes: Axes, us: float, row: DelayRow) -> list[str]:
    """The grid line of a delay, and the texts below it."""
    x, _ = axes.at(_place(us), axes.y0)
    text = f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} µs"
    said = [
        label(x, BOTTOM + 18 + _LINE * (n + 1), word, "strong" if n == 0 else "small", "middle")
        for n, word in enumerate(row.said.values())
    ]
    return [line(x, TOP, x, BOTTOM, "grid"), label(x, BOTTOM + 18, text, "small", "middle"), *said]


def _line(axes: Axes, panel: DelayPanel, way: str, branched: str) -> list[str]:
    """The line of a way, with a dot per delay."""
    class_ = "series-1" if way == branched else "series-0" if way.startswith("control") else "series-2"
    class_ += " thin" if "all cores" in way else ""
    known = {us: row.ms[way] for us, row in panel.rows.items() if way in row.ms}
    points = [axes.at(_place(us), ms) for us, ms in known.items()]
    radius = 3.2 if way == branched else 2.2
    dots = [
        dot(x, y, radius, f"dot {class_}", f"{way}, +{us:g} µs: {ms:.3g} ms")
        for (x, y), (us, ms) in zip(points, known.items(), strict=True)
    ]
    return [polyline(points, f"line {class_}"), *dots]


def _place(us: float) -> float:
    return math.log2(1 + us / _UNIT)
