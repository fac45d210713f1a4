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
    from nnstretch.bench.ablation.result import Proof, ProofRow
    from nnstretch.branching.design.design import Design
    from nnstretch.training.checkpoint import EpochRecord


def write_report(
    path: Path,
    proof: Proof,
    *,
    histories: Mapping[str, Sequence[EpochRecord]] | None = None,
    design: Design | None = None,
    machine: Mapping[str, Any] | None = None,
    title: str = "A branched network and what it is worth",
) -> None:
    """Writes table, plots, timelines, training curves and the design as one HTML file.

    Args:
        path: the file.
        proof: the measurements.
        histories: network -> its training, epoch by epoch.
        design: the branching.
        machine: what `nnstretch.bench.timing.machine.describe_machine` says; asked of it if left out.
        title: over everything.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    write_text(path, report_html(proof, histories or {}, design, machine, title))


def report_html(
    proof: Proof,
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
        _opening(proof, machine or _this_machine(), title),
        section("All ways to run it", _TABLE_TEXT, _table(proof)),
        section("Latency", _LATENCY_TEXT, latency_svg(proof)),
        *_explained(proof),
        section("One run, branches at the same time", _TIMELINE_TEXT, timeline_svg(proof.timeline, alone=False)),
        section("The same steps, one after another", "", timeline_svg(proof.serial_timeline, alone=False)),
    ]
    if design is not None:
        sections.append(section("The branching", _design_text(design), design_svg(design, proof.processors)))
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


def _opening(proof: Proof, machine: Mapping[str, Any], title: str) -> str:
    figures = (
        (f"{proof.branched_ms:.3g} ms", f"branched, concurrent{_between(proof, 'branched_ms', '.3g')}"),
        (f"{proof.speedup:.2f}×", f"the fastest single processor{_between(proof, 'speedup', '.2f')}"),
        (
            f"{proof.speedup_equal_macs:.2f}×",
            f"at equal multiply-accumulates{_between(proof, 'speedup_equal_macs', '.2f')}",
        ),
        (f"{proof.split_share:.0%}", f"of the perfect split{_between(proof, 'split_share', '.0%')}"),
        (f"{proof.max_rel_error:.0e}", "largest error against ONNX Runtime"),
    )
    lead = (
        f"Measured on {machine['cores']} cores of {machine['cpu']}, each of which reaches "
        f"{machine['peak_gflops_per_core']:.0f} GFLOP/s in float32; branches on {' and '.join(proof.processors)}."
    )
    return opening(title, lead, figures)


def _between(proof: Proof, name: str, form: str) -> str:
    """A confidence interval behind a text."""
    found = interval_text(proof.intervals.get(name), form)
    return f", {found}" if found else ""


def _explained(proof: Proof) -> list[str]:
    """Where the time goes, and what was predicted of it."""
    from nnstretch.report.charts.branching import causes_svg

    sections = []
    if proof.causes:
        sections.append(section("Where the time goes", _CAUSES_TEXT, causes_svg(proof) + _causes(proof)))
    if proof.branches:
        text = f"{_BRANCHES_TEXT} {_sentence(prediction_text(proof))}".strip()
        sections.append(section("Predicted and measured", text, _branches(proof)))
    return sections


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _causes(proof: Proof) -> str:
    from nnstretch.bench.ablation.breakdown import CAUSES

    rows = [(name, CAUSES[name], f"{ms:.3f}", f"{ms / proof.branched_ms:.1%}") for name, ms in proof.causes.items()]
    rows.append(("measured", "", f"{proof.branched_ms:.3f}", "100.0%"))
    kinds = [None] * len(proof.causes) + ["chosen"]
    return table(("cause", "meaning", "ms", "of it"), rows, texts=2, kinds=kinds)


def _branches(proof: Proof) -> str:
    titles = ("segment", "processor", "predicted ms", "alone ms", "error", "beside the others ms")
    return table(titles, [branch_cells(branch) for branch in proof.branches], texts=2)


def _table(proof: Proof) -> str:
    titles = ("network", "run", "processors", "MACs", "parameters", "top-1", "p50 ms", "95 % interval", "p90 ms")
    kinds = ["chosen" if row.how == "concurrent" else "bound" if row.latency is None else None for row in proof.rows]
    return table(titles, [_row(row) for row in proof.rows], texts=3, kinds=kinds)


def _row(row: ProofRow) -> tuple[str, ...]:
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
