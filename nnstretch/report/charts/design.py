"""Chart of a design: segments from left to right, branches one above the other.

A branch is as long as its number of blocks and as thick as its width; dropped blocks are dashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.report.charts.svg import box, element, label, line, picture
from nnstretch.report.tables.text import count_text

if TYPE_CHECKING:
    from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign

_WIDTH = 960
_ENDS = 46
_MIDDLE = 30  # between one segment and the next
_THICK = 58  # of a branch of full width
_BRANCH = 96  # from one branch to the next
_TOP = 40


def design_svg(design: Design, processors: Sequence[str] = ()) -> str:
    """A chart of a branched network for a page that defines the colours.

    Args:
        design: the network.
        processors: their names, in the order of the design's indices.
    """
    free = _WIDTH - 2 * _ENDS - _MIDDLE * (len(design.segments) + 1)
    unit = free / design.segments[-1].stop
    queues = max(len(segment.branches) for segment in design.segments)
    bottom = _TOP + queues * _BRANCH
    middle = _TOP + queues * _BRANCH / 2 - _BRANCH / 2 + _THICK / 2
    parts = [_end(0, middle, "input"), _end(_WIDTH - _ENDS, middle, "head")]
    x = made = float(_ENDS)  # where a segment begins, and where what it reads is whole
    for number, segment in enumerate(design.segments):
        x += _MIDDLE
        parts += _segment(number, segment, made, x, unit, middle)
        x += (segment.stop - segment.first) * unit
        made = x + _MIDDLE / 2 if len(segment.branches) > 1 else x
    parts.append(line(made, middle, _WIDTH - _ENDS, middle, "flow"))
    parts += _processors(design, processors, bottom + 10)
    return picture(_WIDTH, bottom + 22, *parts, name=f"Branching {design.id}")


def _end(x: float, middle: float, name: str) -> str:
    return box(x, middle - 14, _ENDS, 28, "queue", radius=3) + label(x + _ENDS / 2, middle + 4, name, "small", "middle")


def _segment(number: int, segment: SegmentDesign, source: float, x: float, unit: float, middle: float) -> list[str]:
    """The branches of one segment, the lines that lead to them from `source`, and its name."""
    count, width = len(segment.branches), (segment.stop - segment.first) * unit
    parts = [label(x + width / 2, 16, f"segment {number}", "strong", "middle")]
    for place, branch in enumerate(segment.branches):
        y = middle + (place - (count - 1) / 2) * _BRANCH
        parts += [_curve(source, middle, x, y), *_branch(segment, branch, x, y, unit)]
        if count > 1:
            parts.append(_curve(x + width, y, x + width + _MIDDLE / 2, middle))
    if count > 1:
        parts.append(element("circle", cx=x + width + _MIDDLE / 2, cy=middle, r=4, class_="meet"))
    return parts


def _branch(segment: SegmentDesign, branch: BranchDesign, x: float, y: float, unit: float) -> list[str]:
    thick = max(6.0, _THICK * branch.width)
    parts: list[str] = []
    predicted = "" if branch.predicted_ms is None else f"\npredicted {branch.predicted_ms:.3f} ms"
    tip = f"depth {branch.depth:.2f}, width {branch.width:.2f}, {count_text(branch.macs)} MACs{predicted}"
    total = segment.stop - segment.first
    for place in range(total):
        kept = segment.first + place in branch.blocks
        colour = f"series-fill-{branch.processor % 4}" if kept else "dropped"
        parts.append(box(x + place * unit + 1.5, y - thick / 2, unit - 3, thick, colour, tip, radius=2))
    text = f"{branch.channels} ch, {count_text(branch.macs)}"
    parts.append(label(x + total * unit / 2, y + _THICK / 2 + 16, text, "small", "middle"))
    return parts


def _curve(x0: float, y0: float, x1: float, y1: float) -> str:
    half = (x0 + x1) / 2
    path = f"M{x0:.1f},{y0:.1f} C{half:.1f},{y0:.1f} {half:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
    return element("path", d=path, class_="flow")


def _processors(design: Design, processors: Sequence[str], y: float) -> list[str]:
    parts: list[str] = []
    x = float(_ENDS + _MIDDLE)
    for index in design.processors:
        name = processors[index] if index < len(processors) else f"processor {index}"
        parts += [box(x, y - 9, 11, 11, f"series-fill-{index % 4}", radius=2), label(x + 16, y, name, "small")]
        x += 40 + 6.4 * len(name)
    return parts
