"""A few SVG elements as text. Every value is escaped; colours are classes that `style` defines for light and dark."""

from __future__ import annotations

import math
from html import escape

_PATTERN = "hatched"
HATCHED = f"url(#{_PATTERN})"
"""Fill of waits; needs `hatching` in the chart."""


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


def box(x: float, y: float, width: float, height: float, class_: str, tip: str = "", radius: float = 0) -> str:
    """A rectangle; a `tip` shows when the pointer rests on it."""
    inside = (element("title", escape(tip)),) if tip else ()
    return element("rect", *inside, x=x, y=y, width=max(width, 0.0), height=height, rx=radius or None, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def polyline(points: list[tuple[float, float]], class_: str) -> str:
    """Straight lines from point to point."""
    return element("polyline", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), class_=class_)


def picture(width: float, height: float, *children: str, name: str, style: str = "", margin: float = 0) -> str:
    """A whole chart that scales with its container. `name` is its text for screen readers; `style` makes it stand-alone.

    The margin is added left and right.
    """
    styled = element("style", style) if style else ""
    return element(
        "svg",
        styled,
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"{_number(-margin)} 0 {_number(width + 2 * margin)} {_number(height)}",
        width=width + 2 * margin if style else None,
        height=height if style else None,
        role="img",
        aria_label=name,
        font_family="ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" if style else None,
    )


def hatching() -> str:
    """The pattern definition that elements with the fill `HATCHED` need."""
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


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
