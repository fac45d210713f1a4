"""Routines for int8 layers that compute the layers' float forms (hybrid tuning: SoftNeuro, section VI-A).

Such a routine has the schema of a float type: it reads and makes int8 tensors in layouts whose storage type is float32 or, of
devices that store float16, that. Where a neighbour wants integers, an adapt layer quantises or dequantises, with a measured
cost like that of any layout change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Lowering, Parameters, Routine
from nnstretch.graph.dtypes import DEFAULT_DTYPE, FLOAT16
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Layer, TensorType

_FLOATS = frozenset({DEFAULT_DTYPE, FLOAT16})


class FloatFormRoutine(Routine):
    """A routine for float32 layers that computes int8 layers unrounded; named, tuned and laid out as that routine."""

    def __init__(self, routine: Routine) -> None:
        """Takes the routine for float32 layers."""
        self._routine = routine
        self.descriptor, self.threads, self.features = routine.descriptor, routine.threads, routine.features

    def supports(self, layer: Layer) -> bool:
        """Whether the layer is int8 and the routine computes its float form."""
        form = float_form(layer)
        return form is not None and self._routine.supports(form)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._routine.parameter_space(_form(layer))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return self._routine.search_space(_form(layer))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Those of the routine; int8 tensors are stored in its type, float32 unless it says another."""
        inputs, outputs = self._routine.layouts(_form(layer), parameters)
        sources = [layer.type_of(index) for index in layer.activations]
        return tuple(map(_as_floats, inputs, sources)), tuple(map(_as_floats, outputs, layer.outputs))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return self._routine.lower(_form(layer), parameters)


def float_form_routines(routines: Iterable[Routine]) -> tuple[FloatFormRoutine, ...]:
    """A routine for float forms for each routine of float32 or float16, in their order."""
    return tuple(FloatFormRoutine(one) for one in routines if one.descriptor.dtype in _FLOATS)


def computes_float_forms(processor: Processor) -> bool:
    """Whether a processor has routines for float forms."""
    return any(isinstance(one, FloatFormRoutine) for one in processor.routines)


def _form(layer: Layer) -> Layer:
    form = float_form(layer)
    assert form is not None
    return form


def _as_floats(layout: Layout, tensor: TensorType) -> Layout:
    """The layout of a tensor whose numbers are stored as floats."""
    if tensor.quantization is None or layout.dtype is not None:
        return layout
    return replace(layout, dtype=DEFAULT_DTYPE)
