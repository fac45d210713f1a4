"""Charts of a search for branchings: blocks, designs left after each step, and the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.bench.timing import perfect_split
from nnstretch.report.charts.svg import (
    BOTTOM,
    GLYPH,
    WIDTH,
    Axes,
    box,
    dot,
    label,
    legend,
    line,
    picture,
    polyline,
    ticks,
)
from nnstretch.report.tables.text import count_text, power_text

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design
    from nnstretch.branching.latency.prediction import BlockCost
    from nnstretch.branching.search.report import SearchReport

_NAMES = 110
_TOTALS = 90
_STRIP = 34
_ROW = 58
_BAR = 16
_STEP = 44
_NEAR = 14  # pixels of height, and half of those of width, within which chosen designs share one text


def blocks_svg(report: SearchReport, names: Sequence[str]) -> str:
    """A strip per processor: blocks as wide as their share of its latency; ticks are the cut points of the search."""
    parts: list[str] = []
    bottom = 10.0
    for processor, name in enumerate(names):
        parts += _strip(report, processor, name, bottom)
        bottom += _ROW
    fills = [f"series-fill-{processor % 4}" for processor in range(len(names))]
    parts += legend(_NAMES, bottom + 6, [(fills, "can be branched"), (["quiet"], "stays whole")])
    x = _NAMES + 230 + 13 * len(fills)
    cut_point = "cut point: branches may meet here"
    parts += [line(x, bottom - 5, x, bottom + 9, "flow"), label(x + 8, bottom + 6, cut_point, "small")]
    return picture(WIDTH, bottom + 16, *parts, name="The network's blocks and their share of latency")


def _strip(report: SearchReport, processor: int, name: str, y: float) -> list[str]:
    """The blocks on one processor, from left to right, and the head."""
    total = sum(block.ms[processor] for block in report.blocks) + report.head_ms[processor]
    if not math.isfinite(total):
        reason = "has no routine for some of the network's layers, so that it cannot compute all of it"
        return [label(0, y + _STRIP / 2 + 4, name, "strong"), label(_NAMES, y + _STRIP / 2 + 4, reason, "small")]
    scale = (WIDTH - _NAMES - _TOTALS) / total
    parts = [
        label(0, y + _STRIP / 2 + 4, name, "strong"),
        label(WIDTH - _TOTALS + 12, y + _STRIP / 2 + 4, f"{total:.4g} ms", "label"),
    ]
    x = float(_NAMES)
    for number, block in enumerate(report.blocks):
        if number in report.boundaries:
            parts.append(line(x, y - 5, x, y + _STRIP + 5, "flow"))
        colour = f"series-fill-{processor % 4}" if block.branchable else "quiet"
        parts += _block(
            str(number), _block_tip(number, block, processor, total), x, y, block.ms[processor], scale, colour
        )
        x += block.ms[processor] * scale
    ms = report.head_ms[processor]
    return [*parts, *_block("head", f"head: {ms:.4g} ms, {ms / total:.1%}", x, y, ms, scale, "quiet")]


def _block(text: str, tip: str, x: float, y: float, ms: float, scale: float, colour: str) -> list[str]:
    width = ms * scale
    parts = [box(x + 0.5, y, max(width - 1, 0.4), _STRIP, colour, tip, radius=1.5)]
    if width > GLYPH * len(text) + 4:
        parts.append(label(x + width / 2, y + _STRIP / 2 + 4, text, "on" if colour != "quiet" else "small", "middle"))
    return parts


def _block_tip(number: int, block: BlockCost, processor: int, total: float) -> str:
    ms = block.ms[processor]
    alone = "" if block.branchable else "\ncannot be branched by itself"
    return f"block {number}, {block.name}: {ms:.4g} ms, {ms / total:.1%}, {count_text(block.macs)} MACs{alone}"


def pruning_svg(report: SearchReport, chosen: int) -> str:
    """A bar per step, as long as the logarithm of the number of designs that are left."""
    rows = [(step.step, step.designs_log10) for step in report.pruning]
    longest = max(1.0, *(count for _, count in rows))
    scale = (WIDTH - _TOTALS - 20) / longest
    bottom = 6.0 + (len(rows) + 2) * _STEP
    parts: list[str] = []
    for tick in ticks(0, longest, 8):
        x = tick * scale
        parts += [line(x, 6, x, bottom - 8, "grid"), label(x, bottom + 8, power_text(tick), "small", "middle")]
    y = 6.0
    for step, count in rows:
        parts += _bar(step, count, power_text(count), y, scale, "conv")
        y += _STEP
    kept = len(report.front)
    for step, number, colour in (
        ("whole networks than which none is as fast and has as many MACs (the front below)", kept, "quiet"),
        ("chosen", chosen, "accent"),
    ):
        parts += _bar(step, math.log10(max(number, 1)), str(number), y, scale, colour)
        y += _STEP
    return picture(WIDTH, bottom + 14, *parts, name="Designs that were left after each step", margin=22)


def _bar(step: str, log10: float, count: str, y: float, scale: float, colour: str) -> list[str]:
    width = max(log10 * scale, 3.0)
    return [
        label(0, y + 12, step, "label"),
        box(0, y + 17, width, _BAR, colour, f"{step}: {count}", radius=2),
        label(width + 8, y + 30, count, "strong"),
    ]


def front_svg(report: SearchReport, designs: Sequence[Design]) -> str:
    """Predicted latency (x) against MACs (y): the front, the chosen designs, the original and the perfect split."""
    giga = 1e-9
    original = designs[0].original_macs
    fastest = min(report.original_ms)
    split = perfect_split(report.original_ms) / original  # per multiply-accumulate
    chosen = [(design.predicted_ms or 0.0, design.macs) for design in designs]
    points = [(point.ms, point.macs) for point in report.front]
    alone = [(fastest, original)] if math.isfinite(fastest) else []
    macs = [m for _, m in (*points, *chosen)] + [original]
    bound = [(split * m, m) for m in (min(macs), max(macs)) if math.isfinite(split)]
    everything = [*points, *chosen, *bound, *alone]
    axes = Axes([ms for ms, _ in everything], [m * giga for _, m in everything])
    parts = axes.frame("predicted ms", "MACs, 10⁹")
    if bound:
        parts.append(polyline([axes.at(ms, m * giga) for ms, m in bound], "bound"))
        parts.append(_bound_label(axes, axes.at(bound[-1][0], bound[-1][1] * giga)))
    for ms, m in points:
        x, y = axes.at(ms, m * giga)
        parts.append(dot(x, y, 2.4, "dot series-0", f"{ms:.4g} ms, {count_text(m)} MACs"))
    for ms, m in alone:
        x, y = axes.at(ms, m * giga)
        parts.append(box(x - 4, y - 4, 8, 8, "other", f"the original: {ms:.4g} ms"))
        parts.append(label(x + 8, y + 14, "original", "label"))
    parts += _chosen([axes.at(ms, m * giga) for ms, m in chosen])
    return picture(WIDTH, BOTTOM + 40, *parts, name="Front of predicted latency and MACs")


def _bound_label(axes: Axes, end: tuple[float, float]) -> str:
    """The name of the perfect split, at the upper end of its line: on the left, where no network is, if it fits."""
    x, y = end
    name = "perfect split"
    if x - axes.left > GLYPH * len(name) + 8:
        return label(x - 8, y - 4, name, "bound-text", "end")
    return label(x + 8, y + 14, name, "bound-text")


def _chosen(places: Sequence[tuple[float, float]]) -> list[str]:
    """A ring around each chosen design; rings that lie close together share one text of their ranks."""
    parts: list[str] = []
    groups: list[tuple[tuple[float, float], list[str]]] = []
    for rank, (x, y) in enumerate(places, 1):
        parts.append(dot(x, y, 5, "ring"))
        for (gx, gy), ranks in groups:
            if abs(gx - x) < 2 * _NEAR and abs(gy - y) < _NEAR:
                ranks.append(str(rank))
                break
        else:
            groups.append(((x, y), [str(rank)]))
    return [*parts, *(label(x + 9, y - 6, ", ".join(ranks), "ring-text") for (x, y), ranks in groups)]
