"""Answers of `bench --streams`, with and without `--design`, and of `bench --processors`: networks, run in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnstretch.report.charts.bars import Bar, bars_panel
from nnstretch.report.documents.bench import quietness_text
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.support.words import counted

Answer = Mapping[str, Any]
"""The object of an answer. A field that is missing raises KeyError."""


def streams_document(answer: Answer) -> Document:
    """The document of an answer of `bench --streams`."""
    figures: dict[str, Cell] = {
        "× one at a time": answer["over_one_at_a_time"],
        "× ONNX Runtime": answer["over_onnxruntime"],
        "largest relative error": answer["max_rel_error"],
    }
    results, chosen = answer["results"], answer["chosen"]
    fields = ("how", "images_per_s", "predicted_per_s")
    titles = ("how", "images per second", "predicted", "% spread", "MB of weights", "MB of all streams")
    marked = frozenset(number for number, one in enumerate(results) if one["how"] == chosen)
    table = Table(titles, [[*(one.get(field) for field in fields), *_scaled(one)] for one in results], marked=marked)
    bars = [
        _bar(one["how"], one["images_per_s"], one["interval_per_s"], "accent" if one["how"] == chosen else "conv")
        for one in results
    ]
    failed = answer["onnxruntime_error"]
    lead = (
        f"{counted(answer['streams'], 'stream')}, batch {answer['batch']}. Chosen by prediction: {chosen}.",
        f"ONNX Runtime failed: {failed}." if failed else "",
        quietness_text(answer),
    )
    section = Section("Images per second", "Medians of interleaved rounds.", bars_panel(bars, "/s"), table)
    return Document(f"Throughput of {answer['model']}", " ".join(filter(None, lead)), figures, [section])


def design_streams_document(answer: Answer) -> Document:
    """The document of an answer of `bench --design --streams`."""
    results, limit = answer["results"], answer["limit_ms"]
    names = [f"{one['network']}, {one['how']}" for one in results]
    ways = {key: answer[key] for key in ("best_branched", "best_alternative", "predicted_best")}
    named = {key: None if way is None else f"{way['network']}, {way['how']}" for key, way in ways.items()}
    figures: dict[str, Cell] = {
        "× the best alternative": answer["over_best_alternative"],
        "best way with branches": named["best_branched"],
        "best alternative": named["best_alternative"],
        "predicted to be the best": named["predicted_best"],
        "largest relative error": answer["max_rel_error"],
    }
    fields = ["network", "how", "images_per_s", "predicted_per_s", "latency_ms", "predicted_latency_ms"]
    titles = ["network", "how", "images per second", "predicted", "ms of an input", "predicted ms"]
    if limit is not None:
        figures["ms an input may take"] = limit
        fields.append("meets_limit")
        titles.append("meets the limit")
    rows = [[_cell(one.get(field)) for field in fields] for one in results]
    marked = frozenset(number for number, name in enumerate(names) if name == named["best_branched"])
    bars = [
        _bar(name, one["images_per_s"], one["interval_per_s"], "accent" if number in marked else "conv")
        for number, (name, one) in enumerate(zip(names, results, strict=True))
    ]
    table = Table(titles, rows, texts=2, marked=marked, notes=int(limit is not None))
    failed = answer["onnxruntime_error"]
    lead = (
        f"{counted(answer['streams'], 'stream')}, batch {answer['batch']}.",
        "" if limit is None else f"Ways in which an input takes longer than {limit:g} ms do not count.",
        f"ONNX Runtime failed: {failed}." if failed else "",
        quietness_text(answer),
    )
    section = Section("Images per second", "Medians of interleaved rounds.", bars_panel(bars, "/s"), table)
    title = f"Throughput of {answer['model']} with and without branches"
    return Document(title, " ".join(filter(None, lead)), figures, [section])


def _cell(value: Any) -> Cell:
    """A value of an answer as a cell."""
    return ("yes" if value else "no") if isinstance(value, bool) else value


def _scaled(one: Answer) -> list[Cell]:
    """Spread in percent, and megabytes; None where an answer lacks them."""
    scales = {"spread": 1e2, "weight_bytes": 1e-6, "stream_bytes": 1e-6}
    return [None if one.get(field) is None else one[field] * scale for field, scale in scales.items()]


def together_document(answer: Answer) -> Document:
    """The document of an answer of `bench --processors`."""
    figures: dict[str, Cell] = {
        "× the fastest single processor": answer["speedup"],
        "ms on all processors": answer["together"]["p50_ms"],
        "predicted ms": answer["predicted_ms"],
        "ms of the critical path": answer["critical_path_ms"],
        "traced run / its critical path": answer["over_critical_path"],
        "lower bound in ms of any placement of whole layers": answer["bound_ms"],
        "largest relative error": answer["max_rel_error"],
    }
    figures = {name: figure for name, figure in figures.items() if figure is not None}
    runs = {"all at the same time": answer["together"], "all, one after another": answer["serial"]}
    runs |= {f"{name} alone": times for name, times in answer["alone"].items()}
    rows = [
        [name, *(times[field] for field in ("p50_ms", "p90_ms", "min_ms")), 100 * times["spread"]]
        for name, times in runs.items()
    ]
    table = Table(("run", "p50 ms", "p90 ms", "min ms", "% spread"), rows, marked=frozenset({0}))
    bars = [
        _bar(name, times["p50_ms"], times.get("interval_ms"), "accent" if times is answer["together"] else "conv")
        for name, times in runs.items()
    ]
    placed = "Layers are placed on several processors." if answer["placed"] else "One processor computes all layers."
    section = Section("Latency", "Medians of interleaved rounds.", bars_panel(bars, " ms"), table)
    lead = " ".join(filter(None, (placed, quietness_text(answer))))
    return Document(f"{answer['model']} on several processors", lead, figures, [section])


def _bar(name: str, value: float, interval: tuple[float, float] | None, class_: str) -> Bar:
    low, high = interval or (value, value)
    return Bar(name, value, low, high, f"{name}: {value:.4g}", class_)
