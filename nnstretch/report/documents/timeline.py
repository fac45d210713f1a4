"""A traced run: the timeline, where the time of each processor went, and every step."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.report.charts.timeline import timeline_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.tables.runs import path_lines
from nnstretch.report.tables.text import operator_text, sentence
from nnstretch.scheduler.runtime.critical_path import RunSummary
from nnstretch.scheduler.runtime.timeline import Event, Timeline

_MILLION = 1e6  # nanoseconds of a millisecond, and the unit of MACs
_CHART = "A row per processor, time to the right. A bar is a step, hatched places are waits; a bar's tooltip shows its layer."
_QUEUES = (
    "Busy: in steps. Waiting: for a tensor of another processor. Idle: the rest, such as before the first step and after the "
    "last one."
)
_WAITS = (
    "Of one processor for another, the longest first. The transfer is the part after the awaited step had ended: copies, and "
    "the time until the waiting processor noticed."
)
_MOST_WAITS = 20
_STEPS = "In the order in which they began. GFLOP/s are of multiply-adds, two operations each."


def timeline_document(model: str, timeline: Timeline, summary: RunSummary | None) -> Document:
    """The document of a traced run.

    Args:
        model: the name of what ran.
        timeline: the run.
        summary: of the same run; None if the plan is not known.
    """
    figures: dict[str, Cell] = {"ms of the traced run": timeline.total / _MILLION}
    if summary is not None:
        figures["ms of its critical path"] = summary.critical_path / _MILLION
    figures |= {f"% busy, {name}": 100 * timeline.busy(i) / max(1, timeline.total) for i, name in _numbered(timeline)}
    figures["steps"] = sum(event.kind == "step" for event in timeline.events)
    sections = [Section("Timeline", _CHART, timeline_panel(timeline))]
    if summary is not None:
        path = " ".join(map(sentence, path_lines(summary)))
        sections.append(Section("Processors", f"{path} {_QUEUES}", table=_queues(summary)))
        if summary.waits:
            sections.append(Section("Waits", _WAITS, table=_waits(summary)))
    sections.append(Section("Steps", _STEPS, table=_steps(timeline), folded=True))
    return Document(f"One run of {model}", f"Traced on {' and '.join(timeline.queues)}.", figures, sections)


def _numbered(timeline: Timeline) -> Sequence[tuple[int, str]]:
    return list(enumerate(timeline.queues))


def _queues(summary: RunSummary) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            queue.processor,
            *(time / _MILLION for time in (queue.busy, queue.waiting, queue.idle)),
            100 * queue.busy / max(1, summary.total),
        )
        for queue in summary.queues
    ]
    return Table(("processor", "busy ms", "waiting ms", "idle ms", "% busy"), rows)


def _waits(summary: RunSummary) -> Table:
    rows: list[Sequence[Cell]] = [
        (
            summary.queues[wait.step.queue].processor,
            wait.step.name,
            f"{wait.awaited.name} on {summary.queues[wait.awaited.queue].processor}",
            wait.duration / _MILLION,
            wait.transfer / _MILLION,
        )
        for wait in summary.waits[:_MOST_WAITS]
    ]
    return Table(("processor", "before", "for", "ms", "transfer ms"), rows, 3)


def _steps(timeline: Timeline) -> Table:
    steps = sorted((event for event in timeline.events if event.kind == "step"), key=lambda event: event.begin)
    titles = ("layer", "operator", "processor", "routine", "begin ms", "ms", "million MACs", "GFLOP/s")
    return Table(titles, [_step(timeline, event) for event in steps], 4)


def _step(timeline: Timeline, event: Event) -> Sequence[Cell]:
    nanoseconds = event.end - event.begin
    return (
        event.name,
        operator_text(event.op),
        timeline.queues[event.queue],
        event.routine,
        event.begin / _MILLION,
        nanoseconds / _MILLION,
        event.macs / _MILLION if event.macs else None,
        2 * event.macs / max(1, nanoseconds) if event.macs else None,
    )
