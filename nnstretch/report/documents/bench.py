"""Answers of `bench`: inference engines side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.report.charts.bench import ratio_panel, skyline_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import facts_of
from nnstretch.report.tables.bench import dtypes_text, failures, fastest_engine, peak_share
from nnstretch.report.tables.text import operator_text, parameters_text, quietness_lines, sentence, threads_text
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.words import counted

_METHOD = "every engine in a process of its own on the same cores, stopped while another one is timed."
_SKYLINE = (
    "A bar is as wide as the layer's time and as high as its share of the multiply-add peak of its data type, counted as the "
    "layer is written down: Winograd and Strassen, which need fewer multiplications, may exceed it. A bar's tooltip shows its "
    "routine."
)
_STARTS = (
    "In a fresh process whose imports are done: milliseconds until the session, interpreter or network exists and until the "
    "first result, and peak memory beyond what was resident before, and in all."
)
_MACS = "million MACs"
_MILLION = 1e6

Result = Mapping[str, Any]
"""One entry of "results"."""


def bench_document(answer: Mapping[str, Any]) -> Document:
    """The document of an answer.

    Args:
        answer: the object that `bench --json` prints. A field that is missing raises KeyError.
    """
    results, machine = answer["results"], answer["machine"]
    models = dict.fromkeys(Path(one["model"]).name for one in results)
    figures: dict[str, Cell] = {"models": len(models)}
    for summary in answer["summary"]:
        figures[f"× the best other engine, {threads_text(summary['threads'])}"] = summary["geometric_mean"]
    for one in results:
        ours = one["engines"].get("nnstretch", {}).get("p50_ms")
        figures[f"ms, {Path(one['model']).name}, {threads_text(one['threads'])}"] = ours
    facts = facts_of(machine)
    facts |= {
        engine: str(about["version"])
        for one in results
        for engine, about in one["engines"].items()
        if "version" in about
    }
    return Document(
        f"Benchmark of {next(iter(models)) if len(models) == 1 else f'{len(models)} models'}",
        " ".join(filter(None, (machine_text(machine), quietness_text(answer)))),
        figures,
        list(_sections(answer)),
        facts,
        headline=_headline(answer["summary"]),
    )


def machine_text(machine: Mapping[str, Any]) -> str:
    """A sentence on the machine that an answer was measured on."""
    cores = f"{counted(machine['cores'], 'core')}"
    return (
        f"Measured on {cores} of {machine['cpu']} ({machine['peak_gflops_per_core']:.0f} GFLOP/s per core in float32)."
    )


def quietness_text(answer: Mapping[str, Any]) -> str:
    """Sentences on a machine that was not quiet; else empty."""
    others = OtherPrograms.from_json(answer.get("other_programs"))
    said = quietness_lines(answer.get("widest_interval"), others)
    return " ".join(sentence(line) for line in said)


def _headline(summaries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    shown: list[tuple[str, str]] = []
    for summary in summaries:
        if summary["geometric_mean"] is not None:
            threads = threads_text(summary["threads"])
            shown.append((f"{summary['geometric_mean']:.2f}×", f"the best other engine, {threads}, geometric mean"))
            shown.append((f"{summary['not_slower']} of {summary['models']}", f"models not slower, {threads}"))
    return shown


def _sections(answer: Mapping[str, Any]) -> Iterator[Section]:
    results = answer["results"]
    if any(one["speedup"] is not None for one in results):
        yield Section("Ratios", "Best other engine's latency over ours, per model.", ratio_panel(answer))
    for summary in answer["summary"]:
        yield _latencies([one for one in results if one["threads"] == summary["threads"]], summary["threads"])
    if starts := _starts(results):
        yield Section("From file to first result", _STARTS, table=Table(_START_TITLES, starts, 3))
    text = _SKYLINE
    for one in results:
        if one.get("layers"):
            yield _layers(one, text)
            text = ""
    if said := failures(results):
        yield Section("What did not run, and how the others ran", table=Table(("",), [(line,) for line in said]))


def _latencies(results: Sequence[Result], threads: int) -> Section:
    """The latencies for one number of threads; the fastest engine of each row is bold."""
    engines = list(dict.fromkeys(engine for one in results for engine in one["engines"]))
    types = dtypes_text(results)
    batch = next((f"batch {one['batch']}" for one in results if one.get("batch")), "the batch that each model has")
    rows: list[Sequence[Cell]] = [
        (
            Path(one["model"]).name,
            None if one["macs"] is None else one["macs"] / _MILLION,
            *(one["engines"].get(engine, {}).get("p50_ms") for engine in engines),
            one["speedup"],
            None if one["peak_share"] is None else 100 * one["peak_share"],
            one["max_rel_error"],
        )
        for one in results
    ]
    fastest = [fastest_engine(one, engines) for one in results]
    bold = frozenset((row, 2 + engines.index(name)) for row, name in enumerate(fastest) if name is not None)
    titles = ("model", _MACS, *(f"{engine} ms" for engine in engines), "× best", "% of peak", "rel. error")
    text = f"Medians of interleaved rounds{f' in {types}' if types else ''}, {batch}; {_METHOD}"
    return Section(f"Latency in ms, {threads_text(threads)}", text, table=Table(titles, rows, bold=bold))


_START_TITLES = ("model", "threads", "engine", "created ms", "first result ms", "MB beyond imports", "MB in all")


def _starts(results: Sequence[Result]) -> list[Sequence[Cell]]:
    """Start-up times and memory per model and engine; empty if none were measured."""
    fields = ("created_ms", "ready_ms", "peak_mb", "peak_rss_mb")
    return [
        (Path(one["model"]).name, str(one["threads"]), engine, *(about[field] for field in fields))
        for one in results
        for engine, about in one["engines"].items()
        if "ready_ms" in about
    ]


def _layers(one: Result, text: str) -> Section:
    rows: list[Sequence[Cell]] = [
        (
            *(layer["name"], operator_text(layer["op"]), layer["routine"], parameters_text(layer["parameters"])),
            *(layer["ms"], 100 * layer["share"]),
            *((layer["gflops"], 100 * peak_share(one, layer)) if layer["macs"] else (None, None)),
        )
        for layer in one["layers"]
    ]
    titles = ("layer", "op", "routine", "parameters", "ms", "% of the run", "GFLOP/s", "% of peak")
    title = f"Layers of {Path(one['model']).name}, {threads_text(one['threads'])}"
    return Section(title, text, skyline_panel(one), Table(titles, rows, 4), folded=True)
