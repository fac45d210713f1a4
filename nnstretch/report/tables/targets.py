"""Tables of targets: what they are, and how fast models run there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nnstretch.bench.targets.timelines import processor_names
from nnstretch.devices.targets.probe import cluster_text
from nnstretch.report.tables.text import interval_text, ms_text, number_text, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.targets.measure import Measured, TargetRun
    from nnstretch.devices.targets.probe import Probe

_MIB, _GIB = 1 << 20, 1 << 30
_FEW_RUNS = 10
_MARGIN = 1.2  # of seconds for that many runs over their median: some take longer
"""A measurement of fewer runs has no 90th percentile of its own: it is nearly the longest run."""


COLUMNS = ("model", "processors", ">p50 ms", ">p90", ">p99", ">first run", ">MiB", ">GHz", ">°C", ">energy J", ">error")
"""Titles of a model's row; those that begin with ">" are of numbers."""


def gain_text(run: TargetRun) -> str:
    """One line on the gain of a branched network on a target; empty if there is none."""
    if run.gain is None:
        return ""
    ends = interval_text(run.gain.ends, ".2f") if run.gain.ends else ""
    return gain_line(run.gain.speedup, run.gain.alternative.model.name, ends)


def gain_line(speedup: float, alternative: str, ends: str) -> str:
    """The gain of a branched network over the best alternative.

    Args:
        speedup: how many times as fast it is.
        alternative: the best one's name.
        ends: of the confidence interval, as text; "" for none.
    """
    return f"branched {speedup:.2f}× as fast as the best alternative, {alternative}{ends and f' (95 %: {ends})'}"


def targets_table(runs: Sequence[TargetRun]) -> Table:
    """A row per target and model."""
    table = plain_table("target", *COLUMNS)
    for run in runs:
        if run.failure:
            table.add_row(run.target, run.failure)
        for one in run.measured:
            table.add_row(run.target, *row_cells(one))
    return table


def row_cells(one: Measured) -> tuple[str, ...]:
    """The cells of a model under `COLUMNS`; a model that failed has its reason after its name."""
    result = one.result
    if result.error is not None:
        return one.model.name, result.error
    memory = None if result.peak_memory_bytes is None else result.peak_memory_bytes / _MIB
    clock = None if result.highest_khz is None else result.highest_khz / 1e6
    return (
        one.model.name,
        ",".join(processor_names(one.result)),
        ms_text(result.p50_ms),
        ms_text(result.p90_ms),
        ms_text(result.p99_ms),
        ms_text(result.first_ms),
        number_text(memory, ".0f"),
        number_text(clock, ".2f") + ("↓" if result.throttled else ""),
        number_text(result.hottest_c, ".0f"),
        number_text(result.energy_j, ".3g"),
        number_text(one.error, ".1e"),
    )


def few_runs_text(run: TargetRun, option: str = "--budget") -> str:
    """A line that says which models ran so few times that percentiles say little; empty if none did.

    Args:
        run: of a target.
        option: raises the number of runs: "--runs" itself, or "--budget" the seconds of all of them.
    """
    few = [one for one in run.measured if one.result.runs in range(1, _FEW_RUNS)]
    if not few:
        return ""
    runs = ", ".join(f"{one.result.runs} run{'s' * (one.result.runs != 1)} of {one.model.name}" for one in few)
    slowest = max(one.result.p50_ms or 0.0 for one in few)
    enough = _FEW_RUNS if option == "--runs" else max(1, math.ceil(_MARGIN * _FEW_RUNS * slowest / 1e3))
    return f"{run.target}: p50, p90 and p99 are those of {runs}; {option} {enough} has {_FEW_RUNS} of each"


def sustained_tables(runs: Iterable[TargetRun]) -> Iterable[Table]:
    """Latency, clock and temperature over time, for every model with a sustained run."""
    for run in runs:
        for one in run.measured:
            seconds = one.result.sustained
            if not seconds:
                continue
            table = plain_table(">second", ">p50 ms", ">GHz", ">°C", title=f"{one.model.name} on {run.target}")
            step = max(1, len(seconds) // _ROWS)
            for second in seconds[::step]:
                clock = None if second.khz is None else second.khz / 1e6
                table.add_row(
                    f"{second.s:.0f}",
                    ms_text(second.p50_ms),
                    number_text(clock, ".2f"),
                    number_text(second.temperature_c, ".0f"),
                )
            yield table


_ROWS = 12


def device_card(target: str, probe: Probe) -> Table:
    """What a target is, one fact a row."""
    table = plain_table("device", target)
    for name, fact in device_facts(probe):
        table.add_row(name, fact)
    return table


def device_facts(probe: Probe) -> Iterator[tuple[str, str]]:
    """What a target is: names and facts."""
    yield "machine", " ".join(filter(None, (probe.machine, probe.system, probe.kernel)))
    for cluster in probe.clusters:
        yield "cluster", cluster_text(cluster)
    if len(probe.nodes) > 1:
        yield "NUMA nodes", str(len(probe.nodes))
    governors = sorted({cpu.governor for cpu in probe.cpus if cpu.governor})
    if governors:
        yield "governor", ", ".join(governors)
    yield "instruction sets", ", ".join(probe.isa_levels) or "–"
    yield "features", " ".join(probe.features) or "–"
    if probe.memory_bytes:
        free = f", {probe.available_bytes / _GIB:.1f} GiB available" if probe.available_bytes else ""
        yield "memory", f"{probe.memory_bytes / _GIB:.1f} GiB{free}"
    for device in probe.opencl:
        yield "OpenCL", f"{device.name} ({device.platform}, {device.version})"
    if probe.is_static:
        yield "OpenCL", "not looked for: the runner for this target computes on CPU cores alone"
    elif not probe.opencl:
        yield "OpenCL", probe.opencl_error or "no device"
    for zone in probe.thermal:
        yield "temperature", f"{zone.type or zone.zone} {number_text(zone.c, '.0f')} °C"
    for supply in probe.power:
        level = "" if supply.capacity is None else f", {supply.capacity:.0f} %"
        yield "power", f"{supply.name} {supply.status or ''}{level}".strip()
