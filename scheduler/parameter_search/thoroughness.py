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
from nnstretch.scheduler.lowering.units import UnitGraph, working_set
from nnstretch.scheduler.measurement.caches import CacheSizes, layer_state, network_state
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
from nnstretch.scheduler.plan.schema import QueuePool
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
class LayerTask:
    """Candidates for a layer with the same layouts, and the number of layers with its workload."""

    layer: Layer
    candidates: Sequence[Candidate]
    weight: int

    def searched(self, network: CacheState, caches: CacheSizes | None = None) -> SearchTask:
        """The task as points to predict in a network whose weights are in `network`, on a machine with these caches."""
        workload, state = self.layer.workload, layer_state(self.layer, network, caches)
        points = (Point(workload, str(c.routine.descriptor), c.parameters, state) for c in self.candidates)
        return SearchTask(tuple(points), self.weight)


def explore(
    graph: UnitGraph,
    pool: QueuePool,
    costs: CostModel,
    prior: Callable[[Processor], Predictor | None],
    schedule: Schedule | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    caches: CacheSizes | None = None,
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
        caches: of the machine that `costs` measures on; this machine's if None.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    needed = working_set(graph)
    costs = costs.in_network(needed)
    explorations: dict[str, Exploration] = {}
    measured: dict[tuple[str, str, str], list[Parameters]] = {}
    for queue in dict.fromkeys(pool.queue_of):
        processor = pool.processors[queue]
        tasks = search_tasks(graph, pool, queue)
        if not tasks:
            continue
        found = Explorer(
            [task.searched(network_state(needed, caches), caches) for task in tasks],
            _measure(costs, processor, tasks),
            machine_of(processor),
            prior(processor),
            schedule or Schedule(),
            seed,
            progress=progress,
        ).run()
        explorations[processor.name] = found
        for task in tasks:
            for candidate in task.candidates:
                measured.setdefault(settings_key(processor, candidate.routine, task.layer), [])
        for (place, number), seconds in found.measured.items():
            if seconds is not None:
                candidate = tasks[place].candidates[number]
                key = settings_key(processor, candidate.routine, tasks[place].layer)
                measured[key].append(candidate.parameters)

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        key = settings_key(processor, routine, layer)
        return measured[key] if key in measured else routine.parameter_space(layer)

    return ExploredSettings(settings, explorations)


def _measure(costs: CostModel, processor: Processor, tasks: Sequence[LayerTask]) -> Measure:
    """Measures a candidate together with the fastest of its task so far, so that a disturbance affects both."""
    leaders: dict[int, tuple[float, Candidate]] = {}

    def measure(task: int, number: int) -> float | None:
        candidate, leader = tasks[task].candidates[number], leaders.get(task)
        baselines = [leader[1]] if leader else []
        seconds = costs.compare(processor, tasks[task].layer, [*baselines, candidate])[-1]
        if seconds is not None and seconds < (leader[0] if leader else math.inf):
            leaders[task] = seconds, candidate
        return seconds

    return measure


def search_tasks(graph: UnitGraph, pool: QueuePool, queue: int) -> list[LayerTask]:
    """The tasks of a queue: candidates of each layer by layouts, if its routines have more than their short lists."""
    tasks: list[LayerTask] = []
    for layer, weight in queue_workloads(graph, pool, queue):
        groups: dict[object, list[Candidate]] = defaultdict(list)
        for routine in searchable_routines(pool.processors[queue], layer):
            for parameters in distinct(routine.parameter_space(layer), routine.search_space(layer)):
                groups[routine.layouts(layer, parameters)].append(Candidate(routine, parameters))
        tasks += [LayerTask(layer, candidates, weight) for candidates in groups.values()]
    return tasks
