"""Chart of latencies by the cost of a transfer between processors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from nnstretch.report.charts.svg import BOTTOM, LEFT, TOP, Axes, dot, label, line, polyline, stacked

_NAMES = 190
_UNIT = 20.0  # microseconds; the axis is linear below and logarithmic above
_APART = 15.0


def transfer_delay_picture(found: Mapping[float, Mapping[str, float]], title: str) -> str:
    """A stand-alone SVG with a line per way to run a network; the branched one stands out.

    Args:
        found: microseconds that a transfer takes longer -> way -> milliseconds; "branched" is one of the ways.
        title: over the chart.
    """
    ways = list(next(iter(found.values())))
    axes = Axes(
        [_place(us) for us in found],
        [0.0, *(ms for row in found.values() for ms in row.values())],
        right=960.0 - _NAMES,
    )
    parts = [label(0, 14, f"{title}: milliseconds by what a transfer between processors costs more", "strong")]
    parts += [part for part in axes.frame("", "ms") if 'text-anchor="middle"' not in part]
    for us in found:
        x, _ = axes.at(_place(us), axes.y0)
        text = f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} µs"
        parts += [line(x, TOP, x, BOTTOM, "grid"), label(x, BOTTOM + 18, text, "small", "middle")]
    ends = []
    for way in ways:
        class_ = "series-1" if way == "branched" else "series-0" if way.startswith("control") else "series-2"
        class_ += " thin" if "all cores" in way else ""
        points = [axes.at(_place(us), row[way]) for us, row in found.items()]
        parts.append(polyline(points, f"line {class_}"))
        parts += [
            dot(x, y, 3.2 if way == "branched" else 2.2, f"dot {class_}", f"{way}, +{us:g} µs: {row[way]:.3g} ms")
            for (x, y), (us, row) in zip(points, found.items(), strict=True)
        ]
        ends.append((points[-1][1], way))
    lowest = -math.inf
    for y, way in sorted(ends):
        lowest = max(y + 4, lowest + _APART)
        parts.append(label(960 - _NAMES + 10, lowest, way, "strong" if way == "branched" else "small"))
    return stacked([(max(BOTTOM, lowest) + 34, parts)], title, margin=float(LEFT) / 4)


def _place(us: float) -> float:
    return math.log2(1 + us / _UNIT)
