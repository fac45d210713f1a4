"""The time of a run as text and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.report.tables.text import ms_text, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.scheduler.runtime.critical_path import RunSummary, Wait
    from nnstretch.scheduler.runtime.timeline import Event

_SHOWN = 3  # of the longest steps and waits


def timeline_table(found: RunSummary) -> Table:
    """A line per processor."""
    shown = plain_table("processor", ">busy ms", ">waiting ms", ">idle ms", ">busy")
    for queue in found.queues:
        share = f"{queue.busy / max(1, found.total):.0%}"
        shown.add_row(queue.processor, _ms(queue.busy), _ms(queue.waiting), _ms(queue.idle), share)
    return shown


def timeline_text(found: RunSummary) -> str:
    """The critical path and the longest waits, a sentence on each line."""
    bound = (
        f"the traced run took {_ms(found.total)} ms, {found.over_critical_path - 1:+.1%} from its critical path of "
        f"{_ms(found.critical_path)} ms (the longest way through what steps read and the order of every processor, by the "
        "steps' own times)"
    )
    return "\n".join([bound, _path_text(found), *(_wait_text(found, wait) for wait in found.waits[:_SHOWN])])


def _path_text(found: RunSummary) -> str:
    transfers = [link.gap for link in found.path if link.is_transfer]
    between = sum(link.gap for link in found.path if not link.is_transfer)
    longest = sorted(found.path, key=lambda link: link.step.begin - link.step.end)[:_SHOWN]
    names = ", ".join(f"{_step(found, link.step)} {_ms(link.step.end - link.step.begin)} ms" for link in longest)
    return (
        f"to the end of the run: {len(found.path)} steps, {_ms(between)} ms between them, {_ms(sum(transfers))} ms in "
        f"{len(transfers)} transfers; longest: {names or '–'}"
    )


def _wait_text(found: RunSummary, wait: Wait) -> str:
    return (
        f"{found.queues[wait.step.queue].processor} waited {_ms(wait.duration)} ms before {wait.step.name} for "
        f"{_step(found, wait.awaited)}, {_ms(wait.transfer)} ms of it for the transfer"
    )


def _step(found: RunSummary, step: Event) -> str:
    return f"{step.name} on {found.queues[step.queue].processor}"


def _ms(nanoseconds: int) -> str:
    return ms_text(nanoseconds * 1e-6)
