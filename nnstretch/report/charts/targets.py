"""Charts of targets: latencies as bars, and a sustained run over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.report.charts.svg import WIDTH, Axes, box, label, line, picture, polyline, series_legend, vertical_grid

if TYPE_CHECKING:
    from nnstretch.bench.targets.measure import Measured

_BAR, _ROW, _NAMES = 18, 28, 300
_PANEL = 170
"""Height of a curve's frame."""
_LINES = 4
"""There are this many colours of lines."""


def latencies_svg(measured: Sequence[Measured], *, branched: bool) -> str:
    """One bar per model: its length is the median, its whisker reaches from the fastest run to the 90th percentile.

    Args:
        measured: models with a latency, at least one.
        branched: whether the last one is a branched network and the others are its alternatives.
    """
    longest = max(max(one.result.p90_ms or 0.0, one.result.p50_ms or 0.0) for one in measured)
    scale = (WIDTH - _NAMES - 90) / (longest * 1.02)
    bottom = 14 + len(measured) * _ROW
    parts = vertical_grid(_NAMES, scale, longest, 6, bottom, bottom + 18, " ms")
    for number, one in enumerate(measured):
        parts += _bar(one, 14 + number * _ROW, scale, "accent" if branched and one is measured[-1] else "conv")
    return picture(WIDTH, bottom + 28, *parts, name="Latencies of all models")


def _bar(measured: Measured, y: float, scale: float, colour: str) -> list[str]:
    result = measured.result
    p50 = result.p50_ms or 0.0
    low, high = (_NAMES + scale * (end or p50) for end in (result.min_ms, result.p90_ms))
    middle = y + _BAR / 2
    tip = f"p50 {p50:.4g} ms, p90 {result.p90_ms or p50:.4g} ms, min {result.min_ms or p50:.4g} ms"
    return [
        label(_NAMES - 12, y + 13, measured.model.name, "label", "end"),
        box(_NAMES, y, p50 * scale, _BAR, colour, tip, radius=2),
        line(low, middle, high, middle, "whisker"),
        *(line(x, middle - 4, x, middle + 4, "whisker") for x in (low, high)),
        label(max(high, _NAMES + p50 * scale) + 8, middle + 4, f"{p50:.0f}" if p50 >= 1000 else f"{p50:.3g}", "label"),
    ]


def sustained_svgs(measured: Sequence[Measured]) -> list[str]:
    """Latency, clock and temperature over the seconds of sustained runs: a frame each, a line per model.

    Args:
        measured: models with a sustained run.

    Returns:
        Charts of at most `_LINES` models each.
    """
    return [_sustained_svg(measured[first : first + _LINES]) for first in range(0, len(measured), _LINES)]


def _sustained_svg(measured: Sequence[Measured]) -> str:
    frames: list[str] = []
    top = 26.0
    for name, points in _curves(measured):
        filled = [(x, y) for series in points for x, y in series]
        if not filled:
            continue
        axes = Axes([x for x, _ in filled], [y for _, y in filled], top=top, bottom=top + _PANEL)
        frames += axes.frame("second", name)
        for number, series in enumerate(points):
            frames.append(polyline([axes.at(x, y) for x, y in series], f"line series-{number % 4}"))
        top += _PANEL + 64
    frames += series_legend(64, top - 12, [one.model.name for one in measured])
    return picture(WIDTH, top, *frames, name="Latency, clock and temperature over time")


_Series = list[list[tuple[float, float]]]


def _curves(measured: Sequence[Measured]) -> list[tuple[str, _Series]]:
    """Names of the quantities, and the points of every model; seconds that a device says nothing of are left out."""
    seconds = [one.result.sustained for one in measured]
    return [
        ("median of the second in ms", [[(s.s, s.p50_ms) for s in one if s.p50_ms is not None] for one in seconds]),
        ("mean clock in GHz", [[(s.s, s.khz / 1e6) for s in one if s.khz is not None] for one in seconds]),
        (
            "hottest zone in °C",
            [[(s.s, s.temperature_c) for s in one if s.temperature_c is not None] for one in seconds],
        ),
    ]
