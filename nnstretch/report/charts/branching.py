"""Charts of a branched network: its design, latencies as bars, causes as a waterfall, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nnstretch.bench.ablation.breakdown import PERFECT_SPLIT
from nnstretch.bench.ablation.result import BRANCHED
from nnstretch.report.charts.svg import (
    GLYPH,
    WIDTH,
    Axes,
    Panel,
    box,
    dot,
    element,
    label,
    legend,
    line,
    polyline,
    series_legend,
    vertical_grid,
)
from nnstretch.report.tables.text import count_text
from nnstretch.support.measures import TOP1

if TYPE_CHECKING:
    from nnstretch.bench.ablation.result import Ablation, AblationRow
    from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign

Histories = Mapping[str, Sequence[Mapping[str, Any]]]
"""Network -> the fields of its training's `EpochRecord`, epoch by epoch."""
Series = Mapping[str, Sequence[tuple[float, float]]]

_BAR = 20
_ROW = 34
_NAMES = 250
_DASH = 8  # half the length of a training's line that has one epoch only
_LINE = 25  # from one bar of a waterfall to the next
_ENDS = 46
_MIDDLE = 30  # between one segment and the next
_THICK = 58  # of a branch of full width
_BRANCH = 96  # from one branch to the next
_TOP = 40


def latency_panel(ablation: Ablation) -> Panel:
    """One bar per row: its length is the median or the simulated latency, its whisker the median's confidence interval."""
    rows = [row for row in ablation.rows if not row.is_bound]
    longest = max(_whisker(row)[1] for row in rows)
    scale = (WIDTH - _NAMES - 90) / (longest * 1.02)
    top, bottom = 30, 30 + len(rows) * _ROW
    parts = vertical_grid(_NAMES, scale, longest, top - 6, bottom, bottom + 18, " ms")
    for number, row in enumerate(rows):
        parts += _bar(row, top + number * _ROW, scale, "strong" if row is ablation.best_alternative else "label")
    bound = _NAMES + ablation.perfect_split_ms * scale
    parts.append(line(bound, top - 8, bound, bottom, "bound"))
    parts.append(label(bound, top - 14, f"perfect split {ablation.perfect_split_ms:.3g} ms", "bound-text", "middle"))
    return bottom + 28, parts


def _whisker(row: AblationRow) -> tuple[float, float]:
    """Confidence interval of a row's median; the latency itself if there is none."""
    return row.interval_ms or (row.p50_ms, row.p50_ms)


def _bar(row: AblationRow, y: float, scale: float, style: str) -> list[str]:
    """A row's bar, whisker and labels; `style` is that of its name and median."""
    p50, (low, high) = row.p50_ms * scale, (end * scale for end in _whisker(row))
    middle, found = y + _BAR / 2, row.latency
    tip = f"{row.p50_ms:.4g} ms, simulated"
    if found is not None:
        tip = f"p50 {found.p50_ms:.4g} ms, p90 {found.p90_ms:.4g} ms, min {found.min_ms:.4g} ms"
    colour = {BRANCHED: "accent", "original": "conv", "control": "quiet"}[row.network]
    if row.network == BRANCHED and not row.is_branched:
        colour = "accent-soft"
    return [
        label(_NAMES - 12, y + 9, f"{row.network}, {row.how}", style, "end"),
        label(_NAMES - 12, y + 21, row.processors, "small", "end"),
        box(_NAMES, y, p50, _BAR, colour, tip, radius=2),
        line(_NAMES + low, middle, _NAMES + high, middle, "whisker"),
        *(line(_NAMES + end, middle - 4, _NAMES + end, middle + 4, "whisker") for end in (low, high)),
        label(_NAMES + high + 8, middle + 4, f"{row.p50_ms:.3g}", style),
    ]


def causes_panel(ablation: Ablation) -> Panel:
    """A waterfall from the perfect split to the latency; negative causes point left."""
    steps = [(name, ms) for name, ms in ablation.causes.items() if name != PERFECT_SPLIT]
    begin = ablation.causes[PERFECT_SPLIT]
    ends = list(accumulate((ms for _, ms in steps), initial=begin))
    longest = max(*ends, ablation.branched_ms)
    scale = (WIDTH - _NAMES - 90) / (longest * 1.02)
    bottom = 12 + (len(steps) + 2) * _LINE
    parts = vertical_grid(_NAMES, scale, longest, 6, bottom, bottom + 18, " ms")
    parts += _fall("perfect split", 0.0, begin, "quiet", 12, scale)
    for number, ((name, ms), start) in enumerate(zip(steps, ends, strict=False), 1):
        parts += _fall(name, start, ms, "accent" if ms > 0 else "elementwise", 12 + number * _LINE, scale)
    parts += _fall(ablation.origin, 0.0, ablation.branched_ms, "conv", bottom - _LINE, scale)
    return bottom + 28, parts


def _fall(name: str, start: float, ms: float, colour: str, y: float, scale: float) -> list[str]:
    """One bar from `start` on, to the left if it is negative."""
    low, high = sorted((start, start + ms))
    return [
        label(_NAMES - 12, y + 13, name, "label", "end"),
        box(_NAMES + low * scale, y, max((high - low) * scale, 0.8), _LINE - 8, colour, f"{name}: {ms:.4g} ms", 1.5),
        label(_NAMES + high * scale + 8, y + 13, f"{ms:.3f}", "small"),
    ]


