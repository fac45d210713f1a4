"""Tables and the JSON answer of `nnstretch stretch`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nnstretch.bench.timing import perfect_split
from nnstretch.report.tables.text import count_text, macs_text, ms_text, plain_table, power_text, share_text, times_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.branching.design.design import Design, SegmentDesign
    from nnstretch.branching.latency.prediction import BlockCost
    from nnstretch.branching.search.report import SearchReport
    from nnstretch.branching.stretch import StretchResult
    from nnstretch.scheduler.costmodel.trees import Spread


def pruning_table(report: SearchReport) -> Table:
    """Number of designs left after every pruning step."""
    shown = plain_table("designs made of", ">left")
    for step in report.pruning:
        shown.add_row(step.step, power_text(step.designs_log10))
    shown.caption = (
        f"{len(report.boundaries)} of {report.cut_points} cut points, {report.family.label} network: "
        f"depth ≥ {report.limits.min_depth:g}, width ≥ {report.limits.min_width:g}, MACs ≥ {report.limits.min_macs:g}; "
        f"{report.transitions} joins of {report.predicted_workloads} predicted layers"
    )
    return shown


def designs_table(
    designs: Sequence[Design],
    names: Sequence[str],
    original_ms: Sequence[float] = (),
    measured: Mapping[str, float] | None = None,
    product_macs: int = 0,
) -> Table:
    """One row per design, and the original on each processor in the caption.

    Args:
        designs: best first.
        names: of the processors.
        original_ms: the original network's predicted latency on each of them; empty if unknown.
        measured: latencies of designs that were run, by id.
        product_macs: of the original, which MACs of designs leave out.
    """
    shown = plain_table(
        ">#",
        "design",
        ">MACs,\nshare",
        ">params",
        ">predicted\nms",
        ">measured\nms",
        ">faster",
        ">of\nsplit",
        ">meets",
    )
    for rank, design in enumerate(designs, 1):
        macs = f"{count_text(design.macs)} {design.macs / design.original_macs:.0%}"
        times = _times(design, original_ms)
        run = ms_text(measured[design.id]) if measured and design.id in measured else "–"
        cells = (times[0], run, *times[1:], str(design.meeting_points))
        shown.add_row(str(rank), design.id, macs, count_text(design.params), *cells)
    if original_ms:
        alone = ", ".join(f"{ms_text(ms)} ms on {name}" for name, ms in zip(names, original_ms, strict=True))
        shown.caption = (
            f"original: {alone}; faster: predicted, than the original on its fastest processor; of split: perfect split at the "
            "design's MACs over predicted latency"
        )
    if said := macs_text(product_macs):
        shown.caption = f"{shown.caption}\n{said}" if shown.caption else said
    return shown


def branches_table(designs: Sequence[Design], names: Sequence[str], report: SearchReport | None = None) -> Table:
    """One row per segment of every design: depth and width of the branch of each processor.

    A segment without branches is whole on its processor, or split layer by layer over several.

    Args:
        designs: best first.
        names: of the processors.
        report: of the search that found them, if any. It says where a network without branches runs.
    """
    whole = _without_branches(designs, names, report) if report is not None else ""
    names = report.places(designs[0], names) if report is not None else names
    shown = plain_table(">#", ">segment", ">blocks", *names, title="depth × width of the branches")
    for rank, design in enumerate(designs, 1):
        for number, segment in enumerate(design.segments):
            last = segment.stop - 1
            blocks = str(last) if segment.first == last else f"{segment.first}–{last}"
            shown.add_row("" if number else str(rank), str(number), blocks, *_branches(segment, len(names)))
        if design.head:
            shown.add_row("", "", "head", *_head(design, len(names)))
    said = [
        f"design {rank} leaves out {dropped}"
        for rank, design in enumerate(designs, 1)
        if (dropped := _left_out(design))
    ]
    left_out = f"{'; '.join(said)} (--min-depth 1 keeps all)" if said else ""
    shown.caption = "\n".join(filter(None, (whole, left_out))) or None
    return shown


def _without_branches(designs: Sequence[Design], names: Sequence[str], report: SearchReport) -> str:
    """A line on the network without branches, if it was returned: where it runs; "" for branched designs."""
    plan, (first, *_) = report.unbranched, designs
    if plan is None or not report.is_unbranched_plan(first):
        return ""
    several = plan.processor is None and not plan.pool and not any(segment.split for segment in first.segments)
    blocks = "; whole blocks are shown, the scheduler also splits layers" if several else ""
    return f"no branches: the original network, {plan.where(names)}{blocks}"


def _left_out(design: Design) -> str:
    """The blocks of branched segments that none of the branches keeps, in words; "" if there are none."""
    dropped = [
        str(block)
        for segment in design.segments
        if segment.branches
        for block in range(segment.first, segment.stop)
        if not any(block in branch.blocks for branch in segment.branches)
    ]
    return f"block{'s' * (len(dropped) > 1)} {', '.join(dropped)}" if dropped else ""


def _times(design: Design, original_ms: Sequence[float]) -> tuple[str, str, str]:
    """Predicted latency, over the original on the fastest processor, and as a share of the perfect split."""
    ms = design.predicted_ms
    if ms is None or not original_ms:
        return "–", "–", "–"
    bound = perfect_split(original_ms) * design.macs / design.original_macs
    return ms_text(ms), times_text(min(original_ms) / ms), share_text(bound / ms)


def _head(design: Design, processors: int) -> list[str]:
    """What each processor computes of a branched head: the number of its parts and their width."""
    cells = ["–"] * processors
    for branch in design.head:
        count = len(branch.towers)
        cells[branch.processor] = f"{counted(count, 'part')} × {branch.width:.2f}"
    return cells


def _branches(segment: SegmentDesign, processors: int) -> list[str]:
    """What each processor computes of a segment."""
    cells = ["split" if processor in segment.split else "–" for processor in range(processors)]
    if segment.split:
        return cells
    for branch in segment.branches:
        size = "whole" if len(segment.branches) == 1 else f"{branch.depth:.2f} × {branch.width:.2f}"
        before = cells[branch.processor]
        cells[branch.processor] = size if before == "–" else f"{before} | {size}"
    return cells


def answer(
    results: Sequence[StretchResult],
    names: Sequence[str],
    files: Sequence[str | None],
    errors: Mapping[str, Spread | None],
) -> dict[str, Any]:
    """What `--json` prints."""
    report = results[0].report
    return {
        "original_macs": results[0].design.original_macs,
        "product_macs": report.product_macs,
        "original_ms": _by_name(names, report.original_ms),
        "family": report.family.label,
        "cut_points": report.cut_points,
        "pruning": [{"step": step.step, "designs_log10": step.designs_log10} for step in report.pruning],
        "lifted_limits": report.lifted or None,
        "recalled": report.recalled,
        "branched_ms": report.branched_ms,
        "alternatives_ms": {where: _finite(ms) for where, ms in report.alternatives(names).items()},
        "unbranched": _unbranched(report, names),
        "faster_unbranched": report.faster_unbranched(results[0].design, names),
        "head_parts": report.head_parts,
        "not_branched": list(report.diagnostics),
        "not_predicted": list(report.unpredicted),
        "blocks": [_block(block, names) for block in report.blocks],
        "front": [{"predicted_ms": point.ms, "macs": point.macs} for point in report.front],
        "designs": [_design(result, names, file) for result, file in zip(results, files, strict=True)],
        "prediction_errors": {name: {"median": e.median, "p90": e.p90} if e else None for name, e in errors.items()},
    }


def _by_name(names: Sequence[str], ms: Sequence[float]) -> dict[str, float | None]:
    """Milliseconds by processor; None where the network cannot run."""
    return {name: _finite(one) for name, one in zip(names, ms, strict=True)}


def _finite(ms: float) -> float | None:
    """Milliseconds; None if infinite."""
    return ms if math.isfinite(ms) else None


def _unbranched(report: SearchReport, names: Sequence[str]) -> dict[str, Any] | None:
    """The fastest plan without branches; None if all are clearly slower than the designs."""
    plan = report.unbranched
    if plan is None:
        return None
    processor = plan.pool or (None if plan.processor is None else names[plan.processor])
    return {"predicted_ms": _finite(plan.ms), "processor": processor, "why_not_branched": report.infeasible or None}


def _block(block: BlockCost, names: Sequence[str]) -> dict[str, Any]:
    return {
        "name": block.name,
        "macs": block.macs,
        "branchable": block.branchable,
        "original_ms": _by_name(names, block.ms),
    }


def _design(result: StretchResult, names: Sequence[str], file: str | None) -> dict[str, Any]:
    design, names = result.design, result.report.places(result.design, names)
    return {
        **design_object(design, names, file),
        "gain_best_alternative": result.report.gain(design),
        "measured_ms": result.report.measured_ms.get(design.id),
        "perfect_split_ms": _finite(perfect_split(result.report.original_ms) * design.macs / design.original_macs),
        "prediction": result.prediction.to_json(names),
    }


def design_object(design: Design, names: Sequence[str], file: str | None) -> dict[str, Any]:
    """What `--json` prints of a design."""
    return {
        "id": design.id,
        "merge": design.merge.value,
        "file": file,
        "macs": design.macs,
        "params": design.params,
        "predicted_ms": design.predicted_ms,
        "meeting_points": design.meeting_points,
        "branches": [
            {
                "segment": number,
                "first": segment.first,
                "stop": segment.stop,
                "processor": names[branch.processor],
                "depth": branch.depth,
                "width": branch.width,
                "macs": branch.macs,
                "predicted_ms": branch.predicted_ms,
                "split": [names[processor] for processor in segment.split],
            }
            for number, segment in enumerate(design.segments)
            for branch in segment.branches
        ],
        "head": [
            {
                "towers": list(branch.towers),
                "processor": names[branch.processor],
                "width": branch.width,
                "macs": branch.macs,
                "predicted_ms": branch.predicted_ms,
            }
            for branch in design.head
        ],
    }
