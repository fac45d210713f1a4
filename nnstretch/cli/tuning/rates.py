"""Rates of a plan's steps beside the peaks of the cores that compute them."""

from __future__ import annotations

from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.build.instruction_sets import local_features
from nnstretch.devices.engine.peaks import routine_peak_ratio
from nnstretch.report.tables.runs import queue_names
from nnstretch.scheduler.plan.schema import Plan


def step_rates(plan: Plan, *, is_local: bool) -> list[dict[str, float | None]]:
    """GFLOP/s of every step by its predicted time, and the share of the peak of the routine's data type on all its cores.

    A share above 1 has an algorithm with fewer multiply-adds than the layer is written down with. The float32 peak of a CPU
    is measured, in a tenth of a second; peaks of other types follow from it (`peak_ratio`).

    Args:
        plan: with predicted times.
        is_local: whether it was tuned for this machine; else no share is known.

    Returns:
        `gflops` and `peak_share` of each step; None for steps without multiply-adds or time, and shares of other devices.
    """
    peaks: dict[str, float] = {}
    features, rates = local_features(), list[dict[str, float | None]]()
    for step, place in zip(plan.steps, queue_names(plan), strict=True):
        gflops = 2 * step.macs / (step.cost_ms * 1e6) if step.cost_ms and step.macs else None
        share = None
        if gflops is not None and is_local and place.startswith("cpu"):
            if place not in peaks:
                (spec,) = parse_processors(place)
                peaks[place] = engine().peak_gflops(spec.cores[0]) * len(spec.cores)
            share = gflops / (peaks[place] * routine_peak_ratio(step.routine, features))
        rates.append({"gflops": gflops, "peak_share": share})
    return rates
