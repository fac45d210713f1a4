"""Chart of the workers of a study: a row per worker, a bar per trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.report.charts.svg import WIDTH, Panel, box, hatching, label, legend, vertical_grid, waiting

_LEFT, _ROW, _GAP, _TOP = 150, 26, 10, 20
_HAIR = 0.6
"""Pixels between bars; trials that are closer and shorter are drawn as one."""
_CLASSES = {
    "complete": "conv",
    "pruned": "quiet",
    "fail": "accent",
    "running": "dense",
    "given up": "wait",
}
"""How a trial ended -> the colour of its bar."""
_NAMES = {"fail": "failed"}
_UNITS = ((2 * 86400.0, 86400.0, " d"), (2 * 3600.0, 3600.0, " h"), (120.0, 60.0, " min"), (0.0, 1.0, " s"))


@dataclass
class Span:
    """A trial of a worker, or several one after the other.

    Attributes:
        begin, end: seconds since the study began.
        end_state: how it ended, a key of `_CLASSES`.
        tip: text for the pointer.
        count: number of trials.
    """

    begin: float
    end: float
    end_state: str
    tip: str
    count: int = 1


def workers_panel(rows: Mapping[str, Sequence[Span]]) -> Panel:
    """When each worker did what.

    Args:
        rows: name of a worker -> its trials in order of time; at least one.
    """
    longest = max(span.end for spans in rows.values() for span in spans) or 1.0
    unit, name = next((unit, name) for least, unit, name in _UNITS if longest >= least)
    scale = (WIDTH - _LEFT - 16) / longest
    bottom = _TOP + len(rows) * (_ROW + _GAP)
    parts = [hatching(), *vertical_grid(_LEFT, scale * unit, longest / unit, _TOP - 8, bottom - 2, bottom + 14, name)]
    used: dict[str, None] = {}
    for number, (worker, spans) in enumerate(rows.items()):
        y = _TOP + number * (_ROW + _GAP)
        parts.append(label(_LEFT - 10, y + 17, worker, "small", "end"))
        parts.append(box(_LEFT, y, longest * scale, _ROW, "queue"))
        for span in _merged(spans, scale):
            used[span.end_state] = None
            parts.append(_bar(span, y, scale))
    entries = [([_CLASSES[state]], _NAMES.get(state, state)) for state in _CLASSES if state in used]
    return bottom + 46, [*parts, *legend(_LEFT, bottom + 38, entries)]


def _bar(span: Span, y: float, scale: float) -> str:
    x, width = _LEFT + span.begin * scale, max((span.end - span.begin) * scale - _HAIR, 0.4)
    tip = span.tip if span.count == 1 else f"{span.count} trials"
    if span.end_state == "given up":
        return waiting(x, y, width, _ROW, tip)
    return box(x, y, width, _ROW, _CLASSES[span.end_state], tip)


def _merged(spans: Sequence[Span], scale: float) -> list[Span]:
    """Spans, with those joined that a reader could not distinguish."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if (
            last is not None
            and last.end_state == span.end_state
            and (span.begin - last.end) * scale < _HAIR
            and (span.end - span.begin) * scale < 2 * _HAIR
        ):
            last.end = max(last.end, span.end)
            last.count += 1
        else:
            found.append(Span(span.begin, span.end, span.end_state, span.tip))
    return found
