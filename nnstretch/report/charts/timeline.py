"""Chart of one run: a row per queue, steps coloured by operator, waits hatched."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.report.charts.style import CLASSES, OTHER, op_class
from nnstretch.report.charts.svg import (
    WIDTH,
    Panel,
    box,
    hatching,
    label,
    legend,
    picture,
    vertical_grid,
    waiting,
)
from nnstretch.report.tables.text import operator_text
from nnstretch.scheduler.runtime.timeline import Event, Timeline

_LEFT = 110
_RIGHT = 16
_QUEUE = 46
_GAP = 12
_MARGIN = 16
_SLIVER = 0.003  # of a run


def timeline_svg(timeline: Timeline, *, title: str = "", alone: bool = True) -> str:
    """A chart of a traced run.

    Args:
        timeline: the run.
        title: over the picture.
        alone: whether it is stand-alone, with its own colours, or part of a page.
    """
    height, parts = timeline_panel(timeline, title)
    name = f"Timeline of one run on {', '.join(timeline.queues)}, {timeline.total / 1e6:.3f} milliseconds"
    return picture(WIDTH, height, *parts, name=name, margin=_MARGIN if alone else 0, alone=alone)


def timeline_panel(timeline: Timeline, title: str = "") -> Panel:
    """Height and elements of the chart of a traced run, with a title over it."""
    top = 44 if title else 20
    bottom = top + len(timeline.queues) * (_QUEUE + _GAP)
    scale = (WIDTH - _LEFT - _RIGHT) / max(1, timeline.total)
    unit, unit_name = (1e6, " ms") if timeline.total >= 2e6 else (1e3, " µs")
    ends = top - 6, bottom - _GAP + 6, bottom + 8
    parts = [hatching(), *vertical_grid(_LEFT, unit * scale, timeline.total / unit, *ends, unit_name)]
    if title:
        parts.append(label(0, 18, title, "strong"))
    for queue, name in enumerate(timeline.queues):
        y = top + queue * (_QUEUE + _GAP)
        parts += _queue(timeline, queue, name, y, scale)
    parts += legend(_LEFT, bottom + 44, _kinds(timeline))
    return bottom + 62, parts


def _queue(timeline: Timeline, queue: int, name: str, y: float, scale: float) -> list[str]:
    busy = timeline.busy(queue) / max(1, timeline.total)
    parts = [
        label(0, y + 20, name, "strong"),
        label(0, y + 36, f"{busy:.0%} busy", "small"),
        box(_LEFT, y, timeline.total * scale, _QUEUE, "queue"),
    ]
    mine = [event for event in timeline.events if event.queue == queue]
    for begin, end in _waits(mine, timeline.total):
        tip = f"wait, {(end - begin) / 1e3:.1f} µs"
        parts.append(waiting(_LEFT + begin * scale, y, (end - begin) * scale, _QUEUE, tip))
    return parts + [_step(event, y, scale) for event in mine if event.kind == "step"]


def _waits(events: Sequence[Event], total: int) -> list[tuple[int, int]]:
    """Begin and end of the idle times of a queue that waits or has work left.

    Traced waits alone are not sufficient: they belong to the thread that serves a queue, and one thread serves the host and all
    OpenCL queues. Short gaps between kernels are left out.
    """
    steps = sorted((event for event in events if event.kind == "step"), key=lambda event: event.begin)
    last = max((event.end for event in events), default=0)
    begins = [0, *(step.end for step in steps)]
    ends = [*(step.begin for step in steps), last]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if end - begin > _SLIVER * total]


def _step(event: Event, y: float, scale: float) -> str:
    x, width = _LEFT + event.begin * scale, (event.end - event.begin) * scale
    microseconds = (event.end - event.begin) / 1e3
    rate = f", {2 * event.macs / max(1, event.end - event.begin):.0f} GFLOP/s" if event.macs else ""
    tip = f"{event.name}\n{operator_text(event.op)}, {event.routine}\n{microseconds:.1f} µs{rate}"
    # A hairline separates steps, but must not hide short ones.
    return box(x, y, max(width - min(0.6, width / 4), 0.3), _QUEUE, op_class(event.op, event.routine), tip)


def _kinds(timeline: Timeline) -> list[tuple[list[str], str]]:
    """Entries of the legend: the operators in the chart, largest share first, and waits."""
    spent: dict[str, int] = {}
    for event in timeline.events:
        if event.kind == "step":
            name = op_class(event.op, event.routine)
            spent[name] = spent.get(name, 0) + event.end - event.begin
    entries = [([name], CLASSES[name]) for name in sorted(spent, key=lambda n: (n == OTHER, -spent[n]))]
    return [*entries, (["wait"], "waiting")] if len(timeline.queues) > 1 else entries
