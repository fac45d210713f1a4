"""The report: one HTML file that needs nothing else, neither network nor scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.report.style import page_style
from nnstretch.report.svg import element
from nnstretch.report.text import count_text
from nnstretch.settings import atomic_write

if TYPE_CHECKING:
    from nnstretch.bench.proof import Proof, ProofRow
    from nnstretch.branching.design import Design
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
        machine: what `nnstretch.bench.machine.describe_machine` says; asked of it if left out.
        title: over everything.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(report_html(proof, histories or {}, design, machine, title).encode())


def report_html(
    proof: Proof,
    histories: Mapping[str, Sequence[EpochRecord]],
    design: Design | None,
    machine: Mapping[str, Any] | None,
    title: str,
) -> str:
    """The report as text."""
    from nnstretch.report.design_picture import design_svg
    from nnstretch.report.plots import latency_svg, training_svg
    from nnstretch.report.timeline_picture import timeline_svg

    sections = [
        _opening(proof, machine or _this_machine(), title),
        _section("All ways to run it", _TABLE_TEXT, _table(proof)),
        _section("Latency", _LATENCY_TEXT, latency_svg(proof)),
        _section("One run, branches at the same time", _TIMELINE_TEXT, timeline_svg(proof.timeline, alone=False)),
        _section("The same steps, one after another", "", timeline_svg(proof.serial_timeline, alone=False)),
    ]
    if design is not None:
        sections.append(_section("The branching", _design_text(design), design_svg(design, proof.processors)))
    if any(histories.values()):
        sections.append(_section("Training", _TRAINING_TEXT, training_svg(histories)))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{page_style()}</style>"
    )
    body = "".join(sections)
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}{_FOOTER}</body></html>\n'


_TABLE_TEXT = (
    "The control is the original network scaled in width to the branched network's multiply-accumulates and not "
    "branched: what the branched network gains over it comes from running branches at the same time, and from nothing "
    "else. The perfect split is the time that the control would take if its work could be divided among the processors "
    "without loss."
)
_LATENCY_TEXT = (
    "Medians of interleaved rounds on one machine; whiskers end at the 90th percentile. "
    "The dashed line is the perfect split."
)
_TIMELINE_TEXT = (
    "A run of median duration. Each lane is a processor, each bar a layer; hatched is time spent waiting at a meeting point. "
    "Rest the pointer on a bar to see its layer, routine and rate."
)
_TRAINING_TEXT = "Loss and top-1 accuracy by epoch."
_FOOTER = (
    "<footer>Made by nnstretch. The timeline is also in <code>timeline.json</code>, which Perfetto opens.</footer>"
)


def _this_machine() -> dict[str, Any]:
    from nnstretch.bench.machine import describe_machine
    from nnstretch.devices.spec import usable_cores

    return describe_machine(usable_cores())


def _opening(proof: Proof, machine: Mapping[str, Any], title: str) -> str:
    figures = (
        (f"{proof.branched_ms:.3g} ms", "branched, concurrent"),
        (f"{proof.speedup:.2f}×", "the fastest single processor"),
        (f"{proof.speedup_equal_macs:.2f}×", "at equal multiply-accumulates"),
        (f"{proof.split_share:.0%}", "of the perfect split"),
        (f"{proof.max_rel_error:.0e}", "largest error against ONNX Runtime"),
    )
    shown = "".join(
        element("div", element("b", escape(value)), element("span", escape(what)), class_="figure")
        for value, what in figures
    )
    lead = (
        f"Measured on {machine['cores']} cores of {machine['cpu']}, each of which reaches "
        f"{machine['peak_gflops_per_core']:.0f} GFLOP/s in float32; branches on {' and '.join(proof.processors)}."
    )
    return f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p><div class="figures">{shown}</div>'


def _section(title: str, text: str, content: str) -> str:
    paragraph = f"<p>{escape(text)}</p>" if text else ""
    return f'<h2>{escape(title)}</h2>{paragraph}<div class="scroll">{content}</div>'


def _table(proof: Proof) -> str:
    titles = ("network", "run", "processors", "MACs", "parameters", "top-1", "p50 ms", "p90 ms")
    heads = "".join(
        element("th", title, class_="number" if number > 2 else None) for number, title in enumerate(titles)
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(map(_row, proof.rows))}</tbody></table>"


def _row(row: ProofRow) -> str:
    times = ("" if row.bound_ms is None else f"{row.bound_ms:.3f}", "")
    if row.latency is not None:
        times = (f"{row.latency.p50_ms:.3f}", f"{row.latency.p90_ms:.3f}")
    texts = (
        row.network,
        row.how,
        row.processors,
        count_text(row.macs),
        count_text(row.parameters),
        "" if row.top1 is None else f"{row.top1:.2f} %",
        *times,
    )
    cells = "".join(
        f'<td class="number">{escape(text)}</td>' if number > 2 else f"<td>{escape(text)}</td>"
        for number, text in enumerate(texts)
    )
    kind = "chosen" if row.how == "concurrent" else "bound" if row.latency is None else None
    return element("tr", cells, class_=kind)


def _design_text(design: Design) -> str:
    return (
        f"Design {design.id}: {count_text(design.macs)} multiply-accumulates, "
        f"{design.macs / design.original_macs:.0%} of the original's; "
        f"{count_text(design.params)} parameters; {design.meeting_points} meeting points (dots). A branch is as long as it has "
        "blocks and as thick as it has width; dashed blocks are left out."
    )
