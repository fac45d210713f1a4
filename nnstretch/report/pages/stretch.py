"""The page of a search for branchings: what was considered, what was left, and why the chosen designs are fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from nnstretch.bench.timing.statistics import perfect_split
from nnstretch.report.charts.design import design_svg
from nnstretch.report.charts.prediction import prediction_svg
from nnstretch.report.charts.stretch import blocks_svg, front_svg, pruning_svg
from nnstretch.report.pages.page import Html, folded, items, opening, page, section, table
from nnstretch.report.tables.text import count_text, ms_text, power_text, share_text, times_text

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design, SegmentDesign
    from nnstretch.branching.latency.prediction import Prediction, SegmentPrediction
    from nnstretch.branching.search.report import SearchReport

_NETWORK = (
    "The network is a chain of blocks. Between any two of them the data is a single tensor, so that branches may meet there: a "
    "cut point. Below, each strip is the whole network on one processor, and a block is as wide as its share of the latency. "
    "Rest the pointer on a block to see its name."
)
_PRUNING = (
    "A design says where branches meet, and for every branch which processor computes it, how many of the blocks it keeps "
    "(depth) and what share of their channels (width). There are far too many to try, so whatever breaks a limit goes before "
    "whole networks are put together. Bars show logarithms."
)
_FRONT = (
    "Each dot is a whole network; none that was found is both as fast and as large. Multiply-accumulates (MACs) stand for what "
    "a network can learn. Rings are the chosen designs with their ranks. The dashed line is the perfect split: what the "
    "original, scaled to as many MACs, would take if its work could be divided among the processors without any loss. Dots are "
    "as predicted during the search, which interpolates between layers; rings are predicted layer by layer."
)
_DESIGNS = (
    "Faster is against the original on the fastest single processor; a design with fewer MACs owes some of that to computing "
    "less. The perfect split takes that out: it is what the original, scaled to the design's MACs, would take if it could be "
    "divided among the processors without loss. All of this is predicted; nnstretch bench --design measures it."
)
_PICTURE = (
    "A branch is as long as it has blocks and as thick as it has width; dashed blocks are left out. Branches of a segment run "
    "at the same time, each on its processor, and their channels are put together where they meet (dots)."
)
_TIMELINE = (
    "The predicted run: every processor's branches, what they are slowed down by each other, and who waits for whom. Numbers "
    "are segments. Rest the pointer on a bar to see its times."
)
_STYLE = "h3{font-size:1rem;font-weight:600;margin:1.6rem 0 .2rem}ul{padding-left:1.2rem}"


@dataclass(frozen=True)
class Found:
    """A design as the page shows it: with what its parts are predicted to take, and the file it was written to."""

    design: Design
    prediction: Prediction
    file: str | None = None


def stretch_html(model: str, names: Sequence[str], report: SearchReport, found: Sequence[Found]) -> str:
    """The page as text.

    Args:
        model: the network's name.
        names: of the processors, in the order of the designs' indices.
        report: how the search went.
        found: the chosen designs, best first.
    """
    title = f"Branchings of {model}"
    designs = [one.design for one in found]
    sections = [
        _opening(title, names, report, found[0].design),
        section("The designs", _DESIGNS, _designs(names, report, found)),
        section("The network and where it can be cut", _NETWORK, blocks_svg(report, names) + _blocks(report, names)),
        section("From all designs to a few", _PRUNING, pruning_svg(report, len(designs)) + _limits(report)),
        section("Latency against capacity", _FRONT, front_svg(report, designs)),
        *(_design(rank, one, names, report) for rank, one in enumerate(found, 1)),
        _unbranched(report),
    ]
    return page(title, sections, Html("Made by nnstretch stretch."), _STYLE)


def _opening(title: str, names: Sequence[str], report: SearchReport, best: Design) -> str:
    fastest = min(report.original_ms)
    where = names[report.original_ms.index(fastest)]
    every = power_text(report.pruning[0].designs_log10)
    lead = (
        f"A branched network gives each of {_listed(names)} a smaller copy of a stretch of the network. The copies run at the "
        f"same time, and their channels meet again. Of {every} such networks the best within the limits are shown here, with "
        "what they are predicted to take and why."
    )
    ms = best.predicted_ms or 0.0
    bound = perfect_split(report.original_ms) * best.macs / best.original_macs
    figures = (
        (f"{ms:.3g} ms", f"predicted, the original {ms_text(fastest)} ms on {where}"),
        (times_text(fastest / ms), "the fastest single processor"),
        (f"{best.macs / best.original_macs:.0%}", "of the original's MACs"),
        (share_text(bound / ms), "of the perfect split"),
        (str(best.meeting_points), "meeting points"),
    )
    return opening(title, lead, figures)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _designs(names: Sequence[str], report: SearchReport, found: Sequence[Found]) -> str:
    fastest = min(report.original_ms)
    titles = ("design", "MACs", "parameters", "predicted ms", "faster", "perfect split ms", "share of it")
    rows: list[tuple[str, ...]] = []
    for rank, one in enumerate(found, 1):
        design, ms = one.design, one.design.predicted_ms or 0.0
        share = design.macs / design.original_macs
        bound = perfect_split(report.original_ms) * share
        rows.append(
            (
                Html(f'<a href="#{design.id}">{rank}. {design.id}</a>'),
                f"{count_text(design.macs)} ({share:.0%})",
                count_text(design.params),
                f"{ms:.3f}",
                times_text(fastest / ms),
                ms_text(bound),
                share_text(bound / ms),
            )
        )
    whole = found[0].design
    for name, ms in zip(names, report.original_ms, strict=True):
        macs, parameters = count_text(whole.original_macs), count_text(whole.original_params)
        rows.append((f"original on {name}", macs, parameters, ms_text(ms), times_text(fastest / ms), "", ""))
    kinds = ["chosen"] + [None] * (len(found) - 1) + ["bound"] * len(names)
    return table(titles, rows, kinds=kinds)


def _blocks(report: SearchReport, names: Sequence[str]) -> str:
    """The table of blocks, folded away."""
    rows = [
        (
            str(number),
            block.name,
            "yes" if block.branchable else "no",
            count_text(block.macs),
            *(ms_text(ms, 4) for ms in block.ms),
        )
        for number, block in enumerate(report.blocks)
    ]
    rows.append(("", "head", "no", "", *(ms_text(ms, 4) for ms in report.head_ms)))
    titles = ("block", "name", "can be branched by itself", "MACs", *(f"{name}, ms" for name in names))
    return folded("All blocks", table(titles, rows, texts=3))


def _limits(report: SearchReport) -> str:
    """The limits that held, in words."""
    limits = report.limits
    rows = [
        (
            "beta",
            f"{limits.beta:g}",
            "A branch takes at most this share of what the segment takes on its fastest processor.",
        ),
        ("alpha", f"{limits.alpha:g}", "A meeting point costs at most this share of the segment before it."),
        ("min-macs", f"{limits.min_macs:g}", "The branches of a segment have at least this share of its MACs."),
        ("min-depth", f"{limits.min_depth or 0:g}", "A branch keeps at least this share of the segment's blocks."),
        ("min-width", f"{limits.min_width or 0:g}", "A branch has at least this share of the segment's width."),
        (
            "max-segment",
            f"{limits.max_segment:g}",
            "A segment of several blocks has at most this share of the network's MACs.",
        ),
    ]
    if limits.target_ms is not None:
        rows.append(
            ("latency-target", f"{limits.target_ms:g} ms", "Of designs that take at most so long, the largest win.")
        )
    text = (
        f"{len(report.boundaries)} of {report.cut_points} cut points were considered. Depth and width are bounded as is usual "
        f"for networks of the family “{report.family.label}”, unless they were given. {report.joined} transitions between "
        f"segments were compared, and {report.predicted_workloads} different layers had their latency predicted."
    )
    shown = table(("limit", "value", "meaning"), [(name, value, text) for name, value, text in rows], texts=3)
    return f"<h3>Limits that held</h3><p>{escape(text)}</p>{shown}"


def _design(rank: int, one: Found, names: Sequence[str], report: SearchReport) -> str:
    design, prediction = one.design, one.prediction
    said = (
        f"{count_text(design.macs)} multiply-accumulates, {design.macs / design.original_macs:.0%} of the original's; "
        f"{count_text(design.params)} parameters; {design.meeting_points} meeting points."
    )
    text = escape(f"{said} {_PICTURE}" if rank == 1 else said)
    if one.file:
        text += f' The design is <a href="{escape(one.file)}">{escape(one.file)}</a>.'
    content = (
        design_svg(design, names)
        + f"<p>{escape(_timeline_text(prediction, rank))}</p>"
        + prediction_svg(prediction, names)
        + folded("All segments", _segments(design, prediction, names, report))
    )
    return section(f"Design {rank}: {design.id}", Html(text), content, anchor=design.id)


def _timeline_text(prediction: Prediction, rank: int) -> str:
    """What a run is made of, in words."""
    total = prediction.seconds
    meeting = sum(part.handing + part.joining for part in prediction.parts)
    branched = [part for part in prediction.segments if len(part.branches) > 1]
    alone = total - meeting - sum(part.computing for part in branched)
    waiting = sum(part.waiting(branch) / len(part.branches) for part in branched for branch in part.branches)
    slowed = sum((b.beside - b.alone) / len(part.branches) for part in branched for b in part.branches)
    said = (
        f"Of {1e3 * total:.3f} ms, meeting points take {1e3 * meeting:.3f} ms and parts that one processor computes by itself "
        f"{1e3 * alone:.3f} ms; in the rest a processor waits {1e3 * waiting:.3f} ms on average, and loses "
        f"{1e3 * slowed:.3f} ms because the others work too."
    )
    return f"{_TIMELINE} {said}" if rank == 1 else said


def _segments(design: Design, prediction: Prediction, names: Sequence[str], report: SearchReport) -> str:
    titles = (
        "segment",
        "blocks",
        "processor",
        "depth",
        "width",
        "channels",
        "MACs",
        "alone ms",
        "beside ms",
        "waits ms",
        "meets ms",
    )
    rows: list[tuple[str, ...]] = []
    for number, (segment, part) in enumerate(zip(design.segments, prediction.segments, strict=True)):
        rows += _segment(str(number), _place(segment, report), segment, part, names)
    head = prediction.head
    (branch,) = head.branches
    alone = f"{1e3 * branch.alone:.4f}"
    rows.append(("head", "", names[branch.processor], *("",) * 4, alone, alone, "", f"{1e3 * head.handing:.4f}"))
    return table(titles, rows, texts=3)


def _place(segment: SegmentDesign, report: SearchReport) -> str:
    first, last = report.blocks[segment.first].name, report.blocks[segment.stop - 1].name
    return first if first == last else f"{first} to {last}"


def _segment(
    number: str, place: str, segment: SegmentDesign, part: SegmentPrediction, names: Sequence[str]
) -> list[tuple[str, ...]]:
    """A row per branch."""
    rows: list[tuple[str, ...]] = []
    for i, (branch, predicted) in enumerate(zip(segment.branches, part.branches, strict=True)):
        rows.append(
            (
                "" if i else number,
                "" if i else place,
                names[branch.processor],
                f"{branch.depth:.2f}",
                f"{branch.width:.2f}",
                str(branch.channels),
                count_text(branch.macs),
                f"{1e3 * predicted.alone:.4f}",
                f"{1e3 * predicted.beside:.4f}",
                f"{1e3 * part.waiting(predicted):.4f}",
                "" if i else f"{1e3 * (part.handing + part.joining):.4f}",
            )
        )
    return rows


def _unbranched(report: SearchReport) -> str:
    text = "Blocks that cannot be branched by themselves stay as they are, or lie within a longer stretch that can."
    if not report.notes:
        text = "Every block with a convolution can be branched by itself."
    if report.unpredicted:
        text += (
            f" No processor has a routine of its own for {', '.join(report.unpredicted)}: ONNX Runtime computes that, in "
            "every design alike, and predictions leave it out."
        )
    return section("What cannot be branched", text, items(report.notes) if report.notes else "")
