"""Charts of targets: latencies as bars, and a sustained run over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.report.charts.bars import Bar, bars_panel
from nnstretch.report.charts.svg import Axes, Panel, polyline, series_legend

if TYPE_CHECKING:
    from nnstretch.bench.targets.measure import Measured

_PANEL = 170
"""Height of a curve's frame."""
_LINES = 4
"""There are this many colours of lines."""


def latencies_panel(measured: Sequence[Measured], *, branched: bool) -> Panel:
    """One bar per model: its length is the median, its whisker reaches from the fastest run to the 90th percentile.

    Args:
        measured: models with a latency, at least one.
        branched: whether the last one is a branched network and the others are its alternatives.
    """
    return bars_panel([_bar(one, "accent" if branched and one is measured[-1] else "conv") for one in measured], " ms")


def _bar(measured: Measured, class_: str) -> Bar:
    result = measured.result
    p50 = result.p50_ms or 0.0
    low, high = result.min_ms or p50, result.p90_ms or p50
    return Bar(measured.model.name, p50, low, high, f"p50 {p50:.4g} ms, p90 {high:.4g} ms, min {low:.4g} ms", class_)


def sustained_panels(measured: Sequence[Measured]) -> list[Panel]:
    """Latency, clock and temperature over the seconds of sustained runs: a frame each, a line per model.

    Args:
        measured: models with a sustained run.

    Returns:
        Charts of at most `_LINES` models each.
    """
    return [_sustained(measured[first : first + _LINES]) for first in range(0, len(measured), _LINES)]


def _sustained(measured: Sequence[Measured]) -> Panel:
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
    return top, frames


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
