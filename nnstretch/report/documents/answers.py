"""Answers of commands, as `--json` prints them and `-o` writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnstretch.errors import FileError
from nnstretch.report.charts.bench import ratio_panel, skyline_panel
from nnstretch.report.charts.selection import front_panel, search_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import environment_facts
from nnstretch.report.documents.latency_grid import latency_document
from nnstretch.report.documents.targets import targets_document
from nnstretch.report.tables.text import parameters_text, threads_text

Answer = Mapping[str, Any]


def read_answer(path: Path, answer: Answer) -> Document:
    """The document of an answer.

    Raises:
        FileError: it is a timeline, or the answer of no command that has a report, or fields are missing.
    """
    for key, read in _READERS.items():
        if key in answer:
            try:
                document = read(path.name, answer)
                return replace(document, facts={**document.facts, **environment_facts(answer.get("environment", {}))})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise FileError(f"{path} is incomplete ({error!r}); run the command again") from error
    if "traceEvents" in answer:
        raise FileError(f"{path} is a timeline; open it in https://ui.perfetto.dev")
    if {"format", "segments", "original_macs"} <= answer.keys():
        raise FileError(f"{path} is a design; the index.html beside it explains it, and `bench --design` times it")
    raise FileError(
        f"{path} is not a plan, and not the answer of bench, tune, stretch or sweep latency; a study, the folder of a "
        "training and a package have reports, too"
    )


def _bench(name: str, answer: Answer) -> Document:
    results = answer["results"]
    engines = list(dict.fromkeys(engine for one in results for engine in one["engines"]))
    titles = ["model", "threads", *(f"{engine} ms" for engine in engines), "best other / ours", "max rel. error"]
    rows: list[Sequence[Cell]] = [
        (
            Path(one["model"]).name,
            one["threads"],
            *(one["engines"].get(engine, {}).get("p50_ms") for engine in engines),
            one["speedup"],
            one["max_rel_error"],
        )
        for one in results
    ]
    slower = frozenset(number for number, one in enumerate(results) if (one["speedup"] or 1) < 1)
    text = "Medians of interleaved rounds; above 1 ours is faster. Rows in bold are slower than another engine."
    chart = ratio_panel(answer) if any(one["speedup"] for one in results) else None
    sections = [Section("Latency", text, chart, Table(titles, rows, marked=slower))]
    sections += [_layers(one) for one in results if one.get("layers")]
    figures: dict[str, Cell] = {"models": len({one["model"] for one in results})}
    for summary in answer["summary"]:
        figures[f"× the best other engine, {threads_text(summary['threads'])}"] = summary["geometric_mean"]
    for one in results:
        ours = one["engines"].get("nnstretch", {}).get("p50_ms")
        figures[f"ms, {Path(one['model']).name}, {threads_text(one['threads'])}"] = ours
    facts = {str(key): str(value) for key, value in answer["machine"].items()}
    facts |= {
        engine: str(about["version"])
        for one in results
        for engine, about in one["engines"].items()
        if "version" in about
    }
    return Document(f"Benchmark {name}", "Latency of engines on the same cores, in one run.", figures, sections, facts)


def _tune(name: str, answer: Answer) -> Document:
    figures: dict[str, Cell] = {
        "measured ms": answer["measured_ms"],
        "predicted ms": answer["predicted_ms"],
        "seconds of tuning": answer["tuning_s"],
    }
    sections = []
    if answer.get("comparison"):
        rows: list[Sequence[Cell]] = [
            (row["selector"], row["predicted_ms"], row["seconds"]) for row in answer["comparison"]
        ]
        table = Table(["selector", "predicted ms", "seconds"], rows)
        sections.append(Section("Selectors", "On the same problem.", search_panel(answer["comparison"]), table))
    if answer.get("pareto"):
        sections.append(
            Section("Pareto front", "No assignment is better in every objective.", front_panel(answer["pareto"]))
        )
    rows = [
        (one["name"], one["op"], one["processor"], one["routine"], parameters_text(one["parameters"]), one["cost_ms"])
        for one in answer["layers"]
    ]
    titles = ["layer", "operator", "processor", "routine", "parameters", "ms"]
    sections.append(Section("Layers", "", table=Table(titles, rows, 5)))
    return Document(f"Tuning {name}", f"Selected by {answer['selector']}.", figures, sections)


def _stretch(name: str, answer: Answer) -> Document:
    designs = answer["designs"]
    rows: list[Sequence[Cell]] = [
        (
            one["id"],
            one.get("predicted_ms"),
            one.get("measured_ms"),
            one["macs"] / 1e6,
            one["params"] / 1e6,
            len(one["branches"]),
        )
        for one in designs
    ]
    titles = ["design", "predicted ms", "measured ms", "million multiply-adds", "million weights", "branches"]
    figures: dict[str, Cell] = {
        "designs": len(designs),
        "million multiply-adds of the original": answer["original_macs"] / 1e6,
        "predicted ms of the best design": min((one["predicted_ms"] for one in designs), default=None),
        **{f"ms of the original on {processor}": ms for processor, ms in dict(answer.get("original_ms") or {}).items()},
    }
    text = "Best first. A design that is measured far above its prediction deserves a second run of `bench --design`."
    return Document(
        f"Search {name}",
        "Branched designs of one network.",
        figures,
        [Section("Designs", text, table=Table(titles, rows))],
    )


def _layers(result: Answer) -> Section:
    rows: list[Sequence[Cell]] = [
        (
            *(one["name"], one["op"], one["routine"], parameters_text(one["parameters"])),
            *(one["ms"], one["share"] * 100, one["gflops"]),
        )
        for one in result["layers"]
    ]
    table = Table(["layer", "operator", "routine", "parameters", "ms", "% of the run", "GFLOP/s"], rows, 4)
    return Section(f"Layers of {Path(result['model']).name}", "", skyline_panel(result), table, folded=True)


def _branched(name: str, answer: Answer) -> Document:
    alternative, rows = answer["best_alternative"], answer["rows"]
    titles = ("network", "run", "processors", "MACs", "parameters", "top-1 (%)", "p50 ms", "p90 ms")
    fields = ("network", "how", "processors", "macs", "parameters", "top1", "p50_ms", "p90_ms")
    table = Table(
        titles,
        [[row.get(field) for field in fields] for row in rows],
        texts=3,
        marked=frozenset(number for number, row in enumerate(rows) if row["how"] == "concurrent"),
    )
    fastest = f"{alternative['network']}, {alternative['how']} on {alternative['processors']}"
    figures: dict[str, Cell] = {
        "× as fast as the best alternative": answer["speedup_best_alternative"],
        "× the fastest single processor": answer["speedup"],
        "× the fastest single processor, at equal MACs": answer["speedup_equal_macs"],
        "share of the perfect split": answer["split_share"],
        "branched ms": answer["branched_ms"],
    }
    text = f"Medians of interleaved rounds. The best alternative is the {fastest}."
    return Document(
        f"Branched network {name}",
        "The branched network, the original and the control of equal MACs in all ways to run them.",
        figures,
        [Section("Latency", text, table=table)],
    )


_READERS: Mapping[str, Callable[[str, Answer], Document]] = {
    "summary": _bench,
    "speedup_best_alternative": _branched,
    "tuning_s": _tune,
    "designs": _stretch,
    "targets": targets_document,
    "results": latency_document,
}
"""Field of the answer of one command -> its reader; the first that is found counts. Another command is a function and a row."""


def load_json(path: Path) -> Answer:
    """The object of a JSON file.

    Raises:
        FileError: it cannot be read, or is none.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        if path.suffix == ".html":
            raise FileError(f"{path} is a page already; open it in a browser") from error
        if path.suffix == ".onnx":
            raise FileError(f"{path} is a model; `bench {path} -o report.html` makes a page of it") from error
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise FileError(
            f"cannot read {path}: {reason}; give a study, the folder of a training, a package, a plan or an answer (.json)"
        ) from error
    if not isinstance(found, dict):
        raise FileError(f"{path} holds no JSON object")
    return found
