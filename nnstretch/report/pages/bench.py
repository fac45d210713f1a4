"""The page of a comparison of inference engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nnstretch.report.charts.bench import ratios_svg, skyline_svg
from nnstretch.report.pages.render import render
from nnstretch.report.tables.bench import dtypes_text, failures, parameters_text
from nnstretch.report.tables.text import count_text

_UNKNOWN = "–"
_METHOD = "every engine in a process of its own on the same cores, stopped while another one is timed."

Result = Mapping[str, Any]
"""One entry of the "results" of `bench --json`."""


def bench_html(answer: Mapping[str, Any]) -> str:
    """The page as text.

    Args:
        answer: the object that `bench --json` prints.
    """
    results = answer["results"]
    return render(
        "bench.html",
        title="Inference engines side by side",
        figures=_figures(answer["summary"]),
        machine=answer["machine"],
        ratios=ratios_svg(answer) if any(one["speedup"] is not None for one in results) else "",
        latencies=[_latencies(results, summary["threads"]) for summary in answer["summary"]],
        starts=_starts(results),
        layers=[_layers(one) for one in results if one.get("layers")],
        failures=failures(results),
    )


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _figures(summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    figures: list[tuple[str, str]] = []
    for summary in summaries:
        if summary["geometric_mean"] is not None:
            threads = _threads(summary["threads"])
            mean = f"the best other engine, {threads}, geometric mean"
            figures.append((f"{summary['geometric_mean']:.2f}×", mean))
            figures.append((f"{summary['not_slower']} of {summary['models']}", f"models not slower, {threads}"))
    return figures


def _latencies(results: Sequence[Result], threads: int) -> dict[str, Any]:
    """The table of latencies for one number of threads."""
    engines = list(dict.fromkeys(name for one in results for name in one["engines"]))
    shown = [one for one in results if one["threads"] == threads]
    types = dtypes_text(shown)
    batch = next((f"batch {one['batch']}" for one in shown if one.get("batch")), "the batch that each model has")
    return {
        "title": f"Latency in ms, {_threads(threads)}",
        "method": f"Medians of interleaved rounds{f' in {types}' if types else ''}, {batch}; {_METHOD}",
        "titles": ("model", "MACs", *engines, "× best", "of peak", "error"),
        "rows": [_latency_row(one, engines) for one in shown],
    }


def _latency_row(one: Result, engines: Sequence[str]) -> list[str]:
    times = {name: about["p50_ms"] for name, about in one["engines"].items() if "p50_ms" in about}
    fastest = min(times, key=times.__getitem__, default=None)
    cells = [_number(times.get(name), ".2f") for name in engines]
    cells = [
        Markup('<b class="best">{}</b>').format(c) if n == fastest else c for n, c in zip(engines, cells, strict=True)
    ]
    return [
        Path(one["model"]).name,
        count_text(one["macs"]),
        *cells,
        _number(one["speedup"], ".2f"),
        _number(one["peak_share"], ".0%"),
        _number(one["max_rel_error"], ".0e"),
    ]


def _starts(results: Sequence[Result]) -> dict[str, Any]:
    """The table of start-up times and memory; empty if none were measured."""
    measured = (name for one in results for name, about in one["engines"].items() if "ready_ms" in about)
    engines = list(dict.fromkeys(measured))
    if not engines:
        return {}
    rows = [
        [Path(one["model"]).name, str(one["threads"]), *(_start(one["engines"].get(name, {})) for name in engines)]
        for one in results
    ]
    return {"titles": ("model", "threads", *engines), "rows": rows}


def _start(about: Mapping[str, Any]) -> str:
    if "ready_ms" not in about:
        return _UNKNOWN
    cell = Markup("{created_ms:.0f} / {ready_ms:.0f} ms<br>{peak_mb:.0f} ({peak_rss_mb:.0f}) MB")
    return cell.format(**about)


def _layers(one: Result) -> dict[str, Any]:
    """The chart and the table of a model's layers."""
    peak = float(one["peak_gflops_per_core"]) * one["threads"]
    return {
        "title": f"Layers of {Path(one['model']).name}, {_threads(one['threads'])}",
        "skyline": skyline_svg(one),
        "rows": [_layer_row(layer, peak) for layer in one["layers"]],
    }


def _layer_row(layer: Mapping[str, Any], peak: float) -> list[str]:
    code = Markup("<code>{}</code>")
    return [
        layer["name"],
        layer["op"],
        code.format(layer["routine"]),
        code.format(parameters_text(layer["parameters"])),
        f"{layer['ms']:.3f}",
        f"{layer['share']:.1%}",
        f"{layer['gflops']:.0f}" if layer["macs"] else "",
        f"{layer['gflops'] / peak:.0%}" if layer["macs"] else "",
    ]


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)
