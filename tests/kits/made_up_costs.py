"""Costs of layers in round numbers, for tests of placement."""

from __future__ import annotations

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.costs import CostModel


class Work(CostModel):
    """Seconds by multiply-adds, the same on all processors; a layer without any takes a little. Meetings are free."""

    measured = True

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        return 1e-9 * layer.macs + 1e-7

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.0
