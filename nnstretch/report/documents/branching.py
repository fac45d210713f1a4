"""Answers of `bench --design`: a branched network beside its alternatives, timelines, the design and its training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nnstretch.bench.ablation.breakdown import CAUSES
from nnstretch.bench.ablation.result import CONCURRENT, SERIAL, Ablation
from nnstretch.branching.design.design import Design
from nnstretch.report.charts.branching import causes_panel, design_panel, latency_panel, training_panel
from nnstretch.report.charts.timeline import timeline_panel
from nnstretch.report.documents.bench import machine_text, quietness_text
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import facts_of
from nnstretch.report.tables.ablation import (
    NUMBERS_OF_SEGMENTS,
    alternative_text,
    prediction_text,
    when_branching_pays,
    where_text,
)
from nnstretch.report.tables.text import count_text, interval_text, sentence

_ROWS = (
    "The equal-MACs control is the original network, scaled in width to the multiply-accumulates of the branched network and "
    "not branched. Original and control run on each processor alone{others}split (the scheduler places their "
    "layers on the branches' processors and divides large ones){engine}. The branched network's gain over the "
    "control comes from running branches at the same time, and from layers of other shapes. The perfect (ideal) split, "
    "1/Σ(1/tᵢ) over the control's times tᵢ, is the time of the control if its work were divided among the processors without "
    "loss."
)
_BOUND = "The dashed line is the perfect split."
_LATENCY = (
    "Medians of interleaved rounds on one machine. Whiskers are 95 % confidence intervals of the median, by resampling the "
    f"rounds. {_BOUND}"
)
_SIMULATED = (
    "Nothing was run: the plans that the scheduler makes for these processors run in simulated time. Every step takes what the "
    "profile says of its layer, and every tensor that another processor reads the profile's time of a transfer."
)
_CAUSES = (
    "From the perfect split to the {origin} latency. {traced} what every processor does at every moment. Its time is "
    "divided among the causes and averaged over the processors, so the causes add up to the {origin} latency. The time of a "
    "layer alone comes from runs of the same steps one after another."
)
_BRANCHES = (
    "Per branch: the latency that the design predicts for the branch alone on its processor, the {origin} latency alone (the "
    "same steps one after another), and the {origin} latency while the other branches run."
)
_TIMELINE = (
    "{run}Each row is a processor, each bar a layer; hatched bars are waits at a meeting point. A bar's "
    "tooltip shows layer, routine and rate."
)
_SPLIT = " The layers of a segment marked split are divided among the processors."
_MILLION = 1e6


def branching_document(answer: Mapping[str, Any]) -> Document:
    """The document of an answer.

    Args:
        answer: the object that `bench --design FILE --json` prints (`nnstretch.bench.ablation.answer`).

    Raises:
        KeyError, TypeError, ValueError: fields are missing.
        DesignError: its design is damaged.
    """
    found = Ablation.from_json(answer)
    figures: dict[str, Cell] = {
        "× as fast as the best alternative": answer["speedup_best_alternative"],
        "× the fastest single processor": answer["speedup"],
        "× the fastest single processor, at equal MACs": answer["speedup_equal_macs"],
        "share of the perfect split": answer["split_share"],
        "branched ms": answer["branched_ms"],
    }
    about = answer["machine"] if found.simulated is None else answer["simulated"]
    facts = facts_of(about)
    return Document(
        f"{answer['model']}, branched" if answer["unbranched"] is None else f"{answer['model']}, not branched",
        _lead(answer, found),
        figures,
        list(_sections(answer, found)),
        facts,
        headline=_headline(answer, found),
    )


def _lead(answer: Mapping[str, Any], found: Ablation) -> str:
    why = answer["unbranched"]
    below = f"What is called branched below is the original network, {where_text(found)}."
    not_branched = "" if why is None else f"The network was not branched: {why}. {below}"
    placed = "Branches run on" if why is None else "The processors are"
    processors = f"{placed} {' and '.join(found.processors)}."
    best = f"The best alternative is {alternative_text(found)}."
    where = (
        machine_text(answer["machine"]) if found.simulated is None else f"{sentence(str(found.simulated))} {_SIMULATED}"
    )
    said = (not_branched, where, processors, best, when_branching_pays(found))
    return " ".join(filter(None, (*said, quietness_text(answer))))


def _headline(answer: Mapping[str, Any], found: Ablation) -> list[tuple[str, str]]:
    """The ratios that the command printed: those of the rounded latencies in `found` may differ in the last digit."""

    def with_interval(meaning: str, field: str, form: str) -> str:
        ends = interval_text(found.intervals.get(field), form)
        return f"{meaning}, {ends}" if ends else meaning

    row, error = found.branched_row, found.max_rel_error
    what = f"branched, {row.how}" if row.how == CONCURRENT else f"not branched, {where_text(found)}"
    return [
        (
            f"{answer['speedup_best_alternative']:.2f}×",
            with_interval("as fast as the best alternative", "speedup_best_alternative", ".2f"),
        ),
        (f"{found.branched_ms:.3g} ms", with_interval(what, "branched_ms", ".3g")),
        (f"{answer['speedup']:.2f}×", with_interval("the fastest single processor", "speedup", ".2f")),
        (f"{answer['speedup_equal_macs']:.2f}×", with_interval("at equal MACs", "speedup_equal_macs", ".2f")),
        (f"{answer['split_share']:.0%}", with_interval("of the perfect split", "split_share", ".0%")),
        *([] if error is None else [(f"{error:.0e}", "largest error against ONNX Runtime")]),
    ]


def _sections(answer: Mapping[str, Any], found: Ablation) -> Iterator[Section]:
    measured, origin = found.simulated is None, found.origin
    ways = (", on all CPU cores, ", ", and by ONNX Runtime") if measured else (", and ", "")
    yield Section("All ways to run it", _ROWS.format(others=ways[0], engine=ways[1]), table=_rows(found))
    yield Section("Latency", _LATENCY if measured else _BOUND, latency_panel(found))
    if found.causes:
        traced = "Traced runs show" if measured else "The simulation says"
        text = _CAUSES.format(origin=origin, traced=traced)
        yield Section("Where the time goes", text, causes_panel(found), _causes(found))
    if found.branches:
        lines = filter(None, (NUMBERS_OF_SEGMENTS, prediction_text(found)))
        text = " ".join([_BRANCHES.format(origin=origin), *map(sentence, lines)])
        yield Section(f"Predicted and {origin}", text, table=_branches(found))
    together = ", branches at the same time" if found.branched_row.how == CONCURRENT else ""
    timeline = _TIMELINE.format(run="A run of median duration. " if measured else "")
    yield Section(f"One run{together}", timeline, timeline_panel(found.timeline))
    if any(row.how == SERIAL for row in found.rows):
        yield Section("The same steps, one after another", panel=timeline_panel(found.serial_timeline))
    yield _design(Design.from_json(json.dumps(answer["design"])), found)
    if any(answer["histories"].values()):
        measure = found.measure.name
        yield Section("Training", f"Loss and {measure} by epoch.", training_panel(answer["histories"], measure))


def _rows(found: Ablation) -> Table:
    """All rows; scores if any is known, and statistics if anything was measured."""
    measured = found.simulated is None
    scored = any(row.score is not None for row in found.rows)
    rows: list[list[Cell]] = []
    for row in found.rows:
        counts = (row.macs / _MILLION, row.parameters / _MILLION)
        score = [row.score] if scored else []
        statistics = (
            [row.latency.p90_ms if row.latency else None, *(row.interval_ms or (None, None))] if measured else []
        )
        rows.append([row.network, row.how, row.processors, *counts, *score, row.p50_ms, *statistics])
    marked = frozenset(number for number, row in enumerate(found.rows) if row.is_branched)
    score_title = [f"{found.measure.name} (%)"] if scored else []
    counted = ("network", "run", "processors", "million MACs", "million parameters", *score_title)
    times = ("p50 ms", "p90 ms", "95 % from", "to ms") if measured else ("ms",)
    return Table((*counted, *times), rows, 3, marked)


def _causes(found: Ablation) -> Table:
    rows: list[list[Cell]] = [
        [cause, CAUSES[cause], ms, 100 * ms / found.branched_ms] for cause, ms in found.causes.items()
    ]
    rows.append([found.origin, "", found.branched_ms, 100.0])
    return Table(("cause", "meaning", "ms", "% of all"), rows, 2, frozenset({len(found.causes)}))


def _branches(found: Ablation) -> Table:
    rows: list[list[Cell]] = []
    for branch in found.branches:
        time, error = branch.time, branch.error
        percent = None if error is None else 100 * error
        rows.append([str(time.segment), time.processor, branch.predicted_ms, time.alone_ms, percent, time.beside_ms])
    return Table(("segment", "processor", "predicted ms", "alone ms", "error in %", "concurrent ms"), rows, 2)


def _design(design: Design, found: Ablation) -> Section:
    processors = (found.branched_row.processors,) if design.pool else found.processors
    text = (
        f"Design {design.id}: {count_text(design.macs)} multiply-accumulates, {design.macs / design.original_macs:.0%} of the "
        f"original's; {count_text(design.params)} parameters; {design.meeting_points} meeting points (dots). A branch is as "
        "long as it has blocks and as thick as it has width; dashed blocks are left out."
    ) + (_SPLIT if any(segment.split for segment in design.segments) else "")
    return Section("The branching" if design.meeting_points else "The network", text, design_panel(design, processors))
