"""Set-up of cost models: what measures layers on processors, and what predicts them."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, replace

from nnstretch.compiler.processors import Processors
from nnstretch.errors import UsageError
from nnstretch.scheduler.costmodel.costs import Contention
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
from nnstretch.scheduler.measurement.interference import contention_factors, stored_contention_factors
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.runner import Runner, SharedRunner
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.thoroughness import all_settings, remembered_settings
from nnstretch.scheduler.simulation.costs import SimulatedPredictor, one_soc

_CLOCK_READINGS = 15


def open_profiler(
    processors: Processors,
    *,
    fresh: bool = False,
    exhaustive: bool = False,
    runner: Runner | None = None,
    quick: bool = False,
) -> Profiler:
    """Measured costs on processors, kept in the profile store of the cache directory.

    Args:
        processors: those to measure on.
        fresh: ignore measurements from before this call.
        exhaustive: consider and measure every parameter setting of every routine; otherwise their short lists and the settings
            that earlier searches found fastest.
        runner: runs single layers on this machine; one of the profiler's own if None.
        quick: fewer runs per layer on this machine, which makes times a percent or two less sure (`LocalSite`).

    Raises:
        UsageError: the processors are simulated.
    """
    if one_soc(processors.named) is not None:
        raise UsageError(
            f"{', '.join(p.name for p in processors.named)} are simulated and cannot be measured; name processors that are here"
        )
    store = ProfileStore()
    site = processors.site or LocalSite(processors.host, runner or Runner(start=processors.target.start), quick=quick)
    if site.measures:
        described = (p.describe() for p in (*processors.named, processors.host))
        caches = astuple(site.caches)
        store.describe([replace(found, caches=caches) for found in described if found is not None])
    return Profiler(
        store,
        processors.host,
        processors=processors.named,
        settings=all_settings if exhaustive else remembered_settings(store),
        fresh=fresh,
        exhaustive=exhaustive,
        tolerance=processors.options.largest_error,
        site=site,
    )


def present_clocks(processors: Processors) -> dict[str, float]:
    """Frequency of each processor now, by its name, over the reference frequency that predictions hold at; 1 if unknown.

    Where other virtual machines share the cores, these run below that frequency for hours. Empty for simulated processors.
    """
    if one_soc(processors.named) is not None:
        return {}
    with open_profiler(processors) as profiler:
        return clocks_of(profiler, processors)


def clocks_of(profiler: Profiler, processors: Processors) -> dict[str, float]:
    """`present_clocks` by a profiler that is open."""
    readings = {one.name: [profiler.pace(one) for _ in range(_CLOCK_READINGS)] for one in processors.named}
    return {name: statistics.median(paces) for name, paces in readings.items()}


def measured_contention(processors: Processors) -> Contention:
    """Contention factors of groups of processors, measured on first use and kept in the profile store.

    Where nothing is measured, unknown ones are 1.
    """
    site = processors.site

    def measured(group: Sequence[int]) -> Sequence[float]:
        with closing(ProfileStore()) as store:
            if site is not None and not site.measures:
                return stored_contention_factors(processors.named, group, store) or [1.0] * len(group)
            run = None if site is None else site.step_seconds
            return contention_factors(processors.named, processors.host, group, store, run)

    return measured


def latency_predictor(
    processors: Processors, *, learned: bool | None = None, working_set: int | None = None, quick: bool = False
) -> ProfilePredictor | SimulatedPredictor:
    """Predicts latencies of designs on processors: by measurements, or by the profile of simulated ones.

    Args:
        processors: those of the branches.
        learned: predict a layer without measurements from measured ones where possible, until it is confirmed; otherwise every
            distinct layer is measured once. By default if xgboost is installed.
        working_set: bytes that the network touches in a run (`nnstretch.branching.design.accounting.working_set`). Layers are
            measured with their weights where a network of this size leaves them; in memory by default.
        quick: as in `open_profiler`.
    """
    soc = one_soc(processors.named)
    if soc is not None:
        return SimulatedPredictor(soc, processors.parts)
    if learned is None:
        learned = importlib.util.find_spec("xgboost") is not None
    # Shared: designs that run are tuned in between.
    runner = SharedRunner(start=processors.target.start) if processors.site is None else None
    measured, store = open_profiler(processors, runner=runner, quick=quick), ProfileStore()
    return ProfilePredictor(
        processors.named,
        measured,
        measured_contention(processors),
        LearnedCosts(store, measured, caches=measured.site.caches) if learned else None,
        working_set,
    )