def training_panel(histories: Histories, measure: str = TOP1.name) -> Panel:
    """Loss and the measure per network and epoch, of training images where records have it, and of validation images."""
    trained = {name: records for name, records in histories.items() if records}

    def series(measure: str) -> Series:
        return {
            name: [(r["epoch"], r[measure]) for r in records if r[measure] is not None]
            for name, records in trained.items()
        }

    half, lines, dots = WIDTH / 2, series("train_top1"), series("validation_score")
    title = f"{measure} in percent: training images (line), validation images (dots)"
    if not any(lines.values()):
        lines, dots, title = dots, {}, f"{measure} in percent: validation images"
    parts = [
        *_curves(0, half - 20, "loss, mean over the epoch", series("loss"), {}),
        *_curves(half + 20, half - 20, title, lines, dots),
        *series_legend(44, 300, trained),
    ]
    return 312, parts


def _curves(left: float, width: float, title: str, lines: Series, dots: Series) -> list[str]:
    """One plot with a line per series, and dots of the series' colours."""
    values = [v for points in (*lines.values(), *dots.values()) for _, v in points]
    epochs = [e for points in lines.values() for e, _ in points]
    axes = Axes(epochs, values, left=left + 44, right=left + width - 8, top=34.0, bottom=250.0)
    parts = axes.frame("epoch", title, whole=True)
    for number, points in enumerate(lines.values()):
        places = [axes.at(e, v) for e, v in points]
        if len(places) == 1:  # a line through one point shows nothing
            ((x, y),) = places
            places = [(x - _DASH, y), (x + _DASH, y)]
        parts.append(polyline(places, f"line series-{number % 4}"))
    for number, points in enumerate(dots.values()):
        parts += [dot(*axes.at(e, v), 3.4, f"dot series-{number % 4}") for e, v in points]
    return parts


def design_panel(design: Design, processors: Sequence[str] = ()) -> Panel:
    """A design: segments from left to right, branches one above the other.

    A branch is as long as its number of blocks and as thick as its width; dropped blocks are dashed.

    Args:
        design: the network.
        processors: their names, in the order of the design's indices.
    """
    free = WIDTH - 2 * _ENDS - _MIDDLE * (len(design.segments) + 1)
    unit = free / design.segments[-1].stop
    queues = max(len(segment.branches) for segment in design.segments)
    bottom = _TOP + queues * _BRANCH
    middle = _TOP + queues * _BRANCH / 2 - _BRANCH / 2 + _THICK / 2
    parts = [_end(0, middle, "input"), _end(WIDTH - _ENDS, middle, "head")]
    x = made = float(_ENDS)  # where a segment begins, and where what it reads is whole
    for number, segment in enumerate(design.segments):
        x += _MIDDLE
        parts += _segment(number, segment, made, x, unit, middle)
        x += (segment.stop - segment.first) * unit
        made = x + _MIDDLE / 2 if len(segment.branches) > 1 else x
    parts.append(line(made, middle, WIDTH - _ENDS, middle, "flow"))
    names = dict(enumerate(processors))
    used = [([f"series-fill-{i % 4}"], names.get(i, f"processor {i}")) for i in design.processors]
    parts += legend(_ENDS + _MIDDLE, bottom + 10, used)
    return bottom + 22, parts


def _end(x: float, middle: float, name: str) -> str:
    return box(x, middle - 14, _ENDS, 28, "queue", radius=3) + label(x + _ENDS / 2, middle + 4, name, "small", "middle")


def _segment(number: int, segment: SegmentDesign, source: float, x: float, unit: float, middle: float) -> list[str]:
    """The branches of one segment, the lines that lead to them from `source`, and its name."""
    count, width = len(segment.branches), (segment.stop - segment.first) * unit
    parts = [label(x + width / 2, 16, f"segment {number}", "strong", "middle")]
    for place, branch in enumerate(segment.branches):
        y = middle + (place - (count - 1) / 2) * _BRANCH
        parts += [_flow(source, middle, x, y), *_branch(segment, branch, x, y, unit)]
        if count > 1:
            parts.append(_flow(x + width, y, x + width + _MIDDLE / 2, middle))
    if count > 1:
        parts.append(dot(x + width + _MIDDLE / 2, middle, 4, "meet"))
    return parts


def _branch(segment: SegmentDesign, branch: BranchDesign, x: float, y: float, unit: float) -> list[str]:
    thick = max(6.0, _THICK * branch.width)
    parts: list[str] = []
    predicted = "" if branch.predicted_ms is None else f"\npredicted {branch.predicted_ms:.3f} ms"
    tip = f"depth {branch.depth:.2f}, width {branch.width:.2f}, {count_text(branch.macs)} MACs{predicted}"
    total = segment.stop - segment.first
    for place in range(total):
        kept = segment.first + place in branch.blocks
        colour = f"series-fill-{branch.processor % 4}" if kept else "dropped"
        parts.append(box(x + place * unit + 1.5, y - thick / 2, unit - 3, thick, colour, tip, radius=2))
    split = ", split" if segment.split else ""
    lines = [f"{branch.channels} channels", f"{count_text(branch.macs)} MACs{split}"]
    if GLYPH * len(", ".join(lines)) < total * unit + _MIDDLE:
        lines = [", ".join(lines)]
    for number, text in enumerate(lines):
        parts.append(label(x + total * unit / 2, y + _THICK / 2 + 14 + 12 * number, text, "small", "middle"))
    return parts


def _flow(x0: float, y0: float, x1: float, y1: float) -> str:
    half = (x0 + x1) / 2
    path = f"M{x0:.1f},{y0:.1f} C{half:.1f},{y0:.1f} {half:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return element("path", d=path, class_="flow")
