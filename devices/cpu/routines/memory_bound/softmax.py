"""Softmax."""

from __future__ import annotations

import math

from nnstretch.devices.base.routine import Descriptor, KernelCall, Lowering, Parameters
from nnstretch.devices.cpu.routines.memory_bound.base import INPUT, OUTPUT, LightRoutine
from nnstretch.graph.layer import Layer


class SoftmaxRoutine(LightRoutine):
    """Softmax over one axis of a plain tensor."""

    descriptor = Descriptor("cpu", "float32", "softmax")
    operators = frozenset({"Softmax"})

    def covers(self, layer: Layer) -> bool:
        """Every softmax."""
        return len(layer.type_of(0).shape) > 0

    def blockable(self, layer: Layer) -> bool:
        """Never: lanes that pad the channels would take part."""
        return False

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call."""
        shape, axis = layer.type_of(0).shape, layer.attributes["axis"]
        assert isinstance(axis, int)
        sizes = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        return Lowering((KernelCall("softmax", (INPUT,), (OUTPUT,), (*sizes, *layer.activation.words())),))
