"""The page of a measurement on targets: what each device is, latencies, sustained runs, timelines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.targets.timelines import target_timeline
from nnstretch.report.charts.svg import panel_picture
from nnstretch.report.charts.targets import latencies_panel, sustained_panels
from nnstretch.report.charts.timeline import timeline_svg
from nnstretch.report.pages import render
from nnstretch.report.tables.targets import COLUMNS, device_facts, few_runs_text, gain_text, row_cells
from nnstretch.report.tables.text import interval_text
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from nnstretch.bench.targets.measure import TargetRun


def write_targets_page(path: Path, runs: Sequence[TargetRun]) -> None:
    """Writes the page to a file.

    Args:
        path: the file.
        runs: one per target.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    page = render(
        "targets.html",
        title="A branched network on devices" if any(run.gain for run in runs) else "Models on devices",
        figures=[figure for run in runs for figure in _figures(run)],
        columns=[column.lstrip(">") for column in COLUMNS],
        runs=[_section(run) for run in runs],
    )
    write_text(path, page)


def _figures(run: TargetRun) -> list[tuple[str, str]]:
    """The large numbers of a target: the gain of a branched network, or the fastest model."""
    if run.gain is not None:
        ends = f", {interval_text(run.gain.ends, '.2f')}" if run.gain.ends else ""
        return [(f"{run.gain.speedup:.2f}×", f"as fast as the best alternative on {run.target}{ends}")]
    measured = [(one.result.p50_ms, one.model.name) for one in run.measured if one.result.p50_ms]
    return [(f"{ms:.3g} ms", f"{name} on {run.target}") for ms, name in (min(measured),)] if measured else []


def _section(run: TargetRun) -> dict[str, Any]:
    """What the template shows of a target."""
    timed = [one for one in run.measured if one.result.p50_ms]
    traced = [(one.model.name, target_timeline(one.model, one.result)) for one in run.measured]
    return {
        "target": run.target,
        "failure": run.failure,
        "gain": gain_text(run),
        "facts": list(device_facts(run.probe)) if run.probe is not None else [],
        "rows": [row_cells(one) for one in run.measured],
        "kinds": ["chosen" if run.gain is not None and one is run.gain.branched else None for one in run.measured],
        "latencies": panel_picture(latencies_panel(timed, branched=run.gain is not None), "Latencies of all models")
        if timed
        else "",
        "sustained": [
            panel_picture(panel, "Latency, clock and temperature over time")
            for panel in sustained_panels([one for one in run.measured if one.result.sustained])
        ],
        "timelines": [(name, timeline_svg(timeline, alone=False)) for name, timeline in traced if timeline is not None],
        "few_runs": few_runs_text(run),
        "stopped": run.stopped or "",
    }
