"""The searches of `nnstretch tune` on one layer, with as many measurements as a study has made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel
from nnstretch.scheduler.costmodel.learned import machine_of
from nnstretch.scheduler.lowering.units import UnitGraph, working_set
from nnstretch.scheduler.measurement.caches import network_state
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.parameter_search.coordinate_descent import descend
from nnstretch.scheduler.parameter_search.explorer import Explorer, Schedule
from nnstretch.scheduler.parameter_search.thoroughness import search_tasks
from nnstretch.scheduler.plan.schema import QueuePool


@dataclass(frozen=True)
class SearchedLayer:
    """What a search of one layer needs.

    Attributes:
        processor: that computes it.
        layer: of the graph.
        graph: its network.
        pool: of the processor alone.
        costs: measure candidates; equal candidates are measured once for all searches.
        most: number of candidates that a search may measure.
    """

    processor: Processor
    layer: Layer
    graph: UnitGraph
    pool: QueuePool
    costs: Profiler
    most: int


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        search: its name.
        candidate: the fastest one; None: none works.
        ms: of it.
        measurements: number of different candidates that the search measured.
    """

    search: str
    candidate: Candidate | None
    ms: float
    measurements: int

    def row(self) -> dict[str, Any]:
        """Its fields for JSON."""
        return {
            "search": self.search,
            "routine": str(self.candidate.routine.descriptor) if self.candidate else None,
            "parameters": dict(self.candidate.parameters) if self.candidate else {},
            "ms": self.ms if self.candidate else None,
            "measurements": self.measurements,
        }


class _BudgetSpentError(Exception):
    """A search wants more measurements than it has."""


class BudgetedCosts(CostModel):
    """Measured costs of one layer up to a number of different candidates; other layers have none."""

    measured = True

    def __init__(self, searched: SearchedLayer) -> None:
        self._searched = searched
        self._found: dict[str, tuple[float, Candidate]] = {}

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Seconds of a candidate; None if it fails, or is of another layer.

        Raises:
            _BudgetSpentError: it is one too many.
        """
        searched = self._searched
        if layer.workload != searched.layer.workload:
            return None
        key = candidate_key(routine, parameters)
        if key not in self._found:
            if len(self._found) >= searched.most:
                raise _BudgetSpentError
            seconds = searched.costs.seconds(processor, routine, layer, parameters)
            self._found[key] = math.inf if seconds is None else seconds, Candidate(routine, parameters)
        seconds = self._found[key][0]
        return seconds if math.isfinite(seconds) else None

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0

    def found(self, search: str) -> Found:
        """The fastest candidate so far."""
        seconds, candidate = min(self._found.values(), key=lambda one: one[0], default=(math.inf, None))
        return Found(search, candidate if math.isfinite(seconds) else None, 1e3 * seconds, len(self._found))


def candidate_key(routine: Routine, parameters: Mapping[str, Any]) -> str:
    """A name of a routine with a setting."""
    return f"{routine.descriptor} {sorted(parameters.items())}"


def coordinate_descent(searched: SearchedLayer) -> Found:
    """Coordinate descent from the best settings of the short lists, to the nearest minimum or the end of the measurements."""
    costs = BudgetedCosts(searched)
    with suppress(_BudgetSpentError):
        descend(searched.graph, searched.pool, costs)
    return costs.found("coordinate descent")


def learned_search(searched: SearchedLayer, seed: int) -> Found:
    """Trees that recommend candidates. They learn from the search's own measurements alone.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    costs, processor = BudgetedCosts(searched), searched.processor
    tasks = [
        task
        for task in search_tasks(searched.graph, searched.pool, searched.pool.queue_of[0])
        if task.layer.workload == searched.layer.workload
    ]

    def measure(task: int, number: int) -> float | None:
        candidate = tasks[task].candidates[number]
        return costs.seconds(processor, candidate.routine, tasks[task].layer, candidate.parameters)

    caches = searched.costs.site.caches
    state = network_state(working_set(searched.graph), caches)
    usual = Schedule()
    schedule = Schedule(min(usual.initial, max(1, searched.most // 2)), runs=1_000_000, most=searched.most)
    with suppress(_BudgetSpentError):
        if tasks:
            points = [task.searched(state, caches) for task in tasks]
            Explorer(points, measure, machine_of(processor), None, schedule, seed).run()
    return costs.found("learned search")


def study_found(search: str, trials: Sequence[tuple[Candidate, float | None]]) -> Found:
    """What a study found.

    Args:
        search: its name.
        trials: what each measured, in ms; None: it failed.
    """
    times = [(math.inf if ms is None else ms, candidate) for candidate, ms in trials]
    ms, candidate = min(times, key=lambda one: one[0], default=(math.inf, None))
    different = {candidate_key(one.routine, one.parameters) for one, _ in trials}
    return Found(search, candidate if math.isfinite(ms) else None, ms, len(different))
