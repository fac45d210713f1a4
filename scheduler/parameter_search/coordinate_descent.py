"""Coordinate descent over routine parameters, from the best settings of the routines' short lists.

Short lists fit the caches and ports of the processors that they were made on. From their fastest setting, each step changes
one parameter by one step, the one that gains most, as long as that pays. Only layers with a relevant share of the network's
time are searched. The result is close to that of an exhaustive search, with a small part of its measurements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel, Settings, settings_key
from nnstretch.scheduler.lowering.candidates import queue_workloads, searchable_routines
from nnstretch.scheduler.lowering.units import UnitGraph, working_set
from nnstretch.scheduler.plan.schema import QueuePool
from nnstretch.support.progress import Progress

_SHARE = 0.01  # of the network's time; layers below are skipped
_PROMISING = 1.15  # times the fastest candidate of a layer; slower ones start no descent
_WORTH = 0.01  # smallest share that a step must save


@dataclass(frozen=True)
class _LayerCandidates:
    """The fastest setting of each routine and layouts for a layer, and the number of layers with its workload."""

    layer: Layer
    weight: int
    found: Sequence[tuple[float, Candidate]]

    @property
    def least(self) -> float:
        return min(seconds for seconds, _ in self.found)


def descend(graph: UnitGraph, pool: QueuePool, costs: CostModel, progress: Progress | None = None) -> Settings:
    """Searches parameters for the layers and fusion groups of a network on every processor.

    Args:
        graph: the network.
        pool: its queues.
        costs: measured costs.
        progress: called for every layer.

    Returns:
        Settings that are faster than those of the short lists.
    """
    costs = costs.in_network(working_set(graph))
    faster: dict[tuple[str, str, str], list[Parameters]] = defaultdict(list)
    for queue in dict.fromkeys(pool.queue_of):
        processor = pool.processors[queue]
        layers = [
            found
            for layer, weight in queue_workloads(graph, pool, queue)
            if (found := _candidates(processor, layer, weight, costs)) is not None
        ]
        total = sum(some.weight * some.least for some in layers)
        worth = [some for some in layers if some.weight * some.least >= _SHARE * total]
        for number, some in enumerate(worth):
            if progress:
                progress(number, len(worth), f"parameters of {some.layer.op}")
            for seconds, start in some.found:
                if seconds <= _PROMISING * some.least:
                    best = _minimum(processor, some.layer, start, seconds, costs)
                    if best != start:
                        faster[settings_key(processor, start.routine, some.layer)].append(best.parameters)

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        return faster.get(settings_key(processor, routine, layer), ())

    return settings


def neighbours(setting: Parameters, name: str, space: Sequence[Parameters]) -> list[Parameters]:
    """Settings of a space with one parameter a step higher or lower, and the others as close as possible.

    Parameters depend on each other (a block holds fewer tiles if these are larger), so few settings differ in one only.
    """
    values = {other[name] for other in space}
    above, below = (v for v in values if v > setting[name]), (v for v in values if v < setting[name])
    steps = [step for step in (min(above, default=None), max(below, default=None)) if step is not None]
    return [
        min((other for other in space if other[name] == step), key=lambda other: _distance(setting, other, name))
        for step in steps
    ]


def _distance(one: Parameters, other: Parameters, without: str) -> float:
    """Distance of two settings in all parameters but one: the sum of their ratios' logarithms."""
    return sum(abs(math.log((1 + one[name]) / (1 + other[name]))) for name in one if name != without)


def _candidates(processor: Processor, layer: Layer, weight: int, costs: CostModel) -> _LayerCandidates | None:
    """Candidates of the short lists; None if there is no larger space, or no candidate works."""
    routines = [r for r in searchable_routines(processor, layer) if costs.settings(processor, r, layer)]
    candidates = [Candidate(r, setting) for r in routines for setting in r.parameter_space(layer)]
    best: dict[tuple[object, ...], tuple[float, Candidate]] = {}
    for candidate, seconds in zip(candidates, costs.compare(processor, layer, candidates), strict=True):
        key = (candidate.routine.descriptor, *candidate.routine.layouts(layer, candidate.parameters))
        if seconds is not None and seconds < best.get(key, (math.inf,))[0]:
            best[key] = (seconds, candidate)
    return _LayerCandidates(layer, weight, list(best.values())) if best else None


def _minimum(processor: Processor, layer: Layer, start: Candidate, seconds: float, costs: CostModel) -> Candidate:
    """The local minimum by steepest descent from a candidate, in the same layouts."""
    routine = start.routine
    layouts = routine.layouts(layer, start.parameters)
    space = [setting for setting in routine.search_space(layer) if routine.layouts(layer, setting) == layouts]
    while True:
        settings = (near for name in start.parameters for near in neighbours(start.parameters, name, space))
        near = [Candidate(routine, setting) for setting in settings]
        # Together with the start, so that a disturbance affects all.
        found = costs.compare(processor, layer, [start, *near])
        times = [math.inf if t is None else t for t in found[1:]]
        best = min(times, default=math.inf)
        if best > (1 - _WORTH) * seconds:
            return start
        start, seconds = near[times.index(best)], best
