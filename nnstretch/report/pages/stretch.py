"""The page of a search for branchings: the search space, what was pruned, and why the chosen designs are fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from nnstretch.bench.timing import perfect_split
from nnstretch.report.charts.branching import design_panel
from nnstretch.report.charts.prediction import prediction_svg
from nnstretch.report.charts.stretch import blocks_svg, front_svg, pruning_svg
from nnstretch.report.charts.svg import panel_picture
from nnstretch.report.pages import render
from nnstretch.report.tables.text import count_text, macs_text, ms_text, share_text, times_text

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design, SegmentDesign
    from nnstretch.branching.latency.prediction import Prediction, SegmentPrediction
    from nnstretch.branching.search.report import SearchReport


@dataclass(frozen=True)
class PredictedDesign:
    """A design with its predicted latencies and the file that holds it, if it was written."""

    design: Design
    prediction: Prediction
    file: str | None = None


def stretch_html(model: str, names: Sequence[str], report: SearchReport, designs: Sequence[PredictedDesign]) -> str:
    """The page as text.

    Args:
        model: the network's name.
        names: the processors, in the order of the designs' indices.
        report: the account of the search.
        designs: the chosen designs, best first.
    """
    charts = {
        "blocks": blocks_svg(report, names),
        "pruning": pruning_svg(report, len(designs)),
        "front": front_svg(report, [one.design for one in designs]),
    }
    return render(
        "stretch.html",
        title=f"Branchings of {model}",
        figures=_figures(names, report, designs[0].design),
        names=names,
        report=report,
        counted=macs_text(report.product_macs),
        not_branched=report.unbranched_note(names),
        designs=_designs(names, report, designs),
        blocks=_blocks(report, names),
        limits=_limits(report),
        shown=[_shown(one, names, report) for one in designs],
        charts=charts,
    )


def _figures(names: Sequence[str], report: SearchReport, best: Design) -> list[tuple[str, str]]:
    fastest = min(report.original_ms)
    where = names[report.original_ms.index(fastest)]
    ms = best.predicted_ms or 0.0
    bound = perfect_split(report.original_ms) * best.macs / best.original_macs
    gain = report.gain(best)
    over_best = [] if gain is None else [(times_text(gain), "predicted, over the best alternative without branches")]
    return [
        *over_best,
        (f"{ms:.3g} ms", f"predicted, the original {ms_text(fastest)} ms on {where}"),
        (times_text(fastest / ms), "the fastest single processor"),
        (f"{best.macs / best.original_macs:.0%}", "of the original's MACs"),
        (share_text(bound / ms), "of the perfect split"),
        (str(best.meeting_points), "meeting points"),
    ]


def _designs(names: Sequence[str], report: SearchReport, designs: Sequence[PredictedDesign]) -> dict[str, Any]:
    fastest = min(report.original_ms)
    ran = any(one.design.id in report.measured_ms for one in designs)
    rows: list[tuple[str, ...]] = []
    for rank, one in enumerate(designs, 1):
        design, ms = one.design, one.design.predicted_ms or 0.0
        share = design.macs / design.original_macs
        bound = perfect_split(report.original_ms) * share
        rows.append(
            (
                Markup('<a href="#{0}">{1}. {0}</a>').format(design.id, rank),
                f"{count_text(design.macs)} ({share:.0%})",
                count_text(design.params),
                f"{ms:.3f}",
                *([ms_text(report.measured_ms.get(design.id))] if ran else []),
                times_text(fastest / ms),
                ms_text(bound),
                share_text(bound / ms),
            )
        )
    whole = designs[0].design
    for name, ms in zip(names, report.original_ms, strict=True):
        macs, parameters = count_text(whole.original_macs), count_text(whole.original_params)
        measured = ["–"] if ran else []
        rows.append((f"original on {name}", macs, parameters, ms_text(ms), *measured, times_text(fastest / ms), "", ""))
    titles = ["design", "MACs", "parameters", "predicted ms", *(["measured ms"] if ran else [])]
    return {
        "titles": [*titles, "faster", "perfect split ms", "share of it"],
        "rows": rows,
        "kinds": ["chosen"] + [None] * (len(designs) - 1) + ["bound"] * len(names),
        "ran": ran,
    }


def _blocks(report: SearchReport, names: Sequence[str]) -> dict[str, Any]:
    rows: list[tuple[str, ...]] = [
        (
            str(number),
            block.name,
            "yes" if block.branchable else "no",
            count_text(block.macs),
            *(ms_text(ms, 4) for ms in block.ms),
        )
        for number, block in enumerate(report.blocks)
    ]
    head = f"in {report.head_parts} parts" if report.head_parts else "no"
    rows.append(("", "head", head, "", *(ms_text(ms, 4) for ms in report.head_ms)))
    return {"titles": ("block", "name", "can be branched alone", "MACs", *(f"{n}, ms" for n in names)), "rows": rows}


_MEANINGS = {
    "beta": "A branch takes at most this share of the segment's time on its fastest processor.",
    "alpha": "A meeting point costs at most this share of the segment before it.",
    "min-macs": "The branches of a segment have at least this share of its MACs.",
    "min-depth": "A branch keeps at least this share of the segment's blocks.",
    "min-width": "A branch has at least this share of the segment's width.",
    "max-segment": "A segment of several blocks has at most this share of the network's MACs.",
}


def _limits(report: SearchReport) -> list[tuple[str, str, str]]:
    limits = report.limits
    values = {name: getattr(limits, name.replace("-", "_")) or 0.0 for name in _MEANINGS}
    rows = [(n, f"{values[n]:g}" if values[n] < math.inf else "none", meaning) for n, meaning in _MEANINGS.items()]
    if limits.target_ms is not None:
        text = "Of the designs within this latency, the one with the most MACs wins."
        rows.append(("latency-target", f"{limits.target_ms:g} ms", text))
    return rows


def _shown(one: PredictedDesign, names: Sequence[str], report: SearchReport) -> dict[str, Any]:
    """What the page shows of one design."""
    names = report.places(one.design, names)
    return {
        "design": one.design,
        "file": one.file,
        "chart": panel_picture(design_panel(one.design, names), f"Branching {one.design.id}"),
        "run": prediction_svg(one.prediction, names),
        "timeline": _timeline_text(one.prediction),
        **_segments(one.design, one.prediction, names, report),
    }


def _timeline_text(prediction: Prediction) -> str:
    """The parts of a predicted run, in one sentence."""
    total = prediction.seconds
    meeting = sum(part.transfer + part.merging for part in prediction.parts)
    branched = [part for part in prediction.parts if len(part.branches) > 1]
    alone = total - meeting - sum(part.computing for part in branched)
    waiting = sum(part.waiting(branch) / len(part.branches) for part in branched for branch in part.branches)
    slowed = sum((b.contended - b.alone) / len(part.branches) for part in branched for b in part.branches)
    loses = f"loses {1e3 * slowed:.3f} ms to contention" if slowed >= 0 else "is not slowed down by contention"
    return (
        f"Of {1e3 * total:.3f} ms, meeting points take {1e3 * meeting:.3f} ms and segments on one processor, or split, "
        f"{1e3 * alone:.3f} ms; in the rest a processor waits {1e3 * waiting:.3f} ms on average, and {loses}."
    )


def _segments(design: Design, prediction: Prediction, names: Sequence[str], report: SearchReport) -> dict[str, Any]:
    rows: list[tuple[str, ...]] = []
    for number, (segment, part) in enumerate(zip(design.segments, prediction.segments, strict=True)):
        first, last = report.blocks[segment.first].name, report.blocks[segment.stop - 1].name
        rows += _branches(str(number), first if first == last else f"{first} to {last}", segment, part, names)
    rows += _head(design, prediction.head, names)
    titles = "segment, blocks, processor, depth, width, channels, MACs, alone ms, concurrent ms, waits ms, meets ms"
    return {"titles": titles.split(", "), "rows": rows}


def _head(design: Design, part: SegmentPrediction, names: Sequence[str]) -> list[tuple[str, ...]]:
    """A row per branch of the head; one if it is whole."""
    rows: list[tuple[str, ...]] = []
    for i, predicted in enumerate(part.branches):
        branch = design.head[i] if design.head else None
        parts = "" if branch is None else f"parts {', '.join(map(str, branch.towers))}"
        sizes = ("",) * 4 if branch is None else ("", f"{branch.width:.2f}", "", count_text(branch.macs))
        times = f"{1e3 * predicted.alone:.4f}", f"{1e3 * predicted.contended:.4f}"
        waits = "" if branch is None else f"{1e3 * part.waiting(predicted):.4f}"
        meets = "" if i else f"{1e3 * (part.transfer + part.merging):.4f}"
        where = _where(predicted.processor, part.split, names)
        rows.append(("" if i else "head", parts, where, *sizes, *times, waits, meets))
    return rows


def _where(processor: int, split: Sequence[int], names: Sequence[str]) -> str:
    """The processor of a branch, or those over which its layers are split."""
    return f"split: {', '.join(names[one] for one in split)}" if split else names[processor]


def _branches(
    number: str, place: str, segment: SegmentDesign, part: SegmentPrediction, names: Sequence[str]
) -> list[tuple[str, ...]]:
    """A row per branch; the segment's number, place and meeting cost stand in the first."""
    return [
        (
            "" if i else number,
            "" if i else place,
            _where(branch.processor, part.split, names),
            f"{branch.depth:.2f}",
            f"{branch.width:.2f}",
            str(branch.channels),
            count_text(branch.macs),
            f"{1e3 * predicted.alone:.4f}",
            f"{1e3 * predicted.contended:.4f}",
            f"{1e3 * part.waiting(predicted):.4f}",
            "" if i else f"{1e3 * (part.transfer + part.merging):.4f}",
        )
        for i, (branch, predicted) in enumerate(zip(segment.branches, part.branches, strict=True))
    ]
