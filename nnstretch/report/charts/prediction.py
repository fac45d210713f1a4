"""Chart of the predicted run of a design: per processor its branches and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.report.charts.svg import WIDTH, box, hatching, label, legend, picture, vertical_grid, waiting

if TYPE_CHECKING:
    from nnstretch.branching.latency.prediction import BranchPrediction, Prediction, SegmentPrediction

_LEFT = 110
_RIGHT = 16
_TOP = 24
_QUEUE = 40
_GAP = 10
_NARROW = 26  # least width in pixels of a segment with a number


def prediction_svg(prediction: Prediction, names: Sequence[str]) -> str:
    """A chart for a page that defines the colours.

    Args:
        prediction: seconds of every part.
        names: of the processors, in the order of the design's indices.
    """
    scale = (WIDTH - _LEFT - _RIGHT) / prediction.seconds
    bottom = _TOP + len(names) * (_QUEUE + _GAP)
    grid = vertical_grid(_LEFT, 1e-3 * scale, 1e3 * prediction.seconds, _TOP - 4, bottom - _GAP + 4, bottom + 8, " ms")
    parts = [hatching(), *_queues(prediction, names, scale), *grid]
    begin = 0.0
    for number, part in enumerate(prediction.parts):
        title = str(number) if part is not prediction.head else "head"
        parts += _part(part, title, len(names), _LEFT + begin * scale, scale)
        begin += part.seconds
    fills = [f"series-fill-{processor % 4}" for processor in range(len(names))]
    meanings = [
        (fills, "branch, as alone"),
        ([f"{fill} beside" for fill in fills], "slowed down by the others"),
        (["wait"], "waiting, or nothing to do"),
        (["meet"], "meeting point"),
    ]
    parts += legend(_LEFT, bottom + 38, meanings)
    title = f"Predicted run on {', '.join(names)}, {1e3 * prediction.seconds:.3f} milliseconds"
    return picture(WIDTH, bottom + 46, *parts, name=title)


def _queues(prediction: Prediction, names: Sequence[str], scale: float) -> list[str]:
    """Name and background of every processor, with the share of the run in which it computes."""
    parts: list[str] = []
    for processor, name in enumerate(names):
        y = _TOP + processor * (_QUEUE + _GAP)
        own = [b for part in prediction.parts for b in part.branches if b.processor == processor]
        busy = sum(branch.contended for branch in own) / prediction.seconds
        parts.append(label(0, y + 17, name, "strong"))
        parts.append(label(0, y + 33, f"{busy:.0%} busy", "small"))
        parts.append(box(_LEFT, y, prediction.seconds * scale, _QUEUE, "queue"))
    return parts


def _part(part: SegmentPrediction, title: str, queues: int, x: float, scale: float) -> list[str]:
    """One segment or the head: transfer, branches, waits and join."""
    width = part.seconds * scale
    start = x + part.transfer * scale
    end = start + part.computing * scale
    parts = [label(x + width / 2, _TOP - 8, title, "small", "middle")] if width > _NARROW else []
    own = {branch.processor: branch for branch in part.branches}
    for processor in range(queues):
        y = _TOP + processor * (_QUEUE + _GAP)
        if processor in own:
            parts += _branch(part, own[processor], title, start, y, scale)
        else:
            what = f"{title}: this processor has no branch, {1e3 * part.computing:.4g} ms"
            parts.append(waiting(start, y, part.computing * scale, _QUEUE, what))
        tip = f"{title}: meeting point"
        parts += [
            box(left, y, seconds * scale, _QUEUE, "meet", f"{tip}, {1e6 * seconds:.3g} µs")
            for left, seconds in ((x, part.transfer), (end, part.merging))
            if seconds > 0
        ]
    return parts


def _branch(
    part: SegmentPrediction, branch: BranchPrediction, title: str, x: float, y: float, scale: float
) -> list[str]:
    """A branch: its time alone, its additional time by contention, and its wait."""
    alone, beside = branch.alone * scale, branch.contended * scale
    wait = part.waiting(branch)
    tip = (
        f"{title}: {1e3 * branch.alone:.4g} ms alone, {1e3 * branch.contended:.4g} ms beside the others, "
        f"then {1e3 * wait:.4g} ms waiting"
    )
    colour = f"series-fill-{branch.processor % 4}"
    parts = [box(x, y, max(alone - 0.6, 0.3), _QUEUE, colour, tip)]
    if beside > alone:
        parts.append(box(x + alone, y, beside - alone, _QUEUE, f"{colour} beside", tip))
    if wait > 0:
        parts.append(waiting(x + beside, y, wait * scale, _QUEUE, f"{title}: waits {1e3 * wait:.4g} ms"))
    return parts
