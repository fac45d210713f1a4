"""Axes of charts with points and lines."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.report.charts.svg import label, line, tick_text, ticks

WIDTH = 960
LEFT = 64
TOP = 40.0
HEIGHT = 300.0
BOTTOM = TOP + HEIGHT


class Axes:
    """Maps values to chart coordinates: x to the right, y upwards."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Axes whose range holds all points."""
        self.x0, self.x1 = _span(xs)
        self.y0, self.y1 = _span(ys)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Chart coordinates of a point."""
        across = (x - self.x0) / (self.x1 - self.x0)
        up = (y - self.y0) / (self.y1 - self.y0)
        return LEFT + across * (WIDTH - LEFT - 16), TOP + (1 - up) * HEIGHT

    def frame(self, x_name: str, y_name: str) -> list[str]:
        """Grid lines, ticks and axis titles."""
        parts: list[str] = []
        for tick in ticks(self.y0, self.y1, 6):
            _, y = self.at(self.x0, tick)
            parts += [line(LEFT, y, WIDTH - 16, y, "grid"), label(LEFT - 8, y + 4, tick_text(tick), "small", "end")]
        for tick in ticks(self.x0, self.x1, 10):
            x, _ = self.at(tick, self.y0)
            parts.append(label(x, BOTTOM + 18, tick_text(tick), "small", "middle"))
        ground = BOTTOM
        parts.append(line(LEFT, ground, WIDTH - 16, ground, "axis"))
        parts.append(label(WIDTH - 16, ground + 34, x_name, "small", "end"))
        return [*parts, label(LEFT, TOP - 8, y_name, "small")]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return max(0.0, low - pad) if low >= 0 else low - pad, high + pad
