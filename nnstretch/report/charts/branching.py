"""Charts of a branched network: latencies as bars, causes as a waterfall, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from nnstretch.bench.ablation.breakdown import PERFECT_SPLIT
from nnstretch.report.charts.svg import box, element, label, line, picture, polyline, tick_text, ticks

if TYPE_CHECKING:
    from nnstretch.bench.ablation.result import Ablation, AblationRow
    from nnstretch.training.checkpoint import EpochRecord

_WIDTH = 960
_BAR = 20
_ROW = 34
_NAMES = 250
_LINE = 25  # from one bar of a waterfall to the next


def latency_svg(ablation: Ablation) -> str:
    """One bar per row: its length is the median, its whisker the median's confidence interval."""
    rows = [row for row in ablation.rows if row.latency is not None]
    longest = max(_whisker(row)[1] for row in rows)
    scale = (_WIDTH - _NAMES - 90) / (longest * 1.02)
    top, bottom = 30, 30 + len(rows) * _ROW
    parts: list[str] = []
    for tick in ticks(0, longest, 8):
        x = _NAMES + tick * scale
        parts += [line(x, top - 6, x, bottom, "grid"), label(x, bottom + 18, tick_text(tick), "small", "middle")]
    parts.append(label(_NAMES + longest * scale + 30, bottom + 18, "ms", "small"))
    for number, row in enumerate(rows):
        parts += _bar(row, top + number * _ROW, scale)
    bound = _NAMES + ablation.perfect_split_ms * scale
    parts.append(line(bound, top - 8, bound, bottom, "bound"))
    parts.append(label(bound, top - 14, f"perfect split {ablation.perfect_split_ms:.3g} ms", "bound-text", "middle"))
    return picture(_WIDTH, bottom + 28, *parts, name="Latencies of all ways to run the networks")


def _whisker(row: AblationRow) -> tuple[float, float]:
    """Confidence interval of a row's median; the median itself if there is none."""
    assert row.latency is not None
    return row.interval_ms or (row.latency.p50_ms, row.latency.p50_ms)


def _bar(row: AblationRow, y: float, scale: float) -> list[str]:
    assert row.latency is not None
    p50, (low, high) = row.latency.p50_ms * scale, (end * scale for end in _whisker(row))
    middle = y + _BAR / 2
    tip = f"p50 {row.latency.p50_ms:.4g} ms, p90 {row.latency.p90_ms:.4g} ms, min {row.latency.min_ms:.4g} ms"
    colour = {"branched": "accent", "original": "conv", "control": "quiet"}[row.network]
    if row.network == "branched" and row.how != "concurrent":
        colour = "accent-soft"
    return [
        label(_NAMES - 12, y + 9, f"{row.network}, {row.how}", "label", "end"),
        label(_NAMES - 12, y + 21, row.processors, "small", "end"),
        box(_NAMES, y, p50, _BAR, colour, tip, radius=2),
        line(_NAMES + low, middle, _NAMES + high, middle, "whisker"),
        *(line(_NAMES + end, middle - 4, _NAMES + end, middle + 4, "whisker") for end in (low, high)),
        label(_NAMES + high + 8, middle + 4, f"{row.latency.p50_ms:.3g}", "label"),
    ]


def causes_svg(ablation: Ablation) -> str:
    """A waterfall from the perfect split to the measured latency; negative causes point left."""
    steps = [(name, ms) for name, ms in ablation.causes.items() if name != PERFECT_SPLIT]
    begin = ablation.causes[PERFECT_SPLIT]
    ends = list(accumulate((ms for _, ms in steps), initial=begin))
    longest = max(*ends, ablation.branched_ms)
    scale = (_WIDTH - _NAMES - 90) / (longest * 1.02)
    bottom = 12 + (len(steps) + 2) * _LINE
    parts: list[str] = []
    for tick in ticks(0, longest, 8):
        x = _NAMES + tick * scale
        parts += [line(x, 6, x, bottom, "grid"), label(x, bottom + 18, tick_text(tick), "small", "middle")]
    parts += [label(_NAMES + longest * scale + 30, bottom + 18, "ms", "small")]
    parts += _fall("perfect split", 0.0, begin, "quiet", 12, scale)
    for number, ((name, ms), start) in enumerate(zip(steps, ends, strict=False), 1):
        parts += _fall(name, start, ms, "accent" if ms > 0 else "eltwise", 12 + number * _LINE, scale)
    parts += _fall("measured", 0.0, ablation.branched_ms, "conv", bottom - _LINE, scale)
    return picture(_WIDTH, bottom + 28, *parts, name="From the perfect split to the measured latency")


