"""Answers of `bench --target`: what each device is, how fast models run there, and a run of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.report.charts.targets import latencies_panel, sustained_panels
from nnstretch.report.charts.timeline import timeline_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.tables.text import interval_text, sentence
from nnstretch.scheduler.runtime.timeline import Timeline

if TYPE_CHECKING:
    from nnstretch.bench.targets.measure import Measured

_TITLES = (
    "model",
    "processors",
    "clock",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "first run ms",
    "MiB",
    "GHz",
    "°C",
    "energy J",
    "rel. error",
)
_TEXTS = 3
_MIB = 1 << 20
_LEAD = "Measured by a runner on each device in interleaved rounds."
_ALTERNATIVES = (
    "Alternatives of the branched network: the original and its equal-MACs control (the original scaled in width to the same "
    "multiply-accumulates) on every processor alone and on all fast cores."
)
_LATENCY = (
    "A bar is the median; its whisker reaches from the fastest run to the 90th percentile. The error is the largest one "
    "against ONNX Runtime, relative to the output's range."
)
_RUN = (
    "Each row is a processor, each bar a layer; hatched bars are waits at a meeting point. A bar's tooltip shows layer, "
    "routine and rate."
)
_GAIN = "speedup_best_alternative"

Run = Mapping[str, Any]
"""What a target gave. A field that is missing raises KeyError."""


def targets_document(_: str, answer: Mapping[str, Any]) -> Document:
    """The document of an answer, which names its models itself. A field that is missing raises KeyError."""
    runs = answer["targets"]
    branched = any(_GAIN in run for run in runs)
    return Document(
        "A branched network on devices" if branched else "Models on devices",
        f"{_LEAD} {_ALTERNATIVES}" if branched else _LEAD,
        dict(figure for run in runs for figure in _figures(run)),
        [section for run in runs for section in _sections(run)],
        headline=[number for run in runs for number in _headline(run)],
    )


def _figures(run: Run) -> Iterator[tuple[str, Cell]]:
    target = run["target"]
    if _GAIN in run:
        yield f"× as fast as {run['best_alternative']}, branched on {target}", run[_GAIN]
    for one in run.get("results", ()):
        if one.get("p50_ms"):
            yield f"p50 in ms, {one['model']} on {target}", one["p50_ms"]


def _headline(run: Run) -> list[tuple[str, str]]:
    """The large numbers of a target: the gain of a branched network, or the fastest model."""
    if _GAIN in run:
        ends = _interval(run)
        return [(f"{run[_GAIN]:.2f}×", f"as fast as the best alternative on {run['target']}{ends and f', {ends}'}")]
    measured = [(one["p50_ms"], one["model"]) for one in run.get("results", ()) if one.get("p50_ms")]
    return [(f"{ms:.3g} ms", f"{name} on {run['target']}") for ms, name in (min(measured),)] if measured else []


def _interval(run: Run) -> str:
    """The confidence interval of a gain; "" if it has none."""
    ends = run.get(f"{_GAIN}_interval")
    return interval_text((ends[0], ends[1]), ".2f") if ends else ""


def _sections(run: Run) -> Iterator[Section]:
    """What there is to say of a target."""
    from nnstretch.bench.targets.measure import Measured
    from nnstretch.bench.targets.models import TargetModel
    from nnstretch.devices.targets.probe import Probe
    from nnstretch.devices.targets.results import ModelResult
    from nnstretch.report.tables.targets import device_facts

    target = run["target"]
    if "error" in run:
        yield Section(target, f"It was not measured: {run['error']}.")
        return
    measured = [
        Measured(
            TargetModel(one["model"], Path()), ModelResult.from_json({"file": "", **one}), one.get("max_rel_error"), {}
        )
        for one in run["results"]
    ]
    if run.get("device") is not None:
        card = list(device_facts(Probe.from_json(run["device"])))
        yield Section(f"Device {target}", table=Table(["", target], card, 2))
    yield _latencies(run, measured)
    if failed := [(one.model.name, one.result.error) for one in measured if one.result.error is not None]:
        yield Section(f"Failed on {target}", table=Table(["model", "reason"], failed, 2))
    sustained = [one for one in measured if one.result.sustained]
    for number, panel in enumerate(sustained_panels(sustained), start=1):
        part = f", part {number}" if number > 1 else ""
        yield Section(f"Sustained runs on {target}{part}", "", panel)
    yield from _traced(run)


def _latencies(run: Run, measured: Sequence[Measured]) -> Section:
    """Latencies of all models; a branched network, the last one, stands out."""
    from nnstretch.bench.targets.measure import TargetRun
    from nnstretch.report.tables.targets import few_runs_text, gain_line

    target, branched = run["target"], _GAIN in run
    said = [_LATENCY]
    if branched:
        gain = gain_line(run[_GAIN], run["best_alternative"], _interval(run))
        said.append(sentence(gain))
    if few := few_runs_text(TargetRun(target, measured)):
        said.append(f"{few}.")
    if run.get("stopped"):
        said.append(f"The measurement ended early: {run['stopped']}.")
    timed = [one for one in measured if one.result.p50_ms]
    worked = [one for one in measured if one.result.error is None]
    marked = frozenset({len(worked) - 1} if branched else ())
    table = Table(_TITLES, [_row(one) for one in worked], _TEXTS, marked)
    return Section(
        f"Latency on {target}", " ".join(said), latencies_panel(timed, branched=branched) if timed else None, table
    )


def _traced(run: Run) -> Iterator[Section]:
    """A traced run of every model that has one."""
    text = _RUN
    for one in run["results"]:
        if one.get("run"):
            yield Section(
                f"One run of {one['model']} on {run['target']}", text, timeline_panel(Timeline.from_json(one["run"]))
            )
            text = ""


def _row(one: Measured) -> Sequence[Cell]:
    from nnstretch.bench.targets.timelines import processor_names

    result = one.result
    return [
        one.model.name,
        ", ".join(processor_names(result)),
        "lowered" if result.throttled else "",
        *(result.p50_ms, result.p90_ms, result.p99_ms, result.first_ms),
        None if result.peak_memory_bytes is None else result.peak_memory_bytes / _MIB,
        None if result.highest_khz is None else result.highest_khz / 1e6,
        *(result.hottest_c, result.energy_j, one.error),
    ]
