"""The placement of layers as text and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.report.tables.text import ms_text, plain_table, times_text

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.placement import Together
    from nnstretch.scheduler.placement.report import PlacementReport
    from nnstretch.scheduler.plan.schema import Plan


def queue_names(plan: Plan) -> list[str]:
    """The processor of every step of a plan; "host" for steps of a host that only serves a device."""
    names = [queue.processor or "host" for queue in plan.queues]
    return [names[subgraph.queue] for subgraph in plan.subgraphs for _ in range(subgraph.count)]


def placement_text(report: PlacementReport, plan: Plan) -> str:
    """The predicted result of an automatic placement, and a line per split layer."""
    alone = report.alone[report.fastest] * 1e3
    together = report.together * 1e3
    if not report.pays:
        return (
            f"everything runs on {report.fastest}, which is predicted to take {ms_text(alone)} ms; sharing the layers with "
            f"{_others(report)} does not pay ({ms_text(together)} ms)"
        )
    steps = queue_names(plan)
    shares = ", ".join(f"{steps.count(name)} steps on {name}" for name in dict.fromkeys(steps))
    whole = (
        f"placed by itself: {shares}; predicted {ms_text(together)} ms, {times_text(alone / together)} as fast as "
        f"{report.fastest} alone ({ms_text(alone)} ms); no placement of whole layers takes less than "
        f"{ms_text(report.bound * 1e3)} ms"
    )
    return "\n".join([whole, *_split_lines(report)])


def _split_lines(report: PlacementReport) -> list[str]:
    """A heading and a line per split layer."""
    lines = [
        f"  {layer}: " + " + ".join(f"{channels} on {name}" for name, channels in shares.items())
        for layer, shares in report.splits.items()
    ]
    return ["layers split by their output channels:", *lines] if lines else []


def _others(report: PlacementReport) -> str:
    return ", ".join(name for name in report.alone if name != report.fastest)


def together_table(found: Together) -> Table:
    """A line per way to run the network."""
    shown = plain_table("on", ">p50 ms", ">p90 ms", ">min ms", ">spread", title=found.model)
    rows = {"together": found.together, "together, one after another": found.serial, **found.alone}
    for name, times in rows.items():
        shown.add_row(name, *(ms_text(ms) for ms in (times.p50_ms, times.p90_ms, times.min_ms)), f"{times.spread:.1%}")
    how = "" if found.pays else "A placement does not pay: everything runs on the fastest processor. "
    shown.caption = (
        f"{how}Together {times_text(found.speedup)} as fast as the fastest processor alone. The critical path by the steps' "
        f"own times is {ms_text(found.critical_path_ms)} ms, and a traced run takes {found.over_critical_path - 1:.1%} longer; "
        f"predicted {ms_text(found.predicted_ms)} ms, at least {ms_text(found.bound_ms)} ms for any placement of whole "
        f"layers. Largest error against ONNX Runtime {found.max_rel_error:.1e}."
    )
    shown.caption_justify = "left"
    return shown
