"""The report of a benchmark as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nnstretch.report.charts.bench import ratios_svg, skyline_svg
from nnstretch.report.pages.page import Html, folded, items, opening, page, section, table
from nnstretch.report.tables.bench import dtypes_text, failures, parameters_text
from nnstretch.report.tables.text import count_text

_ABSENT = "–"
_HEAD = "every engine in a process of its own on the same cores, asleep while another one is timed."
_START = (
    "From a file to the first result, in a fresh process whose imports are done: milliseconds until the session, interpreter "
    "or network is there, until the first result, and the memory at most beyond what was resident before (in all)."
)
_LAYERS = (
    "A bar is as wide as the layer's time and as high as its share of the multiply-add peak, counted as the layer is written "
    "down: Winograd, which needs fewer multiplications, may exceed it. Rest the pointer on a bar to see its layer and routine."
)


def bench_html(answer: Mapping[str, Any]) -> str:
    """The report as text.

    Args:
        answer: what `bench --json` prints.
    """
    results = answer["results"]
    engines = list(dict.fromkeys(name for one in results for name in one["engines"]))
    sections = [_opening(answer)]
    if any(one["speedup"] is not None for one in results):
        sections.append(section("Ratios", "", ratios_svg(answer)))
    for summary in answer["summary"]:
        count = summary["threads"]
        shown = [one for one in results if one["threads"] == count]
        title = f"Latency in ms, {count} thread{'s' * (count > 1)}"
        sections.append(section(title, _head(shown), _latencies(shown, engines)))
    started = [name for name in engines if any("ready_ms" in one["engines"].get(name, {}) for one in results)]
    if started:
        sections.append(section("From file to first result", _START, _starts(results, started)))
    for number, one in enumerate(one for one in results if one.get("layers")):
        title = f"Layers of {Path(one['model']).name}, {one['threads']} thread{'s' * (one['threads'] > 1)}"
        sections.append(section(title, "" if number else _LAYERS, skyline_svg(one) + _layers(one)))
    lines = failures(results)
    if lines:
        sections.append(section("What did not run", "", items(lines)))
    return page("Inference engines side by side", sections, Html("Made by nnstretch bench."), "b.best{font-weight:650}")


def _opening(answer: Mapping[str, Any]) -> str:
    machine = answer["machine"]
    figures: list[tuple[str, str]] = []
    for summary in answer["summary"]:
        if summary["geometric_mean"] is not None:
            count = summary["threads"]
            which = f"the best other engine, {count} thread{'s' * (count > 1)}"
            figures.append((f"{summary['geometric_mean']:.2f}×", f"{which}, geometric mean"))
            figures.append(
                (
                    f"{summary['not_slower']} of {summary['models']}",
                    f"models not slower, {count} thread{'s' * (count > 1)}",
                )
            )
    lead = (
        f"Measured on {machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}, each of which reaches "
        f"{machine['peak_gflops_per_core']:.0f} GFLOP/s in float32."
    )
    return opening("Inference engines side by side", lead, figures)


def _head(results: Sequence[Mapping[str, Any]]) -> str:
    """What was timed, and how."""
    types = dtypes_text(results)
    batch = next((f"batch {one['batch']}" for one in results if one.get("batch")), "the batch that each model has")
    return f"Medians of interleaved rounds{f' in {types}' if types else ''}, {batch}; {_HEAD}"


def _latencies(results: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    rows: list[list[str]] = []
    for one in results:
        times = {name: about["p50_ms"] for name, about in one["engines"].items() if "p50_ms" in about}
        fastest = min(times, key=times.__getitem__, default=None)
        cells = [_number(times.get(name), ".2f") for name in engines]
        cells = [Html(f'<b class="best">{c}</b>') if n == fastest else c for n, c in zip(engines, cells, strict=True)]
        shares = (
            _number(one["speedup"], ".2f"),
            _number(one["peak_share"], ".0%"),
            _number(one["max_rel_error"], ".0e"),
        )
        rows.append([Path(one["model"]).name, count_text(one["macs"]), *cells, *shares])
    return table(("model", "MACs", *engines, "× best", "of peak", "error"), rows)


def _starts(results: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    rows = [
        [
            Path(one["model"]).name,
            str(one["threads"]),
            *(_start(one["engines"].get(name, {})) for name in engines),
        ]
        for one in results
    ]
    return table(("model", "threads", *engines), rows)


def _start(about: Mapping[str, Any]) -> str:
    if "ready_ms" not in about:
        return _ABSENT
    return Html(
        f"{about['created_ms']:.0f} / {about['ready_ms']:.0f} ms<br>"
        f"{about['peak_mb']:.0f} ({about['peak_rss_mb']:.0f}) MB"
    )


def _layers(result: Mapping[str, Any]) -> str:
    """The table of layers, folded away."""
    peak = float(result["peak_gflops_per_core"]) * result["threads"]
    rows = [
        [
            layer["name"],
            layer["op"],
            Html(f"<code>{escape(layer['routine'])}</code>"),
            Html(f"<code>{escape(parameters_text(layer['parameters']))}</code>"),
            f"{layer['ms']:.3f}",
            f"{layer['share']:.1%}",
            f"{layer['gflops']:.0f}" if layer["macs"] else "",
            f"{layer['gflops'] / peak:.0%}" if layer["macs"] else "",
        ]
        for layer in result["layers"]
    ]
    titles = ("layer", "op", "routine", "parameters", "ms", "share", "GFLOP/s", "of peak")
    return folded("All layers", table(titles, rows, texts=4))


def _number(value: float | None, form: str) -> str:
    return _ABSENT if value is None else format(value, form)
