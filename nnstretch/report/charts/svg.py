"""The chart layer: SVG elements as text, grids, legends and axes.

Every value is escaped. Colours are classes that `style` defines for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from nnstretch.report.charts.style import standalone

WIDTH = 960
LEFT = 64
TOP = 40.0
BOTTOM = TOP + 300.0
GLYPH = 6.4
"""Pixels of a character in a small label, generously."""

_PATTERN = "hatched"


def element(tag: str, *children: str, **attributes: str | float | None) -> str:
    """One element. Attributes: `class_` is class, other underscores become dashes; None leaves one out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(children)
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def label(x: float, y: float, content: str, class_: str = "label", anchor: str | None = None) -> str:
    """Text with its baseline at y; anchor is start, middle or end."""
    return element("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    class_: str,
    tip: str = "",
    radius: float = 0,
    fill: str | None = None,
) -> str:
    """A rectangle; a `tip` shows when the pointer rests on it."""
    size = {"width": max(width, 0.0), "height": height, "rx": radius or None}
    return element("rect", *_title(tip), x=x, y=y, **size, class_=class_, fill=fill)


def waiting(x: float, y: float, width: float, height: float, tip: str = "") -> str:
    """A hatched rectangle for a wait; the chart needs `hatching`."""
    return box(x, y, width, height, "wait", tip, fill=f"url(#{_PATTERN})")


def dot(
    x: float,
    y: float,
    radius: float,
    class_: str | None,
    tip: str = "",
    opacity: float | None = None,
    row: int | None = None,
) -> str:
    """A circle in the colour of its class, or of its group without one.

    `row` is that of the same thing in a table which readers can filter.
    """
    return element("circle", *_title(tip), cx=x, cy=y, r=radius, class_=class_, opacity=opacity, data_row=row)


def _title(tip: str) -> tuple[str, ...]:
    return (element("title", escape(tip)),) if tip else ()


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def polyline(points: list[tuple[float, float]], class_: str) -> str:
    """Straight lines from point to point."""
    return element("polyline", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), class_=class_)


def picture(width: float, height: float, *children: str, name: str, margin: float = 0, alone: bool = False) -> str:
    """A whole chart that scales with its container.

    Args:
        width: in pixels, without margins.
        height: in pixels.
        children: the elements.
        name: text for screen readers.
        margin: added left and right.
        alone: whether it is stand-alone, with its own colours and background, or part of a page that has them.
    """
    if alone:
        children = (element("style", standalone()), box(-margin, 0, width + 2 * margin, height, "paper"), *children)
    return element(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"{_number(-margin)} 0 {_number(width + 2 * margin)} {_number(height)}",
        width=width + 2 * margin if alone else None,
        height=height if alone else None,
        role="img",
        aria_label=name,
        font_family="ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" if alone else None,
    )


Panel = tuple[float, Sequence[str]]
"""Height and elements of a chart of the usual width, for a page or for a picture of several."""


def panel_picture(panel: Panel, name: str) -> str:
    """A panel as a chart inside a page."""
    return picture(WIDTH, panel[0], *panel[1], name=name)


def stacked(panels: Iterable[Panel], name: str, margin: float = 24) -> str:
    """A stand-alone picture of panels, one below the other."""
    parts: list[str] = []
    top = margin
    for height, content in panels:
        parts.append(element("g", *content, transform=f"translate(0 {top:.0f})"))
        top += height + margin
    return picture(WIDTH, top, *parts, name=name, margin=margin, alone=True)


def hatching() -> str:
    """The pattern definition that `waiting` needs."""
    pattern = element(
        "pattern",
        line(0, 0, 0, 6, "hatch"),
        id=_PATTERN,
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    return element("defs", pattern)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """About `about` round numbers from `low` to `high`."""
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / about))
    step *= min((1, 2, 5, 10), key=lambda m: abs(span / (step * m) - about))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick's number without noise."""
    return f"{value:.6g}"


def vertical_grid(
    x0: float, scale: float, longest: float, top: float, bottom: float, texts: float, unit: str = ""
) -> list[str]:
    """Grid lines of a horizontal scale from 0 at `x0` to `longest`, with numbers at the height `texts`.

    A unit stands beside the first number.
    """
    parts: list[str] = []
    for tick in ticks(0, longest, 8):
        x, text = x0 + tick * scale, f"{tick_text(tick)}{'' if tick else unit}"
        parts += [line(x, top, x, bottom, "grid"), label(x, texts, text, "small", "middle")]
    return parts


def legend(
    x: float, y: float, entries: Iterable[tuple[Sequence[str], str]], gap: float = 16, size: float = 11
) -> list[str]:
    """Squares with a text beside them, from left to right.

    Args:
        x: where the first square begins.
        y: baseline of the texts.
        entries: classes of the squares, and the text. "wait" is hatched.
        gap: between entries.
        size: of a square.
    """
    parts: list[str] = []
    for classes, text in entries:
        for class_ in classes:
            square = waiting(x, y - 9, size, size) if class_ == "wait" else box(x, y - 9, size, size, class_, radius=2)
            parts.append(square)
            x += size + 2
        parts.append(label(x + 3, y, text, "small"))
        x += 3 + GLYPH * len(text) + gap
    return parts


def series_legend(x: float, y: float, names: Iterable[str]) -> list[str]:
    """A short line of its colour and a name for every series of a chart, from left to right."""
    parts: list[str] = []
    for number, name in enumerate(names):
        parts += [box(x, y - 6, 16, 3, f"series-fill-{number % 4}"), label(x + 22, y, name, "small")]
        x += 48 + GLYPH * len(name)
    return parts


class Axes:
    """Maps values to chart coordinates: x to the right, y upwards."""

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        left: float = LEFT,
        right: float = WIDTH - 16,
        top: float = TOP,
        bottom: float = BOTTOM,
    ) -> None:
        """Axes whose range holds all points, in a frame of these pixels."""
        self.x0, self.x1 = _span(xs)
        self.y0, self.y1 = _span(ys)
        self.left, self.right, self.top, self.bottom = left, right, top, bottom

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Chart coordinates of a point."""
        across = (x - self.x0) / (self.x1 - self.x0)
        up = (y - self.y0) / (self.y1 - self.y0)
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def frame(self, x_name: str, y_name: str, *, whole: bool = False) -> list[str]:
        """Grid lines, ticks (on the x axis whole numbers only, if `whole`) and axis titles."""
        parts: list[str] = []
        for tick in ticks(self.y0, self.y1, 6):
            _, y = self.at(self.x0, tick)
            parts.append(line(self.left, y, self.right, y, "grid"))
            parts.append(label(self.left - 8, y + 4, tick_text(tick), "small", "end"))
        for tick in ticks(self.x0, self.x1, 10):
            if not whole or math.isclose(tick, round(tick)):
                x, _ = self.at(tick, self.y0)
                parts.append(label(x, self.bottom + 18, tick_text(tick), "small", "middle"))
        parts.append(line(self.left, self.bottom, self.right, self.bottom, "axis"))
        parts.append(label(self.right, self.bottom + 34, x_name, "small", "end"))
        return [*parts, label(self.left, self.top - 8, y_name, "small")]


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return max(0.0, low - pad) if low >= 0 else low - pad, high + pad


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
