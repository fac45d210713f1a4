"""Answers of `sweep latency`: how latency and images per second grow with batch, threads and image size, per processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.report.charts.bars import Bar, bars_panel
from nnstretch.report.charts.curves import curve_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.tables.text import threads_text
from nnstretch.support.image_size import as_image_size, size_key, size_text

_AXES = {"batch": "images per run", "threads": "threads", "image_size": "side of the images in pixels"}
"""Setting that may be an axis -> its title."""
_NAMES = ("target", "model", "processors")
"""Settings that are names."""
_SETTINGS = (*_NAMES, *_AXES)
_VALUES = {"p50_ms": ("Latency", "p50 in ms"), "images_per_s": ("Images per second", "images per second")}
"""Value -> how it is called in headings, and on its axis."""
_LINES = 4
"""There are this many colours of lines."""
_TITLES = {"p50_ms": "p50 ms", "p90_ms": "p90 ms", "images_per_s": "images/s"}

Row = Mapping[str, Any]


def latency_document(name: str, answer: Mapping[str, Any]) -> Document:
    """The document of an answer. A field that is missing raises KeyError."""
    rows = [_completed(row) for row in answer["results"]]
    run = [row for row in rows if row["p50_ms"] is not None]
    varied = [setting for setting in _SETTINGS if len({row[setting] for row in rows}) > 1]
    figures: dict[str, Cell] = {
        "combinations": len(rows),
        "combinations that could not be run": len(rows) - len(run),
    }
    for model in dict.fromkeys(row["model"] for row in run):
        of_model = [row for row in run if row["model"] == model]
        figures[f"lowest p50 in ms, {model}"] = min(row["p50_ms"] for row in of_model)
        figures[f"most images per second, {model}"] = max(row["images_per_s"] for row in of_model)
    sections = [section for axis in _AXES if axis in varied for section in _curves(run, axis, varied)]
    if run and not sections:
        sections = [_bars(run, varied)]
    sections.append(Section("All", "Images per second are those at p50.", table=_table(run, varied)))
    if failed := [row for row in rows if row["p50_ms"] is None]:
        reasons = [
            (", ".join(_setting(row, s) for s in dict.fromkeys(["model", *varied])), row["error"]) for row in failed
        ]
        sections.append(Section("Could not be run", table=Table(["combination", "reason"], reasons, 2)))
    lead = "Latency of models by how they are run."
    same = [s for s in ("target", *_AXES) if rows and s not in varied and rows[0][s] is not None]
    if shared := [_setting(rows[0], setting) for setting in same]:
        lead += f" All with {', '.join(shared)}."
    models = list(dict.fromkeys(Path(row["model"]).name for row in rows))
    title = ", ".join([*models[:3], "…"] if len(models) > 3 else models) or name
    return Document(f"Latencies of {title}", lead, figures, sections)


def _completed(row: Row) -> Row:
    """A row with the target, which earlier answers do not have; height and width of images are a tuple."""
    size = row["image_size"]
    return {"target": None, **row, "image_size": None if size is None else as_image_size(size)}


def _curves(rows: Sequence[Row], axis: str, varied: Sequence[str]) -> Iterator[Section]:
    """Charts over a setting: a line per combination of the others, a chart per model and value."""
    rest = [setting for setting in varied if setting not in {"model", axis}]
    for model in dict.fromkeys(row["model"] for row in rows):
        # An axis has sizes of squares only.
        of_model = [row for row in rows if row["model"] == model and isinstance(row[axis], int)]
        if len({row[axis] for row in of_model}) < 2:
            continue
        for value, (heading, title) in _VALUES.items():
            lines: dict[str, list[tuple[float, float]]] = {}
            for row in sorted(of_model, key=lambda row: row[axis]):
                name = ", ".join(_setting(row, setting) for setting in rest) or model
                lines.setdefault(name, []).append((row[axis], row[value]))
            names = list(lines)
            for first in range(0, len(names), _LINES):
                shown = {name: lines[name] for name in names[first : first + _LINES]}
                part = f", part {first // _LINES + 1}" if len(names) > _LINES else ""
                heading_of = f"{heading} by {axis.replace('_', ' ')}: {model}{part}"
                yield Section(heading_of, "", curve_panel(shown, _AXES[axis], title, from_zero=True))


def _bars(rows: Sequence[Row], varied: Sequence[str]) -> Section:
    """A bar per row."""
    bars = [
        Bar(
            ", ".join(str(_setting(row, setting)) for setting in varied) or row["model"],
            row["p50_ms"],
            row["p50_ms"],
            row["p90_ms"],
            f"p50 {row['p50_ms']:.4g} ms, p90 {row['p90_ms']:.4g} ms, {row['images_per_s']:.4g} images per second",
        )
        for row in rows
    ]
    text = "A bar is the median of timed runs; its whisker reaches to the 90th percentile."
    return Section("Latency", text, bars_panel(bars, " ms"))


def _setting(row: Row, setting: str) -> str:
    """A setting of a row in words."""
    value = row[setting]
    if setting in _NAMES:
        return "this machine" if value is None else str(value)
    if setting == "threads":
        return "all threads" if value is None else threads_text(value)
    if setting == "batch":
        return f"batch {value or 1}"
    return "its own image size" if value is None else f"{size_text(value)} pixels"


def _cell(row: Row, setting: str) -> Cell:
    """A setting of a row in a table."""
    value: Cell = size_key(row[setting]) if setting == "image_size" else row[setting]
    return value


def _table(rows: Sequence[Row], varied: Sequence[str]) -> Table:
    settings = [setting for setting in _SETTINGS if setting == "model" or setting in varied]
    titles = [*(setting.replace("_", " ") for setting in settings), *_TITLES.values(), "runs"]
    cells: list[Sequence[Cell]] = [
        (*(_cell(row, name) for name in settings), *(row[name] for name in _TITLES), row["runs"]) for row in rows
    ]
    return Table(titles, cells, sum(name in settings for name in _NAMES))