def _fall(name: str, start: float, ms: float, colour: str, y: float, scale: float) -> list[str]:
    """One bar from `start` on, to the left if it is negative."""
    low, high = sorted((start, start + ms))
    return [
        label(_NAMES - 12, y + 13, name, "label", "end"),
        box(
            _NAMES + low * scale,
            y,
            max((high - low) * scale, 0.8),
            _LINE - 8,
            colour,
            f"{name}: {ms:.4g} ms",
            radius=1.5,
        ),
        label(_NAMES + high * scale + 8, y + 13, f"{ms:.3f}", "small"),
    ]


def training_svg(histories: Mapping[str, Sequence[EpochRecord]]) -> str:
    """Loss and top-1 (training images, and test images if measured) per network and epoch."""
    trained = {name: records for name, records in histories.items() if records}
    losses = {name: [(r.epoch, r.loss) for r in records] for name, records in trained.items()}
    accuracies = {name: [(r.epoch, r.train_top1) for r in records] for name, records in trained.items()}
    tests = {name: [(r.epoch, r.top1) for r in records if r.top1 is not None] for name, records in trained.items()}
    half = _WIDTH / 2
    parts = [
        *_curves(0, half - 20, "loss, mean over the epoch", losses, {}),
        *_curves(
            half + 20, half - 20, "top-1 in percent: training images (line), test images (dots)", accuracies, tests
        ),
        *_names(list(trained), 300),
    ]
    return picture(_WIDTH, 312, *parts, name="Training curves")


Series = Mapping[str, Sequence[tuple[float, float]]]


def _curves(left: float, width: float, title: str, lines: Series, dots: Series) -> list[str]:
    """One plot with a line per series, and dots of the series' colours."""
    values = [v for points in (*lines.values(), *dots.values()) for _, v in points]
    epochs = [e for points in lines.values() for e, _ in points]
    low, high = min(values), max(values)
    pad = (high - low) * 0.06 or 1.0
    low, high = low - pad, high + pad
    x0, x1, y0, y1 = left + 44, left + width - 8, 250.0, 34.0
    span = max(epochs) - min(epochs) or 1.0

    def at(epoch: float, value: float) -> tuple[float, float]:
        return x0 + (epoch - min(epochs)) / span * (x1 - x0), y0 + (value - low) / (high - low) * (y1 - y0)

    parts = [label(left, 18, title, "small")]
    for tick in ticks(low, high, 5):
        _, y = at(min(epochs), tick)
        parts += [line(x0, y, x1, y, "grid"), label(x0 - 8, y + 4, tick_text(tick), "small", "end")]
    for tick in (t for t in ticks(min(epochs), max(epochs), 6) if t == int(t)):
        x, _ = at(tick, low)
        parts.append(label(x, y0 + 18, tick_text(tick), "small", "middle"))
    for number, points in enumerate(lines.values()):
        parts.append(polyline([at(e, v) for e, v in points], f"line series-{number % 4}"))
    for number, points in enumerate(dots.values()):
        for x, y in (at(e, v) for e, v in points):
            parts.append(element("circle", cx=x, cy=y, r=3.4, class_=f"dot series-{number % 4}"))
    return [*parts, line(x0, y0, x1, y0, "axis")]


def _names(names: Sequence[str], y: float) -> list[str]:
    parts: list[str] = []
    x = 44.0
    for number, name in enumerate(names):
        parts += [box(x, y - 6, 16, 3, f"series-fill-{number % 4}"), label(x + 22, y, name, "small")]
        x += 44 + 6.4 * len(name)
    return [*parts, label(_WIDTH, y, "epoch", "small", "end")]
