"""Charts of a comparison: ratios per model as bars, layers as a skyline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.report.charts.style import op_class, standalone
from nnstretch.report.charts.svg import box, element, label, line, picture, tick_text, ticks
from nnstretch.report.tables.bench import parameters_text

_WIDTH = 960
_NAMES = 190
_RIGHT = 150
_BAR = 13
_GAP = 11
_NOISE = 0.97  # a ratio below this is a loss, not noise
_SKY = 190
_LEFT = 44
_MARGIN = 24
_GLYPH = 6.2  # pixels of a character in a label

_FILLS = ("conv", "depthwise", "dense", "quiet")  # one for each number of threads
_LOSS = "accent"

Answer = Mapping[str, Any]
Results = Sequence[Mapping[str, Any]]


def bench_picture(answer: Answer) -> str:
    """One stand-alone SVG: the ratios, and below them the layers of every model with layer times.

    Args:
        answer: the object that `bench --json` prints.
    """
    panels = [ratio_panel(answer), *(skyline_panel(one) for one in answer["results"] if one.get("layers"))]
    parts: list[str] = []
    top = float(_MARGIN)
    for height, content in panels:
        parts.append(element("g", *content, transform=f"translate(0 {top:.0f})"))
        top += height + _MARGIN
    paper = box(-_MARGIN, 0, _WIDTH + 2 * _MARGIN, top, "paper")
    return picture(_WIDTH, top, paper, *parts, name="Benchmark", style=standalone(), margin=_MARGIN)


def ratios_svg(answer: Answer) -> str:
    """The ratios as a chart inside a page."""
    height, content = ratio_panel(answer)
    return picture(_WIDTH, height, *content, name="Best other engine's latency over ours, per model")


def skyline_svg(result: Mapping[str, Any]) -> str:
    """The layers of one result as a chart inside a page."""
    height, content = skyline_panel(result)
    return picture(_WIDTH, height, *content, name=f"Layers of {Path(result['model']).name}")


# -- ratios --------------------------------------------------------------------------------------------------------


def ratio_panel(answer: Answer) -> tuple[float, list[str]]:
    """Height and elements: a group of bars per model, one for each number of threads, and their geometric means."""
    results = [one for one in answer["results"] if one["speedup"] is not None]
    threads = sorted({one["threads"] for one in results})
    series = {count: number for number, count in enumerate(threads)}
    models = list(dict.fromkeys(one["model"] for one in results))
    longest = max([1.1, *(one["speedup"] for one in results)]) * 1.02
    scale = (_WIDTH - _NAMES - _RIGHT) / longest
    parts = [
        label(0, 12, "the best other engine's latency over ours: above 1 ours is faster", "strong"),
        *_legend(threads),
    ]
    top = y = 40.0
    for model in models:
        mine = [one for one in results if one["model"] == model]
        middle = y + (len(mine) * _BAR) / 2 + 4
        parts.append(label(_NAMES - 10, middle, Path(model).name, "label", "end"))
        for one in mine:
            parts += _ratio_bar(one, series[one["threads"]], y, scale)
            y += _BAR
        y += _GAP
    y += 4
    for summary in answer["summary"]:
        if summary["geometric_mean"] is not None:
            parts += _mean_bar(summary, series[summary["threads"]], y, scale)
            y += _BAR
    grid: list[str] = []
    for tick in ticks(0, longest, 8):
        x = _NAMES + tick * scale
        grid += [line(x, top - 4, x, y + 4, "grid"), label(x, y + 18, tick_text(tick), "small", "middle")]
    even = _NAMES + scale
    return y + 26, [*grid, *parts, line(even, top - 8, even, y + 4, "bound")]


def _ratio_bar(one: Mapping[str, Any], series: int, y: float, scale: float) -> list[str]:
    ratio, baseline = float(one["speedup"]), one["best_peer"]
    ours, theirs = one["engines"]["nnstretch"]["p50_ms"], one["engines"][baseline]["p50_ms"]
    tip = f"{Path(one['model']).name}, {_threads(one['threads'])}: {ours:.4g} ms, {baseline} {theirs:.4g} ms"
    colour = _LOSS if ratio < _NOISE else _FILLS[series % len(_FILLS)]
    return [
        box(_NAMES, y, ratio * scale, _BAR - 1.5, colour, tip, radius=1.5),
        label(_NAMES + ratio * scale + 6, y + _BAR - 3.5, f"{ratio:.2f}× {baseline}", "small"),
    ]


def _mean_bar(summary: Mapping[str, Any], series: int, y: float, scale: float) -> list[str]:
    mean = float(summary["geometric_mean"])
    return [
        label(_NAMES - 10, y + _BAR - 3, f"geometric mean, {_threads(summary['threads'])}", "strong", "end"),
        box(_NAMES, y, mean * scale, _BAR - 1.5, _FILLS[series % len(_FILLS)], radius=1.5),
        label(_NAMES + mean * scale + 6, y + _BAR - 3, f"{mean:.2f}×", "strong"),
    ]


def _legend(threads: Sequence[int]) -> list[str]:
    parts: list[str] = []
    x = float(_WIDTH)
    names = [(_FILLS[number % len(_FILLS)], _threads(count)) for number, count in enumerate(threads)]
    for colour, name in reversed([*names, (_LOSS, f"below {_NOISE}")]):
        x -= len(name) * _GLYPH
        parts.append(label(x, 12, name, "small"))
        x -= 16
        parts.append(box(x, 3, 10, 10, colour, radius=1.5))
        x -= 14
    return parts


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


# -- layers --------------------------------------------------------------------------------------------------------


def skyline_panel(result: Mapping[str, Any]) -> tuple[float, list[str]]:
    """Height and elements: a bar per layer, as wide as its time and as high as its share of the multiply-add peak.

    The gap to the line of the peak is the possible gain of a better kernel; layers without multiply-adds have no height.
    """
    layers = result["layers"]
    peak = float(result["peak_gflops_per_core"]) * result["threads"]
    total = sum(layer["ms"] for layer in layers)
    highest = max([1.0, *(layer["gflops"] / peak for layer in layers)]) * 1.04
    ground = 34.0 + _SKY
    wide, high = (_WIDTH - _LEFT) / total, _SKY / highest
    name = f"{Path(result['model']).name}, {_threads(result['threads'])}"
    title = f"{name}: time of each layer across, share of the multiply-add peak upwards"
    parts = [label(0, 12, title, "strong")]
    for tick in ticks(0, highest, 5):
        y = ground - tick * high
        parts += [line(_LEFT, y, _WIDTH, y, "grid"), label(_LEFT - 8, y + 4, f"{tick:.0%}", "small", "end")]
    begin = 0.0
    for layer in layers:
        parts += _tower(layer, _LEFT + begin * wide, layer["ms"] * wide, ground, high / peak)
        begin += layer["ms"]
    for tick in ticks(0, total, 10):
        parts.append(label(_LEFT + tick * wide, ground + 18, tick_text(tick), "small", "middle"))
    parts += [line(_LEFT, ground - high, _WIDTH, ground - high, "bound"), line(_LEFT, ground, _WIDTH, ground, "axis")]
    parts.append(label(_WIDTH, ground + 34, "ms", "small", "end"))
    used = dict.fromkeys(op_class(layer["op"], layer["routine"]) for layer in layers)
    return ground + 42, [*parts, *_op_legend(list(used), ground + 34)]


def _tower(layer: Mapping[str, Any], x: float, width: float, ground: float, scale: float) -> list[str]:
    height = layer["gflops"] * scale if layer["macs"] else 4.0
    tip = (
        f"{layer['name']}: {layer['op']}, {layer['routine']} {parameters_text(layer['parameters'])}\n"
        f"{layer['ms']:.3f} ms, {layer['share']:.1%} of the run"
        + (f", {layer['gflops']:.0f} GFLOP/s" if layer["macs"] else "")
    )
    colour = op_class(layer["op"], layer["routine"])
    parts = [box(x, ground - height, max(width - 0.4, 0.3), height, colour, tip)]
    if width > len(layer["name"]) * _GLYPH + 6:
        parts.append(label(x + width / 2, ground - height - 5, layer["name"], "small", "middle"))
    return parts


def _op_legend(classes: Sequence[str], y: float) -> list[str]:
    parts: list[str] = []
    x = float(_LEFT)
    for name in classes:
        parts += [box(x, y - 9, 10, 10, name, radius=1.5), label(x + 15, y, name, "small")]
        x += 15 + len(name) * _GLYPH + 18
    return parts
