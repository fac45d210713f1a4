"""Latencies of runs under interference: an adaptive session against a fixed plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from nnstretch.report.charts.axes import BOTTOM, LEFT, TOP, WIDTH, Axes
from nnstretch.report.charts.style import standalone
from nnstretch.report.charts.svg import box, element, label, picture, polyline

_MARGIN = 16
_DOWN = 30  # of everything below the title
_STRIP = BOTTOM + 44
_LEGEND = _STRIP + 50
_ROW = 18
_GLYPH = 6.6  # width of a small letter, generously
_HEADROOM = 0.985  # quantile of the latencies that the picture shows whole
_SMOOTHED = 21  # runs per mean of the lines


@dataclass(frozen=True)
class TimedRun:
    """A run: end in seconds from the beginning, duration, plan, and whether it was a probe of that plan."""

    at: float
    ms: float
    plan: str
    probing: bool = False


@dataclass(frozen=True)
class Phase:
    """A span in seconds, and the processor that another program keeps busy meanwhile; "" if none."""

    begin: float
    end: float
    disturbed: str

    def of(self, runs: Sequence[TimedRun]) -> list[TimedRun]:
        """The runs that ended in the phase."""
        return [run for run in runs if self.begin < run.at <= self.end]


def interference_svg(
    title: str, phases: Sequence[Phase], plans: Sequence[str], changing: Sequence[TimedRun], fixed: Sequence[TimedRun]
) -> str:
    """An SVG picture of latency over time.

    Plans differ in the shape of their marks and in colours that also differ in greyscale.

    Args:
        title: over the picture.
        phases: in order, covering the time.
        plans: all plans, in the order of their colours; three at most.
        changing: runs that changed between plans.
        fixed: runs of one plan through the same phases.
    """
    everything = sorted(run.ms for run in (*changing, *fixed))
    highest = everything[int((len(everything) - 1) * _HEADROOM)]
    axes = Axes([phases[0].begin, phases[-1].end], [0.0, highest])
    parts = [part for phase in phases for part in _heading(axes, phase, changing, fixed)]
    parts += axes.frame("seconds", "")
    parts += [_mark(_circle, axes, run, highest, "quiet", 1.4) for run in fixed]
    for run in changing:
        number = plans.index(run.plan)
        parts.append(_mark(_SHAPES[number], axes, run, highest, f"plan-{number}", 3.2 if run.probing else 2.0))
    for runs, class_ in ((fixed, "trend beside-trend"), (changing, "trend")):
        parts += [polyline(points, class_) for phase in phases if (points := _smoothed(axes, phase.of(runs), highest))]
    parts += _strip(axes, plans, changing)
    legend, rows = _legend(plans, fixed[0].plan)
    height = _DOWN + _LEGEND + rows * _ROW
    return picture(
        WIDTH,
        height,
        box(-_MARGIN, 0, WIDTH + 2 * _MARGIN, height, "paper"),
        label(LEFT, 18, title, "strong"),
        label(WIDTH - _MARGIN, 18, "milliseconds of every run; above, the mean", "small", "end"),
        element("g", *parts, *legend, transform=f"translate(0,{_DOWN})"),
        name=title,
        style=standalone(),
        margin=_MARGIN,
    )


def _heading(axes: Axes, phase: Phase, changing: Sequence[TimedRun], fixed: Sequence[TimedRun]) -> Iterator[str]:
    """The name of a phase and the mean latency in it."""
    (left, _), (right, _) = axes.at(phase.begin, 0.0), axes.at(phase.end, 0.0)
    if phase.disturbed:
        yield box(left, TOP, right - left, BOTTOM - TOP, "faint")
    middle = (left + right) / 2
    yield label(
        middle, TOP - 22, f"{phase.disturbed} disturbed" if phase.disturbed else "undisturbed", "small", "middle"
    )
    means = [fmean(run.ms for run in phase.of(runs)) for runs in (changing, fixed) if phase.of(runs)]
    if len(means) == 2:
        yield label(middle, TOP - 7, f"{means[0]:.3g} ms, always {means[1]:.3g}", "label", "middle")


def _circle(x: float, y: float, size: float, class_: str) -> str:
    return element("circle", cx=x, cy=y, r=size, class_=class_)


def _square(x: float, y: float, size: float, class_: str) -> str:
    return element("rect", x=x - 0.9 * size, y=y - 0.9 * size, width=1.8 * size, height=1.8 * size, class_=class_)


def _triangle(x: float, y: float, size: float, class_: str) -> str:
    corners = ((x - 1.2 * size, y + size), (x + 1.2 * size, y + size), (x, y - 1.2 * size))
    return element("polygon", points=" ".join(f"{a:.2f},{b:.2f}" for a, b in corners), class_=class_)


_Shape = Callable[[float, float, float, str], str]
_SHAPES: tuple[_Shape, ...] = (_circle, _triangle, _square)


def _mark(shape: _Shape, axes: Axes, run: TimedRun, highest: float, class_: str, size: float) -> str:
    """The mark of a run; runs beyond the range lie at the upper edge."""
    x, y = axes.at(run.at, run.ms)
    return shape(x, y if run.ms <= highest else TOP, size, f"run {class_}")


def _smoothed(axes: Axes, runs: Sequence[TimedRun], highest: float) -> list[tuple[float, float]]:
    half = _SMOOTHED // 2
    means = [fmean(run.ms for run in runs[max(0, i - half) : i + half + 1]) for i in range(len(runs))]
    return [axes.at(run.at, min(ms, highest)) for run, ms in zip(runs, means, strict=True)]


def _strip(axes: Axes, plans: Sequence[str], changing: Sequence[TimedRun]) -> Iterator[str]:
    """The plan in use over time."""
    yield label(LEFT - 8, _STRIP + 10, "plan", "small", "end")
    left, _ = axes.at(0.0, 0.0)
    for plan, runs in groupby((run for run in changing if not run.probing), key=lambda run: run.plan):
        right, _ = axes.at(list(runs)[-1].at, 0.0)
        yield box(left, _STRIP, right - left, 12, f"plan-{plans.index(plan)}", plan)
        if right - left > _GLYPH * len(plan):
            yield label((left + right) / 2, _STRIP + 25, plan, "small", "middle")
        left = right


def _legend(plans: Sequence[str], fixed: str) -> tuple[list[str], int]:
    """What the marks, lines and numbers mean, and how many rows that takes."""
    entries = [(name, _SHAPES[i](5, -4, 3.5, f"plan-{i}")) for i, name in enumerate(plans)]
    entries.append((f"always {fixed}", _circle(5, -4, 3.5, "quiet")))
    for class_, text in (("trend", "changing plans"), ("trend beside-trend", f"always {fixed}")):
        entries.append((f"{text}, mean of {_SMOOTHED} runs", polyline([(-4, -4), (11, -4)], class_)))
    parts: list[str] = []
    x, row = float(LEFT), 0
    for text, sign in entries:
        width = 40 + _GLYPH * len(text)
        if x + width > WIDTH and x > LEFT:
            x, row = float(LEFT), row + 1
        parts.append(
            element("g", sign, label(17, 0, text, "small"), transform=f"translate({x:g},{_LEGEND + row * _ROW:g})")
        )
        x += width
    return parts, row + 1
