"""Kinds of parameter search: the settings of routines that selection considers.

default     the routines' short lists, coordinate descent from their best settings
            (`nnstretch.scheduler.parameter_search.coordinate_descent`), and the fastest settings of earlier searches
learned     settings that were measured because a learned cost model recommended them (`Explorer`)
exhaustive  the whole parameter space of every routine; takes hours for large networks
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine, distinct
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel, Settings, settings_key
from nnstretch.scheduler.costmodel.learned import machine_of
from nnstretch.scheduler.costmodel.trees import Point
from nnstretch.scheduler.lowering.candidates import queue_workloads, searchable_routines
from nnstretch.scheduler.lowering.queue_pool import QueuePool
from nnstretch.scheduler.lowering.units import UnitGraph, working_set
from nnstretch.scheduler.measurement.caches import layer_state, network_state
from nnstretch.scheduler.measurement.store.rows import CacheState
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.parameter_search.explorer import (
    Exploration,
    Explorer,
    Measure,
    Predictor,
    Schedule,
    SearchTask,
)
from nnstretch.support.progress import Progress

Search = Literal["default", "learned", "exhaustive"]


def all_settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
    """The whole parameter space of the routine."""
    return routine.search_space(layer)


def remembered_settings(store: ProfileStore) -> Settings:
    """The routines' short lists, and the store's fastest settings."""
    known: dict[str, dict[tuple[str, str], list[Parameters]]] = {}

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        usual = routine.parameter_space(layer)
        name = processor.fingerprint
        if name not in known:
            known[name] = store.fastest(name)
        fastest = known[name].get((layer.workload, str(routine.descriptor)), ())
        found = [setting for setting in fastest if setting not in usual]
        space = routine.search_space(layer) if found else ()
        return (*usual, *(setting for setting in found if setting in space))

    return settings


@dataclass(frozen=True)
class ExploredSettings:
    """Result of a learned search of a network.

    Attributes:
        settings: working settings that were measured; short lists for routines without a larger space.
        explorations: processor name -> its search, for processors with parameters to search.
    """

    settings: Settings
    explorations: dict[str, Exploration]


@dataclass(frozen=True)
class _Option:
    """A candidate of a layer."""

    routine: Routine
    layer: Layer
    parameters: Parameters

    def point(self, network: CacheState) -> Point:
        """The point to predict in a network whose weights are in `network`."""
        state = layer_state(self.layer, network)
        return Point(self.layer.workload, str(self.routine.descriptor), self.parameters, state)

    def candidate(self) -> Candidate:
        return Candidate(self.routine, self.parameters)


def explore(
    graph: UnitGraph,
    pool: QueuePool,
    costs: CostModel,
    prior: Callable[[Processor], Predictor | None],
    schedule: Schedule | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ExploredSettings:
    """Searches the parameters of all layers and fusion groups on every processor.

    Equal workloads are one task (ACLTuner, section 2.2); settings with different layouts are different tasks, since layouts
    affect neighbours. Layers whose routines have no larger space than their short lists are skipped.

    Args:
        graph: the network.
        pool: its queues.
        costs: measures candidates.
        prior: processor -> predictions from before the search, or None.
        schedule: numbers of measurements.
        seed: seed of the random candidates.
        progress: called after every round.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    needed = working_set(graph)
    costs = costs.in_network(needed)
    explorations: dict[str, Exploration] = {}
    measured: dict[tuple[str, str, str], list[Parameters]] = {}
    for queue in dict.fromkeys(pool.queue_of):
        processor = pool.processors[queue]
        tasks = _tasks(graph, pool, queue)
        if not tasks:
            continue
        found = Explorer(
            [SearchTask(tuple(o.point(network_state(needed)) for o in options), weight) for options, weight in tasks],
            _measure(costs, processor, tasks),
            machine_of(processor),
            prior(processor),
            schedule or Schedule(),
            seed,
            progress=progress,
        ).run()
        explorations[processor.name] = found
        for options, _ in tasks:
            for option in options:
                measured.setdefault(settings_key(processor, option.routine, option.layer), [])
        for (task, number), seconds in found.measured.items():
            option = tasks[task][0][number]
            if seconds is not None:
                measured[settings_key(processor, option.routine, option.layer)].append(option.parameters)

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        key = settings_key(processor, routine, layer)
        return measured[key] if key in measured else routine.parameter_space(layer)

    return ExploredSettings(settings, explorations)


_Tasks = list[tuple[list[_Option], int]]


def _measure(costs: CostModel, processor: Processor, tasks: _Tasks) -> Measure:
    """Measures an option together with the fastest of its task so far, so that a disturbance affects both."""
    leaders: dict[int, tuple[float, _Option]] = {}

    def measure(task: int, number: int) -> float | None:
        option = tasks[task][0][number]
        leader = leaders.get(task)
        baselines = [leader[1].candidate()] if leader else []
        seconds = costs.compare(processor, option.layer, [*baselines, option.candidate()])[-1]
        if seconds is not None and seconds < (leader[0] if leader else math.inf):
            leaders[task] = seconds, option
        return seconds

    return measure


def _tasks(graph: UnitGraph, pool: QueuePool, queue: int) -> _Tasks:
    """Options of every task of a queue, with the number of layers of the workload."""
    return [
        (options, weight)
        for layer, weight in queue_workloads(graph, pool, queue)
        for options in _by_layouts(pool.processors[queue], layer)
    ]


def _by_layouts(processor: Processor, layer: Layer) -> list[list[_Option]]:
    """Options of a layer, grouped by layouts; empty if its routines have no larger space than their short lists."""
    groups: dict[object, list[_Option]] = defaultdict(list)
    for routine in searchable_routines(processor, layer):
        for parameters in distinct(routine.parameter_space(layer), routine.search_space(layer)):
            groups[routine.layouts(layer, parameters)].append(_Option(routine, layer, parameters))
    return list(groups.values())
