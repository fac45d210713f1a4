"""Better routine parameters than the short lists have, found by climbing from the best of these.

Short lists are right for the caches and ports of the processors that they were made on. From what is fastest among them, one
parameter is changed by one step, the one that gains most, for as long as that pays, in the layers that the network spends its
time in. What an exhaustive search would find is missed by little, for a small part of its measurements.
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
from nnstretch.scheduler.lowering.queue_pool import QueuePool
from nnstretch.scheduler.lowering.units import UnitGraph, working_set
from nnstretch.support.progress import Progress

_SHARE = 0.01  # of the network's time; layers that take less are left as they are
_PROMISING = 1.15  # times the fastest way to compute a layer; from slower ones nobody climbs
_WORTH = 0.01  # a step has to save this share


@dataclass(frozen=True)
class _Ways:
    """The fastest setting of every routine and layouts for a layer, and how many layers are like it."""

    layer: Layer
    weight: int
    found: Sequence[tuple[float, Candidate]]

    @property
    def least(self) -> float:
        return min(seconds for seconds, _ in self.found)


def descend(graph: UnitGraph, pool: QueuePool, costs: CostModel, progress: Progress | None = None) -> Settings:
    """Searches parameters for the layers of a network, and for its pairs that a routine may fuse, on every processor.

    Args:
        graph: the network.
        pool: its queues.
        costs: measured ones.
        progress: told how far it is.

    Returns:
        What was found to be faster than the short lists.
    """
    costs = costs.in_network(working_set(graph))
    faster: dict[tuple[str, str, str], list[Parameters]] = defaultdict(list)
    for queue in dict.fromkeys(pool.queue_of):
        processor = pool.processors[queue]
        ways = [
            ways
            for layer, weight in queue_workloads(graph, pool, queue)
            if (ways := _ways(processor, layer, weight, costs)) is not None
        ]
        total = sum(some.weight * some.least for some in ways)
        worth = [some for some in ways if some.weight * some.least >= _SHARE * total]
        for number, some in enumerate(worth):
            if progress:
                progress(number, len(worth), f"parameters of {some.layer.op}")
            for seconds, start in some.found:
                if seconds <= _PROMISING * some.least:
                    top = _descended(processor, some.layer, start, seconds, costs)
                    if top != start:
                        faster[settings_key(processor, start.routine, some.layer)].append(top.parameters)

    def settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        return faster.get(settings_key(processor, routine, layer), ())

    return settings


def neighbours(setting: Parameters, name: str, space: Sequence[Parameters]) -> list[Parameters]:
    """Settings of `space` with one parameter a step higher or lower, and the others as near as there are.

    Parameters depend on each other (a block holds fewer tiles if these are larger), so that few settings differ in one alone.
    """
    values = {other[name] for other in space}
    above, below = (v for v in values if v > setting[name]), (v for v in values if v < setting[name])
    steps = [step for step in (min(above, default=None), max(below, default=None)) if step is not None]
    return [
        min((other for other in space if other[name] == step), key=lambda other: _distance(setting, other, name))
        for step in steps
    ]


def _distance(one: Parameters, other: Parameters, without: str) -> float:
    """How far two settings are from each other in all parameters but one: the sum of their ratios' logarithms."""
    return sum(abs(math.log((1 + one[name]) / (1 + other[name]))) for name in one if name != without)


def _ways(processor: Processor, layer: Layer, weight: int, costs: CostModel) -> _Ways | None:
    """What short lists have for a layer that there is more to search of; None if there is not, or nothing works."""
    routines = searchable_routines(processor, layer)
    candidates = [Candidate(r, setting) for r in routines for setting in r.parameter_space(layer)]
    best: dict[tuple[object, ...], tuple[float, Candidate]] = {}
    for candidate, seconds in zip(candidates, costs.compare(processor, layer, candidates), strict=True):
        key = (candidate.routine.descriptor, *candidate.routine.layouts(layer, candidate.parameters))
        if seconds is not None and seconds < best.get(key, (math.inf,))[0]:
            best[key] = (seconds, candidate)
    return _Ways(layer, weight, list(best.values())) if best else None


def _descended(processor: Processor, layer: Layer, start: Candidate, seconds: float, costs: CostModel) -> Candidate:
    """The best that is reached from a candidate by the steepest way, in the same layouts."""
    routine = start.routine
    layouts = routine.layouts(layer, start.parameters)
    space = [setting for setting in routine.search_space(layer) if routine.layouts(layer, setting) == layouts]
    while True:
        settings = (near for name in start.parameters for near in neighbours(start.parameters, name, space))
        near = [Candidate(routine, setting) for setting in settings]
        # Beside the start, so that a slow moment counts for all.
        found = costs.compare(processor, layer, [start, *near])
        times = [math.inf if t is None else t for t in found[1:]]
        best = min(times, default=math.inf)
        if best > (1 - _WORTH) * seconds:
            return start
        start, seconds = near[times.index(best)], best
