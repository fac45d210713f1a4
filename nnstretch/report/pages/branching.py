"""The report of a branching and what it is worth as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.report.pages.page import Html, opening, page, section, table
from nnstretch.report.tables.ablation import branch_cells, prediction_text
from nnstretch.report.tables.text import count_text, interval_text, ms_text
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from nnstretch.bench.ablation.result import Ablation, AblationRow
    from nnstretch.branching.design.design import Design
    from nnstretch.training.checkpoint import EpochRecord


def write_report(
    path: Path,
    ablation: Ablation,
    *,
    histories: Mapping[str, Sequence[EpochRecord]] | None = None,
    design: Design | None = None,
    machine: Mapping[str, Any] | None = None,
    title: str = "A branched network and what it is worth",
) -> None:
    """Writes table, plots, timelines, training curves and the design as one HTML file.

    Args:
        path: the file.
        ablation: the measurements.
        histories: network -> its training, epoch by epoch.
        design: the branching.
        machine: what `nnstretch.bench.timing.machine.describe_machine` says; asked of it if left out.
        title: over everything.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    write_text(path, report_html(ablation, histories or {}, design, machine, title))


def report_html(
    ablation: Ablation,
    histories: Mapping[str, Sequence[EpochRecord]],
    design: Design | None,
    machine: Mapping[str, Any] | None,
    title: str,
) -> str:
    """The report as text."""
    from nnstretch.report.charts.branching import latency_svg, training_svg
    from nnstretch.report.charts.design import design_svg
    from nnstretch.report.charts.timeline import timeline_svg

    sections = [
        _opening(ablation, machine or _this_machine(), title),
        section("All ways to run it", _TABLE_TEXT, _table(ablation)),
        section("Latency", _LATENCY_TEXT, latency_svg(ablation)),
        *_explained(ablation),
        section("One run, branches at the same time", _TIMELINE_TEXT, timeline_svg(ablation.timeline, alone=False)),
        section("The same steps, one after another", "", timeline_svg(ablation.serial_timeline, alone=False)),
    ]
    if design is not None:
        sections.append(section("The branching", _design_text(design), design_svg(design, ablation.processors)))
    if any(histories.values()):
        sections.append(section("Training", _TRAINING_TEXT, training_svg(histories)))
    return page(title, sections, _FOOTER)


_TABLE_TEXT = (
    "The control is the original network scaled in width to the branched network's multiply-accumulates and not "
    "branched: what the branched network gains over it comes from running branches at the same time, and from nothing "
    "else. The perfect split is the time that the control would take if its work could be divided among the processors "
    "without loss."
)
_LATENCY_TEXT = (
    "Medians of interleaved rounds on one machine. Whiskers hold the true median with 95 % confidence, as the same rounds, "
    "drawn again and again, tell. The dashed line is the perfect split."
)
_CAUSES_TEXT = (
    "From the perfect split to what was measured. Traced runs say what every processor did at every moment; its time is shared "
    "out among causes and averaged over the processors, so that the causes add up to the measured latency. How long layers "
    "take alone comes from runs of the same steps one after another."
)
_BRANCHES_TEXT = (
    "What the design predicted for every branch alone on its processor, what the branch took alone (the same steps one after "
    "another), and what it took while the other branches ran."
)
_TIMELINE_TEXT = (
    "A run of median duration. Each queue is a processor, each bar a layer; hatched is time spent waiting at a meeting point. "
    "Rest the pointer on a bar to see its layer, routine and rate."
)
_TRAINING_TEXT = "Loss and top-1 accuracy by epoch."
_FOOTER = Html("Made by nnstretch. A timeline in a file of its own opens in Perfetto.")


def _this_machine() -> dict[str, Any]:
    from nnstretch.bench.timing.machine import describe_machine
    from nnstretch.devices.base.spec import usable_cores

    return describe_machine(usable_cores())


def _opening(ablation: Ablation, machine: Mapping[str, Any], title: str) -> str:
    figures = (
        (f"{ablation.branched_ms:.3g} ms", f"branched, concurrent{_between(ablation, 'branched_ms', '.3g')}"),
        (f"{ablation.speedup:.2f}×", f"the fastest single processor{_between(ablation, 'speedup', '.2f')}"),
        (
            f"{ablation.speedup_equal_macs:.2f}×",
            f"at equal multiply-accumulates{_between(ablation, 'speedup_equal_macs', '.2f')}",
        ),
        (f"{ablation.split_share:.0%}", f"of the perfect split{_between(ablation, 'split_share', '.0%')}"),
        (f"{ablation.max_rel_error:.0e}", "largest error against ONNX Runtime"),
    )
    lead = (
        f"Measured on {machine['cores']} cores of {machine['cpu']}, each of which reaches "
        f"{machine['peak_gflops_per_core']:.0f} GFLOP/s in float32; branches on {' and '.join(ablation.processors)}."
    )
    return opening(title, lead, figures)


def _between(ablation: Ablation, name: str, form: str) -> str:
    """A confidence interval behind a text."""
    found = interval_text(ablation.intervals.get(name), form)
    return f", {found}" if found else ""


def _explained(ablation: Ablation) -> list[str]:
    """Where the time goes, and what was predicted of it."""
    from nnstretch.report.charts.branching import causes_svg

    sections = []
    if ablation.causes:
        sections.append(section("Where the time goes", _CAUSES_TEXT, causes_svg(ablation) + _causes(ablation)))
    if ablation.branches:
        text = f"{_BRANCHES_TEXT} {_sentence(prediction_text(ablation))}".strip()
        sections.append(section("Predicted and measured", text, _branches(ablation)))
    return sections


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _causes(ablation: Ablation) -> str:
    from nnstretch.bench.ablation.breakdown import CAUSES

    rows = [
        (name, CAUSES[name], f"{ms:.3f}", f"{ms / ablation.branched_ms:.1%}") for name, ms in ablation.causes.items()
    ]
    rows.append(("measured", "", f"{ablation.branched_ms:.3f}", "100.0%"))
    kinds = [None] * len(ablation.causes) + ["chosen"]
    return table(("cause", "meaning", "ms", "of it"), rows, texts=2, kinds=kinds)


def _branches(ablation: Ablation) -> str:
    titles = ("segment", "processor", "predicted ms", "alone ms", "error", "beside the others ms")
    return table(titles, [branch_cells(branch) for branch in ablation.branches], texts=2)


def _table(ablation: Ablation) -> str:
    titles = ("network", "run", "processors", "MACs", "parameters", "top-1", "p50 ms", "95 % interval", "p90 ms")
    kinds = ["chosen" if row.how == "concurrent" else "bound" if row.latency is None else None for row in ablation.rows]
    return table(titles, [_row(row) for row in ablation.rows], texts=3, kinds=kinds)


def _row(row: AblationRow) -> tuple[str, ...]:
    p50, p90 = (row.latency.p50_ms, row.latency.p90_ms) if row.latency else (row.bound_ms, None)
    return (
        row.network,
        row.how,
        row.processors,
        count_text(row.macs),
        count_text(row.parameters),
        "" if row.top1 is None else f"{row.top1:.2f} %",
        ms_text(p50),
        interval_text(row.interval_ms, ".3f"),
        "" if p90 is None else ms_text(p90),
    )


def _design_text(design: Design) -> str:
    return (
        f"Design {design.id}: {count_text(design.macs)} multiply-accumulates, "
        f"{design.macs / design.original_macs:.0%} of the original's; "
        f"{count_text(design.params)} parameters; {design.meeting_points} meeting points (dots). A branch is as long as it has "
        "blocks and as thick as it has width; dashed blocks are left out."
    )
