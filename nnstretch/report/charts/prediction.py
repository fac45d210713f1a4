"""Chart of the predicted run of a design: per processor its branches and waits."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from nnstretch.report.charts.svg import HATCHED, box, element, hatching, label, line, picture, tick_text, ticks

if TYPE_CHECKING:
    from nnstretch.branching.latency.prediction import BranchPrediction, Prediction, SegmentPrediction

_WIDTH = 960
_LEFT = 110
_RIGHT = 16
_TOP = 24
_QUEUE = 40
_GAP = 10
_GLYPH = 6.2  # pixels of a character in a label
_NARROW = 26  # least width in pixels of a segment with a number


def prediction_svg(prediction: Prediction, names: Sequence[str]) -> str:
    """A chart for a page that defines the colours.

    Args:
        prediction: seconds of every part.
        names: of the processors, in the order of the design's indices.
    """
    scale = (_WIDTH - _LEFT - _RIGHT) / prediction.seconds
    bottom = _TOP + len(names) * (_QUEUE + _GAP)
    parts = [hatching(), *_queues(prediction, names, scale), *_axis(prediction.seconds, scale, bottom)]
    begin = 0.0
    for number, part in enumerate(prediction.parts):
        title = str(number) if part is not prediction.head else "head"
        parts += _part(part, title, len(names), _LEFT + begin * scale, scale)
        begin += part.seconds
    parts += _legend(len(names), bottom + 38)
    title = f"Predicted run on {', '.join(names)}, {1e3 * prediction.seconds:.3f} milliseconds"
    return picture(_WIDTH, bottom + 46, *parts, name=title)


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


def _axis(seconds: float, scale: float, bottom: float) -> list[str]:
    parts: list[str] = []
    for tick in ticks(0, 1e3 * seconds, 8):
        x = _LEFT + 1e-3 * tick * scale
        parts.append(line(x, _TOP - 4, x, bottom - _GAP + 4, "grid"))
        parts.append(label(x, bottom + 8, f"{tick_text(tick)}{' ms' if tick == 0 else ''}", "small", "middle"))
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
            parts.append(_idle(start, y, part.computing * scale, what))
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
    waiting = part.waiting(branch)
    tip = (
        f"{title}: {1e3 * branch.alone:.4g} ms alone, {1e3 * branch.contended:.4g} ms beside the others, "
        f"then {1e3 * waiting:.4g} ms waiting"
    )
    colour = f"series-fill-{branch.processor % 4}"
    parts = [box(x, y, max(alone - 0.6, 0.3), _QUEUE, colour, tip)]
    if beside > alone:
        parts.append(box(x + alone, y, beside - alone, _QUEUE, f"{colour} beside", tip))
    if waiting > 0:
        parts.append(_idle(x + beside, y, waiting * scale, f"{title}: waits {1e3 * waiting:.4g} ms"))
    return parts


def _idle(x: float, y: float, width: float, tip: str) -> str:
    inside = element("title", escape(tip))
    return element("rect", inside, x=x, y=y, width=width, height=_QUEUE, class_="wait", fill=HATCHED)


def _legend(queues: int, y: float) -> list[str]:
    parts: list[str] = []
    x = float(_LEFT)

    def entry(swatches: Sequence[str], text: str) -> None:
        nonlocal x
        parts.extend(swatches)
        x += 13 * (len(swatches) - 1)
        parts.append(label(x + 16, y, text, "small"))
        x += 32 + _GLYPH * len(text)

    fills = [f"series-fill-{processor % 4}" for processor in range(queues)]
    entry([box(x + 13 * i, y - 9, 11, 11, fill, radius=2) for i, fill in enumerate(fills)], "branch, as alone")
    slowed = [box(x + 13 * i, y - 9, 11, 11, f"{fill} beside", radius=2) for i, fill in enumerate(fills)]
    entry(slowed, "slowed down by the others")
    swatch = element("rect", x=x, y=y - 9, width=11, height=11, class_="wait", fill=HATCHED)
    entry([swatch], "waiting, or nothing to do")
    entry([box(x, y - 9, 11, 11, "meet", radius=2)], "meeting point")
    return parts
