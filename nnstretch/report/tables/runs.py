"""A run on several processors as text and tables: placement of layers, streams, and the time of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnstretch.report.tables.text import count_text, ms_text, plain_table, quietness_lines, times_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.placement import Together
    from nnstretch.bench.rates import Rate
    from nnstretch.bench.throughput import Throughput
    from nnstretch.scheduler.plan.compiled import PlacementReport
    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.runtime.arrangement import Arrangement
    from nnstretch.scheduler.runtime.critical_path import RunSummary, Wait
    from nnstretch.scheduler.runtime.timeline import Event

_SHOWN = 3  # of the longest steps and waits


def queue_names(plan: Plan) -> list[str]:
    """The processor of every step of a plan; "host" for steps of a host that only serves a device."""
    names = [queue.processor or "host" for queue in plan.queues]
    return [names[queue] for queue in plan.step_queues]


def idle_text(processors: Sequence[str]) -> str:
    """One line on processors that the user named and that compute nothing; empty if there are none."""
    if not processors:
        return ""
    return f"nothing is computed on {', '.join(processors)}: ONNX Runtime or other processors compute all layers"


def fallback_text(layers: Sequence[str]) -> str:
    """One line on the layers that ONNX Runtime computes; empty if there are none."""
    if not layers:
        return ""
    return f"{len(layers)} layer{'s run' if len(layers) > 1 else ' runs'} on ONNX Runtime: {', '.join(layers)}"


def placement_text(report: PlacementReport, plan: Plan) -> str:
    """The predicted result of an automatic placement, and a line per split layer."""
    alone = report.alone[report.fastest] * 1e3
    together = report.together * 1e3
    if not report.pays:
        others = ", ".join(name for name in report.alone if name != report.fastest)
        return (
            f"everything runs on {report.fastest}, which is predicted to take {ms_text(alone)} ms; sharing the layers with "
            f"{others} does not pay ({ms_text(together)} ms)"
        )
    steps = queue_names(plan)
    shares = ", ".join(f"{counted(steps.count(name), 'step')} on {name}" for name in dict.fromkeys(steps))
    whole = (
        f"placed by itself: {shares}; predicted {ms_text(together)} ms, {times_text(alone / together)} as fast as "
        f"{report.fastest} alone ({ms_text(alone)} ms); no placement of whole layers takes less than "
        f"{ms_text(report.bound * 1e3)} ms"
    )
    by_channels = _split_lines("layers split by their output channels:", report.splits)
    twice = f" ({repeated_text(plan)})" if plan.repeated_macs else ""
    return "\n".join([whole, *_split_lines(f"sections computed in bands of rows{twice}:", report.bands), *by_channels])


def repeated_text(plan: Plan) -> str:
    """The multiply-accumulates of rows near the cuts of bands, which several processors compute; for plans that have some."""
    share = plan.repeated_macs / max(1, plan.macs)
    return f"rows near the cuts are computed twice, {count_text(plan.repeated_macs)} MACs or {share:.1%} more"


def _split_lines(heading: str, split: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A heading and a line per split layer or region; nothing if there is none."""
    lines = [
        f"  {what}: " + " + ".join(f"{count} on {name}" for name, count in shares.items())
        for what, shares in split.items()
    ]
    return [heading, *lines] if lines else []


def together_table(found: Together) -> Table:
    """A line per way to run the network."""
    shown = plain_table("on", ">p50 ms", ">p90 ms", ">min ms", ">spread", title=found.model)
    rows = {"together": found.together, "together, one after another": found.serial, **found.alone}
    for name, times in rows.items():
        shown.add_row(name, *(ms_text(ms) for ms in (times.p50_ms, times.p90_ms, times.min_ms)), f"{times.spread:.1%}")
    how = "" if found.pays else "A placement does not pay: everything runs on the fastest processor. "
    if found.bound_ms is None:
        bound = "; its design says where layers run"
    else:
        bound = f", at least {ms_text(found.bound_ms)} ms for any placement of whole layers"
    shown.caption = (
        f"{how}Together {times_text(found.speedup)} as fast as the fastest processor alone. The critical path by the steps' "
        f"own times is {ms_text(found.critical_path_ms)} ms, and a traced run takes {found.over_critical_path - 1:.1%} longer; "
        f"predicted {ms_text(found.predicted_ms)} ms{bound}. Largest error against ONNX Runtime {found.max_rel_error:.1e}."
    )
    return _with_quietness(shown, found)


def _with_quietness(shown: Table, found: Together | Throughput) -> Table:
    """A table whose caption ends with what to know of a machine that was not quiet."""
    shown.caption = "\n".join([str(shown.caption), *quietness_lines(found.widest_interval, found.other_programs)])
    return shown


