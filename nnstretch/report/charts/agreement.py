"""Scatter chart of predicted against measured values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nnstretch.report.charts.style import standalone
from nnstretch.report.charts.svg import box, element, label, line, picture, tick_text

_SIDE = 520.0
_LEFT, _TOP = 70.0, 40.0
_MARGIN = 16.0
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Agreement:
    """One predicted and measured value in milliseconds (above 0), and its tooltip."""

    predicted_ms: float
    measured_ms: float
    tip: str


def agreement_svg(series: Mapping[str, Sequence[Agreement]], tolerance: float) -> str:
    """A stand-alone SVG: logarithmic axes, one colour per series, lines at the tolerance."""
    values = [ms for some in series.values() for one in some for ms in (one.predicted_ms, one.measured_ms)]
    low, high = min(values) / 1.1, max(values) * 1.1

    def at(predicted: float, measured: float) -> tuple[float, float]:
        across, up = (math.log(ms / low) / math.log(high / low) for ms in (predicted, measured))
        return _LEFT + across * _SIDE, _TOP + (1 - up) * _SIDE

    bottom, right = _TOP + _SIDE, _LEFT + _SIDE
    parts: list[str] = []
    for tick in _ticks(low, high):
        x, y = at(tick, tick)
        parts += [line(x, _TOP, x, bottom, "grid"), line(_LEFT, y, right, y, "grid")]
        parts += [
            label(x, bottom + 18, tick_text(tick), "small", "middle"),
            label(_LEFT - 8, y + 4, tick_text(tick), "small", "end"),
        ]
    parts.append(line(*at(low, low), *at(high, high), "axis"))
    for factor in (1 - tolerance, 1 + tolerance):
        # Measured is predicted over 1 + error; the ends are cut off where the picture ends.
        begin, end = max(low, low * factor), min(high, high * factor)
        parts.append(line(*at(begin, begin / factor), *at(end, end / factor), "bound"))
    for number, (name, some) in enumerate(series.items()):
        for one in some:
            x, y = at(one.predicted_ms, one.measured_ms)
            tip = element("title", escape(one.tip))
            parts.append(element("circle", tip, cx=x, cy=y, r=3.2, class_=f"dot series-{number % 4}"))
        y = _TOP + 14 + 18 * number
        parts += [box(right + 16, y - 6, 12, 4, f"series-fill-{number % 4}"), label(right + 34, y, name, "small")]
    parts += [
        label(right, bottom + 36, "predicted ms", "small", "end"),
        label(_LEFT, _TOP - 10, f"measured ms; dashed: off by {tolerance:.0%}", "small"),
    ]
    title = "Predicted and measured latencies of branches"
    width, height = right + 200, bottom + 44
    paper = box(-_MARGIN, 0, width + 2 * _MARGIN, height, "paper")
    return picture(width, height, paper, *parts, name=title, style=standalone(), margin=_MARGIN)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for step in _STEPS if low <= (tick := step * 10.0**power) <= high]
