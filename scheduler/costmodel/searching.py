"""How thoroughly routine parameters are searched: which settings selection is offered.

default     the short lists that routines recommend, and what a thorough search found fastest before
learned     what measurements that the cost model recommends found (`Explorer`)
exhaustive  everything that a routine can be tuned by; takes hours for large networks
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import Parameters, Routine, distinct
from nnstretch.graph.layer import Layer, TensorType, chain_layer
from nnstretch.scheduler.candidates import LanePool, fusable_pairs
from nnstretch.scheduler.costmodel.explorer import Exploration, Explorer, Predictor, Schedule, Task, Told
from nnstretch.scheduler.costmodel.learned import machine_of
from nnstretch.scheduler.costmodel.samples import stored_best
from nnstretch.scheduler.costmodel.trees import Candidate
from nnstretch.scheduler.costs import CostModel
from nnstretch.scheduler.store import ProfileStore
from nnstretch.scheduler.units import UnitGraph

Search = Literal["default", "learned", "exhaustive"]
Settings = Callable[[Processor, Routine, Layer], Sequence[Parameters]]


class CostsWithSettings(CostModel):
    """The costs of another model, for settings of its own choice."""

    def __init__(self, costs: CostModel, settings: Settings) -> None:
        """`settings` says what selection is offered of a routine that supports a layer."""
        self._costs = costs
        self._settings = settings
        self.measured = costs.measured

    def settings(self, processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        return self._settings(processor, routine, layer)

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self._costs.seconds(processor, routine, layer, parameters)

    def handover(self, tensor: TensorType) -> float:
        return self._costs.handover(tensor)


def exhaustive(costs: CostModel) -> CostModel:
    """`costs` for all settings that routines have."""
    return CostsWithSettings(costs, lambda _, routine, layer: routine.search_space(layer))


def remembering(costs: CostModel, store: ProfileStore) -> CostModel:
    """`costs` for the routines' short lists, and for the setting that is fastest by the store if it is not among them."""
    best: dict[str, dict[tuple[str, str], Parameters]] = {}

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        usual = routine.parameter_space(layer)
        name = processor.fingerprint
        if name not in best:
            best[name] = stored_best(store, name)
        found = best[name].get((layer.workload, str(routine.descriptor)))
        if found is None or found in usual or found not in routine.search_space(layer):
            return usual
        return (*usual, found)

    return CostsWithSettings(costs, settings)


@dataclass(frozen=True)
class Explored:
    """What a learned search of a network found.

    Attributes:
        costs: those of the cost model that measured, for the settings that were measured.
        explorations: of every processor that has parameters to search, by its name.
    """

    costs: CostModel
    explorations: dict[str, Exploration]


@dataclass(frozen=True)
class _Option:
    """A candidate with the objects behind it."""

    routine: Routine
    layer: Layer
    parameters: Parameters

    def candidate(self) -> Candidate:
        return Candidate(self.layer.workload, str(self.routine.descriptor), self.parameters)


def explore(
    graph: UnitGraph,
    pool: LanePool,
    costs: CostModel,
    prior: Callable[[Processor], Predictor | None],
    schedule: Schedule | None = None,
    seed: int = 0,
    progress: Told | None = None,
) -> Explored:
    """Searches the parameters of all layers, and of all pairs that a routine may fuse, on every processor.

    Equal workloads are one task (ACLTuner, section 2.2), but settings with different layouts are different tasks, because
    neighbours tell them apart. Layers whose routines have nothing to search are left to selection.

    Args:
        graph: the network.
        pool: its lanes.
        costs: measures candidates.
        prior: predictions of a processor from before the search, if there are any.
        schedule: how many candidates are measured when.
        seed: of the random candidates.
        progress: told after every round.

    Raises:
        MissingExtraError: xgboost is not installed.
    """
    explorations: dict[str, Exploration] = {}
    measured: dict[tuple[str, str, str], list[Parameters]] = {}
    for lane in dict.fromkeys(pool.lane_of):
        processor = pool.processors[lane]
        tasks = _tasks(graph, pool, lane)
        if not tasks:
            continue

        def measure(task: int, number: int, processor: Processor = processor, tasks: _Tasks = tasks) -> float | None:
            option = tasks[task][0][number]
            return costs.seconds(processor, option.routine, option.layer, option.parameters)

        found = Explorer(
            [Task(tuple(option.candidate() for option in options), weight) for options, weight in tasks],
            measure,
            machine_of(processor),
            prior(processor),
            schedule or Schedule(),
            seed,
            progress=progress,
        ).run()
        explorations[processor.name] = found
        for options, _ in tasks:
            for option in options:
                measured.setdefault(_key(processor, option.routine, option.layer), [])
        for (task, number), seconds in found.measured.items():
            option = tasks[task][0][number]
            if seconds is not None:
                measured[_key(processor, option.routine, option.layer)].append(option.parameters)

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        key = _key(processor, routine, layer)
        return measured[key] if key in measured else routine.parameter_space(layer)

    return Explored(CostsWithSettings(costs, settings), explorations)


_Tasks = list[tuple[list[_Option], int]]


def _key(processor: Processor, routine: Routine, layer: Layer) -> tuple[str, str, str]:
    return processor.fingerprint, layer.workload, str(routine.descriptor)


def _tasks(graph: UnitGraph, pool: LanePool, lane: int) -> _Tasks:
    """Options of every task of a lane, with the number of layers that have the workload."""
    layers = {number: unit.layer for number, unit in enumerate(graph.units) if _may_run(graph, pool, number, lane)}
    wanted = [layer for layer in layers.values() if layer is not None]
    for head, tail in fusable_pairs(graph):
        first, second = layers.get(head), layers.get(tail)
        if first is not None and second is not None:
            wanted.append(chain_layer(first, second))
    weights: dict[str, int] = defaultdict(int)
    representatives: dict[str, Layer] = {}
    for layer in wanted:
        weights[layer.workload] += 1
        representatives.setdefault(layer.workload, layer)
    return [
        (options, weights[workload])
        for workload, layer in representatives.items()
        for options in _by_layouts(pool.processors[lane], layer)
    ]


def _may_run(graph: UnitGraph, pool: LanePool, number: int, lane: int) -> bool:
    placement = graph.units[number].placement
    return placement is None or placement >= len(pool.lane_of) or pool.lane_of[placement] == lane


def _by_layouts(processor: Processor, layer: Layer) -> list[list[_Option]]:
    """The options of a layer, those with equal layouts together; none if its routines have no more than their short lists."""
    routines = [routine for routine in processor.routines if routine.supports(layer)]
    if all(len(routine.search_space(layer)) == len(routine.parameter_space(layer)) for routine in routines):
        return []
    groups: dict[object, list[_Option]] = defaultdict(list)
    for routine in routines:
        for parameters in distinct(routine.parameter_space(layer), routine.search_space(layer)):
            groups[routine.layouts(layer, parameters)].append(_Option(routine, layer, parameters))
    return list(groups.values())
