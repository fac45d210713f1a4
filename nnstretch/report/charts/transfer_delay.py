"""Chart of latencies by the cost of a transfer between processors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nnstretch.report.charts.svg import BOTTOM, LEFT, TOP, Axes, dot, label, line, polyline, stacked

_NAMES = 190
_UNIT = 20.0  # microseconds; the axis is linear below and logarithmic above
_APART = 15.0
_LINE = 15.0


@dataclass(frozen=True)
class DelayRow:
    """What was measured with one delay.

    Attributes:
        ms: way to run the network -> milliseconds; every row has the same ways.
        fastest: name of the fastest way, with a comma where it may be broken into two lines.
        is_branched: whether the answer of the search is a branched network.
    """

    ms: Mapping[str, float]
    fastest: str
    is_branched: bool


def transfer_delay_picture(found: Mapping[float, DelayRow], answer: str, title: str) -> str:
    """A stand-alone SVG with a line per way to run a network, and the fastest way below each delay.

    Args:
        found: microseconds that a transfer takes longer -> what was measured.
        answer: the way that the search chose, which stands out; its dots are hollow where it is not branched.
        title: over the chart.
    """
    ways = list(next(iter(found.values())).ms)
    axes = Axes(
        [_place(us) for us in found],
        [0.0, *(ms for row in found.values() for ms in row.ms.values())],
        right=960.0 - _NAMES,
    )
    parts = [label(0, 14, f"{title}: milliseconds by what a transfer between processors costs more", "strong")]
    parts += [part for part in axes.frame("", "ms") if 'text-anchor="middle"' not in part]
    for us, row in found.items():
        x, _ = axes.at(_place(us), axes.y0)
        text = f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} µs"
        parts += [line(x, TOP, x, BOTTOM, "grid"), label(x, BOTTOM + 18, text, "small", "middle")]
        lines = row.fastest.split(", ")
        parts += [label(x, BOTTOM + 18 + _LINE * (n + 1), word, "strong", "middle") for n, word in enumerate(lines)]
    parts.append(label(960 - _NAMES + 10, BOTTOM + 18 + _LINE, "fastest", "strong"))
    ends = []
    for way in ways:
        class_ = "series-1" if way == answer else "series-0" if way.startswith("control") else "series-2"
        class_ += " thin" if "all cores" in way else ""
        points = [axes.at(_place(us), row.ms[way]) for us, row in found.items()]
        parts.append(polyline(points, f"line {class_}"))
        parts += [
            dot(x, y, 4.0, "ring", f"{way}, whole, +{us:g} µs: {row.ms[way]:.3g} ms")
            if way == answer and not row.is_branched
            else dot(x, y, 3.2 if way == answer else 2.2, f"dot {class_}", f"{way}, +{us:g} µs: {row.ms[way]:.3g} ms")
            for (x, y), (us, row) in zip(points, found.items(), strict=True)
        ]
        ends.append((points[-1][1], way))
    lowest = -math.inf
    for y, way in sorted(ends):
        lowest = max(y + 4, lowest + _APART)
        parts.append(label(960 - _NAMES + 10, lowest, way, "strong" if way == answer else "small"))
    return stacked([(max(BOTTOM + 2 * _LINE, lowest) + 34, parts)], title, margin=float(LEFT) / 4)


def _place(us: float) -> float:
    return math.log2(1 + us / _UNIT)
