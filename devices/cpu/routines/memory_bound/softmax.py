"""Softmax."""

from __future__ import annotations

import math

from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters
from nnstretch.devices.cpu.manifest import activation_parameters, kernel_call
from nnstretch.devices.cpu.routines.memory_bound.base import INPUT, OUTPUT, MemoryBoundRoutine
from nnstretch.graph.layer import Layer


class SoftmaxRoutine(MemoryBoundRoutine):
    """Softmax over one axis of a plain tensor."""

    descriptor = Descriptor("cpu", "float32", "softmax")
    operators = frozenset({"Softmax"})

    def covers(self, layer: Layer) -> bool:
        """Every softmax."""
        return len(layer.type_of(0).shape) > 0

    def blockable(self, layer: Layer) -> bool:
        """Never: padding lanes would take part in the sum."""
        return False

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call."""
        shape, axis = layer.type_of(0).shape, layer.attributes["axis"]
        assert isinstance(axis, int)
        call = kernel_call(
            "softmax",
            (INPUT,),
            (OUTPUT,),
            outer=math.prod(shape[:axis]),
            length=shape[axis],
            inner=math.prod(shape[axis + 1 :]),
            activation=activation_parameters(layer.activation),
        )
        return Lowering((call,))
