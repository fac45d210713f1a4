"""Lines over one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnstretch.report.charts.svg import BOTTOM, LEFT, Axes, Panel, dot, polyline, series_legend

_MOST_POINTS = 1000
"""Of a line; longer ones are thinned."""
_FEW = 40
"""Points that are also dots, so that single values show."""


def curve_panel(
    lines: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str, *, from_zero: bool = False
) -> Panel:
    """A line per series.

    Args:
        lines: name -> (x, y), at least one point altogether.
        x_name: title of the axis to the right.
        y_name: title of the axis upwards.
        from_zero: whether that axis begins at 0, so that heights can be compared.
    """
    points = [point for line in lines.values() for point in line]
    axes = Axes([x for x, _ in points], [*(y for _, y in points), *[0.0] * from_zero])
    parts = axes.frame(x_name, y_name, whole=all(float(x).is_integer() for x, _ in points))
    for number, line in enumerate(lines.values()):
        every = max(1, len(line) // _MOST_POINTS)
        places = [axes.at(*point) for point in line[::every]]
        parts.append(polyline(places, f"line series-{number % 4}"))
        if len(places) <= _FEW:
            parts += [
                dot(x, y, 2.6, f"dot series-{number % 4}", f"{x_name} {at:.6g}: {value:.4g}")
                for (x, y), (at, value) in zip(places, line[::every], strict=True)
            ]
    if len(lines) == 1:
        return BOTTOM + 44, parts
    return BOTTOM + 64, [*parts, *series_legend(LEFT, BOTTOM + 54, lines)]