def arrangement_text(found: Arrangement) -> str:
    """An arrangement as text: "cpu:0 and opencl:0@1 together, 2 streams"."""
    counts = Counter((" and ".join(group.processors), group.streams) for group in found.groups)
    parts = []
    for (names, streams), count in counts.items():
        together = " together" if " and " in names else ""
        parts.append(f"{names}{together}, {counted(streams * count, 'stream')}")
    return "; ".join(parts)


def fewer_streams_text(asked: int, found: Arrangement) -> str:
    """A line if an arrangement computes fewer inputs at the same time than were asked for; else empty."""
    if found.streams >= asked:
        return ""
    return f"--streams {asked}: {found.streams} of them are used, two per processor, which is as much as keeps it busy"


def memory_text(found: Arrangement) -> str:
    """Memory of weights and streams as text."""
    weights, streams = count_text(found.weight_bytes), count_text(found.stream_bytes)
    computing = f"all {found.streams} streams" if found.streams > 1 else "the stream"
    return f"weights take {weights}B, {computing} {streams}B beside them"


def throughput_table(found: Throughput) -> Table:
    """A line per way to run the network."""
    shown = plain_table("how", "where", ">images/s", ">predicted", ">spread", ">memory", title=found.model)
    for rate in (found.alone, *found.rates, *found.baselines):
        shown.add_row(*_rate_cells(rate, found.batch, chosen=rate.how == found.chosen))
    words = [
        f"{counted(found.streams, 'stream')}, batch {found.batch}.",
        f"Chosen by prediction: {found.chosen}, {times_text(found.best.per_second / found.alone.per_second)} one at a time",
    ]
    if found.baselines:
        best = max(rate.per_second for rate in found.baselines)
        words.append(f"and {times_text(found.best.per_second / best)} the better one of ONNX Runtime's")
    if found.failure:
        words.append(f"(ONNX Runtime failed: {found.failure})")
    shown.caption = " ".join(words) + f". Largest error against ONNX Runtime {found.max_rel_error:.1e}."
    return _with_quietness(shown, found)


def _rate_cells(rate: Rate, batch: int, *, chosen: bool) -> tuple[str, ...]:
    arrangement = rate.arrangement
    if arrangement is None:
        return rate.how, "", f"{rate.per_second:.1f}", "", f"{rate.spread:.1%}", ""
    predicted = "–" if arrangement.rate is None else f"{arrangement.rate * batch:.1f}"
    memory = f"{count_text(arrangement.weight_bytes + arrangement.stream_bytes)}B"
    how = f"{rate.how} (chosen)" if chosen else rate.how
    return how, arrangement_text(arrangement), f"{rate.per_second:.1f}", predicted, f"{rate.spread:.1%}", memory


def timeline_table(found: RunSummary) -> Table:
    """A line per processor."""
    shown = plain_table("processor", ">busy ms", ">waiting ms", ">idle ms", ">busy")
    for queue in found.queues:
        share = f"{queue.busy / max(1, found.total):.0%}"
        shown.add_row(queue.processor, _ms(queue.busy), _ms(queue.waiting), _ms(queue.idle), share)
    return shown


def timeline_text(found: RunSummary) -> str:
    """The critical path and the longest waits, a sentence on each line."""
    return "\n".join([*path_lines(found), *(_wait_text(found, wait) for wait in found.waits[:_SHOWN])])


def path_lines(found: RunSummary) -> list[str]:
    """The critical path, and the steps to the end of the run, a line each."""
    bound = (
        f"the traced run took {_ms(found.total)} ms, {found.over_critical_path - 1:.1%} longer than its critical path of "
        f"{_ms(found.critical_path)} ms (the longest chain of steps where each needs the data or the processor of the one "
        "before; without transfers and gaps)"
    )
    return [bound, _path_text(found)]


def _path_text(found: RunSummary) -> str:
    transfers = [link.gap for link in found.path if link.is_transfer]
    between = sum(link.gap for link in found.path if not link.is_transfer)
    longest = sorted(found.path, key=lambda link: link.step.begin - link.step.end)[:_SHOWN]
    names = ", ".join(f"{_step(found, link.step)} {_ms(link.step.end - link.step.begin)} ms" for link in longest)
    return (
        f"to the end of the run: {counted(len(found.path), 'step')}, {_ms(between)} ms between them, "
        f"{_ms(sum(transfers))} ms in {counted(len(transfers), 'transfer')}; longest: {names or '–'}"
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
