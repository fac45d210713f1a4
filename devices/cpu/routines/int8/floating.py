"""int8 layers that are computed in float32: Softmax, and Resize that interpolates."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.devices.algorithms.quantized import is_quantized
from nnstretch.devices.base.routine import Descriptor, Lowering, Parameters
from nnstretch.devices.cpu.routines.eltwise import SoftmaxRoutine
from nnstretch.devices.cpu.routines.int8.converted import converted
from nnstretch.devices.cpu.routines.memory_bound import MemoryBoundRoutine
from nnstretch.devices.cpu.routines.pool import ResizeRoutine
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer, TensorType


class FloatingRoutine(MemoryBoundRoutine):
    """A layer with one input: its integers become float32, a routine for float32 computes, and the result is rounded."""

    descriptor = Descriptor("cpu", "int8", "floating")
    operators = frozenset({"Softmax", "Resize"})

    def __init__(self, isa: Isa) -> None:
        super().__init__(isa)
        self._routines: tuple[MemoryBoundRoutine, ...] = (SoftmaxRoutine(isa), ResizeRoutine(isa))

    def covers(self, layer: Layer) -> bool:
        """Nothing is moved only, and a routine for float32 computes the layer."""
        quantized = is_quantized(layer.type_of(0)) and is_quantized(layer.outputs[0])
        return quantized and layer.attributes.get("mode") != "nearest" and self._inner(layer) is not None

    def blockable(self, layer: Layer) -> bool:
        """As the routine for float32."""
        inner = self._inner(layer)
        return inner is not None and inner.blockable(_in_float32(layer))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The routine's calls between two that convert."""
        inner, floating = self._inner(layer), _in_float32(layer)
        assert inner is not None
        (before,), (after,) = inner.layouts(floating, parameters)
        return converted(inner.lower(floating, parameters), layer, before, after)

    def _inner(self, layer: Layer) -> MemoryBoundRoutine | None:
        floating = _in_float32(layer)
        return next((routine for routine in self._routines if routine.supports(floating)), None)


def _in_float32(layer: Layer) -> Layer:
    """The same layer on what the integers stand for."""
    inputs = tuple(None if t is None else TensorType(t.shape, DEFAULT_DTYPE) for t in layer.inputs)
    outputs = tuple(TensorType(t.shape, DEFAULT_DTYPE) for t in layer.outputs)
    return replace(layer, inputs=inputs, outputs=outputs)


ROUTINES = (FloatingRoutine,)
