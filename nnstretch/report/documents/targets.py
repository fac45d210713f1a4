"""Answers of `bench --target`: what each device is, and how fast models run there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnstretch.report.charts.targets import latencies_panel, sustained_panels
from nnstretch.report.documents.document import Cell, Document, Section, Table

_TITLES = (
    "model",
    "processors",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "first run ms",
    "MiB",
    "GHz",
    "°C",
    "energy J",
    "rel. error",
)
_MIB = 1 << 20


def targets_document(name: str, answer: Mapping[str, Any]) -> Document:
    """The document of an answer. A field that is missing raises KeyError."""
    figures: dict[str, Cell] = {}
    sections: list[Section] = []
    for run in answer["targets"]:
        target = run["target"]
        if "error" in run:
            sections.append(Section(target, f"It was not measured: {run['error']}."))
            continue
        if "speedup_best_alternative" in run:
            figures[f"× as fast as {run['best_alternative']}, branched on {target}"] = run["speedup_best_alternative"]
        for one in run["results"]:
            if one.get("p50_ms"):
                figures[f"p50 in ms, {one['model']} on {target}"] = one["p50_ms"]
        sections += _sections(target, run)
    return Document(f"Devices {name}", "Models measured by a runner on each device.", figures, sections)


def _sections(target: str, run: Mapping[str, Any]) -> list[Section]:
    from nnstretch.bench.targets.measure import Measured, TargetRun
    from nnstretch.bench.targets.models import TargetModel
    from nnstretch.devices.targets.probe import Probe
    from nnstretch.devices.targets.results import ModelResult
    from nnstretch.report.tables.targets import device_facts, few_runs_text

    measured = [
        Measured(
            TargetModel(one["model"], Path()), ModelResult.from_json({"file": "", **one}), one.get("max_rel_error"), {}
        )
        for one in run["results"]
    ]
    timed = [one for one in measured if one.result.p50_ms]
    sections = []
    if run.get("device") is not None:
        card = list(device_facts(Probe.from_json(run["device"])))
        sections.append(Section(f"Device {target}", table=Table(["", target], card, 2)))
    text = "A bar is the median; its whisker reaches from the fastest run to the 90th percentile."
    if few := few_runs_text(TargetRun(target, measured)):
        text += f" {few}."
    if run.get("stopped"):
        text += f" The measurement ended early: {run['stopped']}."
    chart = latencies_panel(timed, branched="speedup_best_alternative" in run) if timed else None
    rows = [_row(one) for one in measured if one.result.error is None]
    sections.append(Section(f"Latency on {target}", text, chart, Table(_TITLES, rows, 2)))
    if failed := [(one.model.name, one.result.error) for one in measured if one.result.error is not None]:
        sections.append(Section(f"Failed on {target}", table=Table(["model", "reason"], failed, 2)))
    sustained = [one for one in measured if one.result.sustained]
    for number, panel in enumerate(sustained_panels(sustained), start=1):
        part = f", part {number}" if number > 1 else ""
        sections.append(Section(f"Sustained runs on {target}{part}", "", panel))
    return sections


def _row(one: Any) -> Sequence[Cell]:
    from nnstretch.bench.targets.timelines import queue_names

    result = one.result
    return [
        one.model.name,
        ", ".join(queue_names(result)),
        *(result.p50_ms, result.p90_ms, result.p99_ms, result.first_ms),
        None if result.peak_memory_bytes is None else result.peak_memory_bytes / _MIB,
        None if result.highest_khz is None else result.highest_khz / 1e6,
        *(result.hottest_c, result.energy_j, one.error),
    ]
