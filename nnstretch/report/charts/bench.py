"""Charts of a comparison: ratios per model as bars, layers as a skyline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnstretch.report.charts.style import CLASSES, op_class
from nnstretch.report.charts.svg import (
    GLYPH,
    WIDTH,
    Panel,
    box,
    label,
    legend,
    line,
    tick_text,
    ticks,
    vertical_grid,
)
from nnstretch.report.tables.bench import peak_share
from nnstretch.report.tables.text import operator_text, parameters_text, threads_text

_LEAST_NAMES = 120  # width of the column of names
_RIGHT = 150
_BAR = 13
_GAP = 11
_STRONG_GLYPH = 7.4  # width of a letter in bold
_NOISE = 0.97  # a ratio below this is a loss, not noise
_SKY = 190
_LEFT = 44
_EDGE = 16  # right of a skyline, for its last number

_FILLS = ("conv", "depthwise", "dense", "quiet")  # one for each number of threads
_LOSS = "accent"

Answer = Mapping[str, Any]


# -- ratios --------------------------------------------------------------------------------------------------------


def ratio_panel(answer: Answer) -> Panel:
    """A group of bars per model, one for each number of threads, and their geometric means."""
    results = [one for one in answer["results"] if one["speedup"] is not None]
    threads = sorted({one["threads"] for one in results})
    colours = {count: _FILLS[number % len(_FILLS)] for number, count in enumerate(threads)}
    longest = max([1.1, *(one["speedup"] for one in results)]) * 1.02
    models = dict.fromkeys(one["model"] for one in results)
    means = [one for one in answer["summary"] if one["geometric_mean"] is not None]
    names = [*(Path(model).name for model in models), *(_mean_of(one) for one in means)]
    left = max([_LEAST_NAMES, *(len(name) * _STRONG_GLYPH + 10 for name in names)])
    scale = (WIDTH - left - _RIGHT) / longest
    named = [([colour], threads_text(count)) for count, colour in colours.items()]
    parts = [
        label(0, 12, "the best other engine's latency over ours: above 1 ours is faster", "strong"),
        *legend(WIDTH - 100 * (len(named) + 1), 12, [*named, ([_LOSS], f"below {_NOISE}")]),
    ]
    top = y = 40.0
    for model in models:
        mine = [one for one in results if one["model"] == model]
        middle = y + (len(mine) * _BAR) / 2 + 4
        parts.append(label(left - 10, middle, Path(model).name, "label", "end"))
        for one in mine:
            parts += _ratio_bar(one, colours[one["threads"]], left, y, scale)
            y += _BAR
        y += _GAP
    y += 4
    for summary in means:
        mean = summary["geometric_mean"]
        parts.append(label(left - 10, y + _BAR - 3, _mean_of(summary), "strong", "end"))
        parts += _bar(mean, f"{mean:.2f}×", "strong", colours[summary["threads"]], left, y, scale)
        y += _BAR
    even = left + scale
    grid = vertical_grid(left, scale, longest, top - 4, y + 4, y + 18)
    return y + 26, [*grid, *parts, line(even, top - 8, even, y + 4, "bound")]


def _mean_of(summary: Mapping[str, Any]) -> str:
    return f"geometric mean, {threads_text(summary['threads'])}"


def _ratio_bar(one: Mapping[str, Any], colour: str, left: float, y: float, scale: float) -> list[str]:
    ratio, baseline = float(one["speedup"]), one["best_peer"]
    ours, theirs = one["engines"]["nnstretch"]["p50_ms"], one["engines"][baseline]["p50_ms"]
    tip = f"{Path(one['model']).name}, {threads_text(one['threads'])}: {ours:.4g} ms, {baseline} {theirs:.4g} ms"
    return _bar(ratio, f"{ratio:.2f}× {baseline}", "small", _LOSS if ratio < _NOISE else colour, left, y, scale, tip)


def _bar(
    ratio: float, text: str, class_: str, colour: str, left: float, y: float, scale: float, tip: str = ""
) -> list[str]:
    return [
        box(left, y, ratio * scale, _BAR - 1.5, colour, tip, radius=1.5),
        label(left + ratio * scale + 6, y + _BAR - 3, text, class_),
    ]


# -- layers --------------------------------------------------------------------------------------------------------


def skyline_panel(result: Mapping[str, Any]) -> Panel:
    """A bar per layer, as wide as its time and as high as its share of the multiply-add peak.

    The gap to the line of the peak is the possible gain of a better kernel; layers without multiply-adds have no height.
    """
    layers = result["layers"]
    total = sum(layer["ms"] for layer in layers)
    highest = max([1.0, *(peak_share(result, layer) for layer in layers)]) * 1.04
    ground = 34.0 + _SKY
    wide, high = (WIDTH - _LEFT - _EDGE) / total, _SKY / highest
    name = f"{Path(result['model']).name}, {threads_text(result['threads'])}"
    title = f"{name}: time of each layer across, share of the multiply-add peak upwards"
    parts = [label(0, 12, title, "strong")]
    for tick in ticks(0, highest, 5):
        y = ground - tick * high
        parts += [line(_LEFT, y, WIDTH, y, "grid"), label(_LEFT - 8, y + 4, f"{tick:.0%}", "small", "end")]
    begin = 0.0
    for layer in layers:
        parts += _tower(layer, _LEFT + begin * wide, layer["ms"] * wide, ground, high * peak_share(result, layer))
        begin += layer["ms"]
    for tick in ticks(0, total, 10):
        parts.append(label(_LEFT + tick * wide, ground + 18, tick_text(tick), "small", "middle"))
    parts += [line(_LEFT, ground - high, WIDTH, ground - high, "bound"), line(_LEFT, ground, WIDTH, ground, "axis")]
    parts.append(label(WIDTH, ground + 34, "ms", "small", "end"))
    used = dict.fromkeys(op_class(layer["op"], layer["routine"]) for layer in layers)
    return ground + 42, [*parts, *legend(_LEFT, ground + 34, [([name], CLASSES[name]) for name in used])]


def _tower(layer: Mapping[str, Any], x: float, width: float, ground: float, rate: float) -> list[str]:
    height = rate if layer["macs"] else 4.0
    tip = (
        f"{layer['name']}: {operator_text(layer['op'])}, {layer['routine']} {parameters_text(layer['parameters'])}\n"
        f"{layer['ms']:.3f} ms, {layer['share']:.1%} of the run"
        + (f", {layer['gflops']:.0f} GFLOP/s" if layer["macs"] else "")
    )
    colour = op_class(layer["op"], layer["routine"])
    parts = [box(x, ground - height, max(width - 0.4, 0.3), height, colour, tip)]
    if width > len(layer["name"]) * GLYPH + 6:
        parts.append(label(x + width / 2, ground - height - 5, layer["name"], "small", "middle"))
    return parts
