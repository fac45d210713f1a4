"""Costs corrected by concurrent runs: integrated profiling (SoftNeuro, section III-C) for several processors.

A layer that runs beside others takes longer or shorter than alone in a measurement: it finds its inputs elsewhere, and shares
caches, memory and power. On another device of the same kind, processors also have other speeds than those that a plan was
tuned for. So the seconds of the steps of a concurrent run, over the seconds by which it was planned, give a factor for every
layer on its processor. Parts of a layer (shares of its channels, bands of its rows) have the layer's factor; a layer that did
not run on a processor has the median factor of those that did.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate, CostModel, Outcome
from nnstretch.scheduler.plan.parts import whole_name
from nnstretch.scheduler.plan.schema import Plan

_JOINTS = re.compile(r"[+…]")
"""Between the first and last name in that of a fusion group."""
_ADAPT = "Reorder"


def _members(layer: str) -> list[str]:
    """Names of the first and last layer of a fusion group, by its name; empty for a single layer."""
    names = _JOINTS.split(layer)
    return names if len(names) > 1 and all(names) else []


@dataclass
class RunFactors:
    """Seconds inside concurrent runs over the seconds by which they were planned.

    Attributes:
        layers: (processor, layer) -> its factor.
        weights: (processor, layer) -> the planned seconds behind the factor, without any factor; 0 for a layer that ran as part
            of a fusion group only.
    """

    layers: dict[tuple[str, str], float] = field(default_factory=dict)
    weights: dict[tuple[str, str], float] = field(default_factory=dict)

    def of(self, processor: str, layer: str) -> float:
        """The factor of a layer, or part of one, on a processor; the processor's if it did not run there."""
        name = whole_name(layer)
        known = (self.layers.get((processor, one)) for one in (name, *_members(name)))
        found = next((factor for factor in known if factor is not None), None)
        return self.of_processor(processor) if found is None else found

    def of_processor(self, processor: str) -> float:
        """Median factor of the layers that ran on a processor, weighted by their planned seconds.

        That of all processors if none ran on this one, and 1 if none ran at all.
        """
        own = [key for key in self.layers if key[0] == processor] or list(self.layers)
        if not own:
            return 1.0
        own.sort(key=lambda key: self.layers[key])
        reached = np.cumsum([self.weights[key] for key in own])
        return self.layers[own[int(np.searchsorted(reached, reached[-1] / 2))]]

    def learn(self, plan: Plan, seconds: Sequence[float]) -> None:
        """Learns from a run.

        Args:
            plan: what ran, with costs that have these factors as they are before the call.
            seconds: of every step, without contention.
        """
        taken: dict[tuple[str, str], float] = defaultdict(float)
        planned: dict[tuple[str, str], float] = defaultdict(float)
        for step, queue, found in zip(plan.steps, plan.step_queues, seconds, strict=True):
            name = plan.queues[queue].processor
            if name and step.op != _ADAPT and step.cost_ms:
                key = (name, whole_name(step.layer))
                taken[key] += found
                planned[key] += step.cost_ms * 1e-3 / self.of(name, step.layer)
        for (name, layer), weight in planned.items():
            if taken[name, layer] > 0:
                self._keep(name, layer, taken[name, layer] / weight, weight)
                for member in _members(layer):
                    if (name, member) not in planned:
                        self._keep(name, member, taken[name, layer] / weight, 0.0)

    def _keep(self, processor: str, layer: str, factor: float, weight: float) -> None:
        self.layers[processor, layer], self.weights[processor, layer] = factor, weight


class RunCosts(CostModel):
    """A cost model whose seconds have the factors of concurrent runs."""

    def __init__(self, base: CostModel, factors: RunFactors, inside: Mapping[str, float]) -> None:
        """Measures nothing by itself.

        Args:
            base: seconds of layers alone.
            factors: of layers on processors.
            inside: processor -> time of layers in a network that it runs alone over their time alone; 1 if missing.
        """
        self._base, self._factors, self._inside = base, factors, inside
        self.measured, self.all_cross = base.measured, base.all_cross
        self._settings = base.settings

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self._scaled(processor, layer, self._base.seconds(processor, routine, layer, parameters))

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        return [self._scaled(processor, layer, one) for one in self._base.compare(processor, layer, candidates)]

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self._base.transfer(one, other, tensor)

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return self._base.error(processor, routine, layer, parameters)

    def outcome(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> Outcome:
        return self._base.outcome(processor, routine, layer, parameters)

    def _scaled(self, processor: Processor, layer: Layer, seconds: float | None) -> float | None:
        factor = self._inside.get(processor.name, 1.0) * self._factors.of(processor.name, layer.name)
        return None if seconds is None else factor * seconds
