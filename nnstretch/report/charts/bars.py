"""Bars with whiskers, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.report.charts.svg import WIDTH, Panel, box, label, legend, line, vertical_grid

_BAR, _ROW, _NAMES = 18, 28, 300
_LONGEST_NAME = 42
"""Characters that fit left of the bars."""


@dataclass(frozen=True)
class Bar:
    """One value.

    Attributes:
        name: left of the bar.
        value: its length.
        low, high: ends of the whisker.
        tip: text for the pointer.
        class_: its colour.
    """

    name: str
    value: float
    low: float
    high: float
    tip: str
    class_: str = "conv"


def bars_panel(bars: Sequence[Bar], unit: str, colours: Mapping[str, str] | None = None) -> Panel:
    """A bar per value on one scale from 0.

    Args:
        bars: at least one.
        unit: stands beside the first number of the scale, such as " ms".
        colours: class of bars -> what its colour means, for a legend of those that are there; None: no legend.
    """
    longest = max(max(bar.high, bar.value) for bar in bars)
    scale = (WIDTH - _NAMES - 90) / (longest * 1.02)
    bottom = 14 + len(bars) * _ROW
    parts = vertical_grid(_NAMES, scale, longest, 6, bottom, bottom + 18, unit)
    for number, bar in enumerate(bars):
        parts += _bar(bar, 14 + number * _ROW, scale)
    used = dict.fromkeys(bar.class_ for bar in bars)
    if colours is None:
        return bottom + 28, parts
    return bottom + 54, [*parts, *legend(_NAMES, bottom + 44, [([name], colours[name]) for name in used])]


def _bar(bar: Bar, y: float, scale: float) -> list[str]:
    low, high = (_NAMES + scale * end for end in (bar.low, bar.high))
    middle = y + _BAR / 2
    shown = f"{bar.value:.0f}" if bar.value >= 1000 else f"{bar.value:.3g}"
    return [
        label(_NAMES - 12, y + 13, _shortened(bar.name), "label", "end"),
        box(_NAMES, y, bar.value * scale, _BAR, bar.class_, bar.tip, radius=2),
        line(low, middle, high, middle, "whisker"),
        *(line(x, middle - 4, x, middle + 4, "whisker") for x in (low, high)),
        label(max(high, _NAMES + bar.value * scale) + 8, middle + 4, shown, "label"),
    ]


def _shortened(name: str) -> str:
    """The end of a name that is too long, which tells layers of one network from each other."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
