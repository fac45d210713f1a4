"""The report of a benchmark: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nnstretch.report.bench_picture import ratios_svg, skyline_svg
from nnstretch.report.bench_table import failures, parameters_text
from nnstretch.report.style import page_style
from nnstretch.report.svg import element
from nnstretch.report.text import count_text

_ABSENT = "–"
_HEAD = (
    "Medians of interleaved rounds in float32, batch 1; every engine in a process of its own on the same cores, "
    "asleep while another one is timed."
)
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
        sections.append(_section("Ratios", "", ratios_svg(answer)))
    for summary in answer["summary"]:
        count = summary["threads"]
        shown = [one for one in results if one["threads"] == count]
        title = f"Latency in ms, {count} thread{'s' * (count > 1)}"
        sections.append(_section(title, _HEAD, _latencies(shown, engines)))
    started = [name for name in engines if any("ready_ms" in one["engines"].get(name, {}) for one in results)]
    if started:
        sections.append(_section("From file to first result", _START, _starts(results, started)))
    for number, one in enumerate(one for one in results if one.get("layers")):
        title = f"Layers of {Path(one['model']).name}, {one['threads']} thread{'s' * (one['threads'] > 1)}"
        sections.append(_section(title, "" if number else _LAYERS, skyline_svg(one) + _layers(one)))
    lines = failures(results)
    if lines:
        items = "".join(element("li", escape(text)) for text in lines)
        sections.append(_section("What did not run", "", element("ul", items)))
    style = page_style() + "details{margin:.5rem 0}summary{cursor:pointer;color:var(--soft)}b.best{font-weight:650}"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Inference engines side by side</title><style>{style}</style>"
    )
    footer = "<footer>Made by nnstretch bench.</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(sections)}{footer}</body></html>\n'


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
    shown = "".join(
        element("div", element("b", escape(value)), element("span", escape(what)), class_="figure")
        for value, what in figures
    )
    lead = (
        f"Measured on {machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}, each of which reaches "
        f"{machine['peak_gflops_per_core']:.0f} GFLOP/s in float32."
    )
    return (
        f'<h1>Inference engines side by side</h1><p class="lead">{escape(lead)}</p><div class="figures">{shown}</div>'
    )


def _section(title: str, text: str, content: str) -> str:
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f'<h2>{escape(title)}</h2>{paragraph}<div class="scroll">{content}</div>'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table whose cells are HTML; the first columns, as many as `texts`, are text and the others numbers."""
    heads = "".join(
        element("th", escape(title), class_="number" if number >= texts else None)
        for number, title in enumerate(titles)
    )
    lines = "".join(
        element("tr", "".join(_cell(cell, is_number=number >= texts) for number, cell in enumerate(row)))
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(content: str, *, is_number: bool) -> str:
    return f'<td class="number">{content}</td>' if is_number else f"<td>{content}</td>"


def _latencies(results: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    rows: list[list[str]] = []
    for one in results:
        times = {name: about["p50_ms"] for name, about in one["engines"].items() if "p50_ms" in about}
        fastest = min(times, key=times.__getitem__, default=None)
        cells = [_number(times.get(name), ".2f") for name in engines]
        cells = [f'<b class="best">{c}</b>' if n == fastest else c for n, c in zip(engines, cells, strict=True)]
        shares = (
            _number(one["speedup"], ".2f"),
            _number(one["peak_share"], ".0%"),
            _number(one["max_rel_error"], ".0e"),
        )
        rows.append([escape(Path(one["model"]).name), count_text(one["macs"]), *cells, *shares])
    return _table(("model", "MACs", *engines, "× best", "of peak", "error"), rows)


def _starts(results: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    rows = [
        [
            escape(Path(one["model"]).name),
            str(one["threads"]),
            *(_start(one["engines"].get(name, {})) for name in engines),
        ]
        for one in results
    ]
    return _table(("model", "threads", *engines), rows)


def _start(about: Mapping[str, Any]) -> str:
    if "ready_ms" not in about:
        return _ABSENT
    return (
        f"{about['created_ms']:.0f} / {about['ready_ms']:.0f} ms<br>"
        f"{about['peak_mb']:.0f} ({about['peak_rss_mb']:.0f}) MB"
    )


def _layers(result: Mapping[str, Any]) -> str:
    """The table of layers, folded away."""
    peak = float(result["peak_gflops_per_core"]) * result["threads"]
    rows = [
        [
            escape(layer["name"]),
            escape(layer["op"]),
            f"<code>{escape(layer['routine'])}</code>",
            f"<code>{escape(parameters_text(layer['parameters']))}</code>",
            f"{layer['ms']:.3f}",
            f"{layer['share']:.1%}",
            f"{layer['gflops']:.0f}" if layer["macs"] else "",
            f"{layer['gflops'] / peak:.0%}" if layer["macs"] else "",
        ]
        for layer in result["layers"]
    ]
    titles = ("layer", "op", "routine", "parameters", "ms", "share", "GFLOP/s", "of peak")
    return element("details", "<summary>All layers</summary>", _table(titles, rows, texts=4))


def _number(value: float | None, form: str) -> str:
    return _ABSENT if value is None else format(value, form)
