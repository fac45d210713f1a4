"""The page of a comparison of inference engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from nnstretch.report.charts.bench import ratio_panel, skyline_panel
from nnstretch.report.charts.svg import panel_picture
from nnstretch.report.pages import render
from nnstretch.report.tables.bench import dtypes_text, failures, latency_cells, layer_rows, start_text
from nnstretch.report.tables.text import count_text, disturbed_text, number_text, threads_text

_RATIOS = "Best other engine's latency over ours, per model"
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
        ratios=panel_picture(ratio_panel(answer), _RATIOS)
        if any(one["speedup"] is not None for one in results)
        else "",
        latencies=[_latencies(results, summary["threads"]) for summary in answer["summary"]],
        starts=_starts(results),
        layers=[_layers(one) for one in results if one.get("layers")],
        failures=failures(results),
        disturbed=disturbed_text(answer.get("widest_interval")),
    )


def _figures(summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    figures: list[tuple[str, str]] = []
    for summary in summaries:
        if summary["geometric_mean"] is not None:
            threads = threads_text(summary["threads"])
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
        "title": f"Latency in ms, {threads_text(threads)}",
        "method": f"Medians of interleaved rounds{f' in {types}' if types else ''}, {batch}; {_METHOD}",
        "titles": ("model", "MACs", *engines, "× best", "of peak", "error"),
        "rows": [_latency_row(one, engines) for one in shown],
    }


def _latency_row(one: Result, engines: Sequence[str]) -> list[str]:
    best = Markup('<b class="best">{}</b>')
    return [
        Path(one["model"]).name,
        count_text(one["macs"]),
        *(best.format(text) if fastest else text for text, fastest in latency_cells(one, engines)),
        number_text(one["speedup"], ".2f"),
        number_text(one["peak_share"], ".0%"),
        number_text(one["max_rel_error"], ".0e"),
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
    return Markup("<br>").join(start_text(about).splitlines())


def _layers(one: Result) -> dict[str, Any]:
    """The chart and the table of a model's layers; routines and parameters stand in a fixed-width font."""
    code = Markup("<code>{}</code>")
    return {
        "title": f"Layers of {Path(one['model']).name}, {threads_text(one['threads'])}",
        "skyline": panel_picture(skyline_panel(one), f"Layers of {Path(one['model']).name}"),
        "rows": [[*row[:2], *map(code.format, row[2:4]), *row[4:]] for row in layer_rows(one)],
    }
