"""Latencies of runs while processors are disturbed: which plan each run took, against one that never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.report.axes import BOTTOM, LEFT, TOP, WIDTH, Axes
from nnstretch.report.style import standalone
from nnstretch.report.svg import box, element, label, picture

_MARGIN = 16
_COLOURS = (0, 1, 3)  # of the plans; the one left out is too like that of the runs beside them
_HEADROOM = 0.985  # quantile of the latencies that the picture shows whole


@dataclass(frozen=True)
class TimedRun:
    """A run: when it ended, in seconds from the beginning, how long it took, its plan, and whether it only tried that."""

    at: float
    ms: float
    plan: str
    probing: bool = False


@dataclass(frozen=True)
class Phase:
    """A stretch of time in seconds, and the processor that something else keeps busy meanwhile; empty if none."""

    begin: float
    end: float
    disturbed: str


def interference_svg(
    title: str, phases: Sequence[Phase], plans: Sequence[str], changing: Sequence[TimedRun], fixed: Sequence[TimedRun]
) -> str:
    """An SVG picture of latency over time.

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
    parts = [box(-_MARGIN, 0, WIDTH + 2 * _MARGIN, BOTTOM + 70, "paper"), label(LEFT, 16, title, "strong")]
    for phase in phases:
        if phase.disturbed:
            (left, _), (right, _) = axes.at(phase.begin, 0.0), axes.at(phase.end, 0.0)
            parts += [
                box(left, TOP, right - left, BOTTOM - TOP, "faint"),
                label((left + right) / 2, TOP - 8, f"{phase.disturbed} disturbed", "small", "middle"),
            ]
    parts += axes.frame("seconds", "milliseconds of every run")
    for run in fixed:
        parts.append(_dot(axes, run, highest, "quiet", 1.3))
    for run in changing:
        parts.append(
            _dot(axes, run, highest, f"dot series-{_COLOURS[plans.index(run.plan)]}", 2.6 if run.probing else 1.7)
        )
    parts += _legend(plans, fixed[0].plan)
    return picture(WIDTH, BOTTOM + 70, *parts, name=title, style=standalone(), margin=_MARGIN)


def _dot(axes: Axes, run: TimedRun, highest: float, class_: str, radius: float) -> str:
    x, y = axes.at(run.at, min(run.ms, highest))
    return element("circle", cx=x, cy=y, r=radius, class_=class_)


def _legend(plans: Sequence[str], fixed: str) -> list[str]:
    parts: list[str] = []
    x = float(LEFT)
    entries = [(f"adaptive: {name}", f"dot series-{_COLOURS[number]}") for number, name in enumerate(plans)]
    for name, class_ in [*entries, (f"always {fixed}", "quiet")]:
        parts += [
            element("circle", cx=x + 5, cy=BOTTOM + 50, r=4, class_=class_),
            label(x + 15, BOTTOM + 54, name, "small"),
        ]
        x += 40 + 6.4 * len(name)
    return parts
