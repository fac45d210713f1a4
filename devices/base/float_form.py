"""Routines for int8 layers that compute the layers' float forms (hybrid tuning: SoftNeuro, section VI-A).

Such a routine has the schema of float32: it reads and makes int8 tensors in layouts whose storage type is float32. Where a
neighbour wants integers, an adapt layer quantises or dequantises, with a measured cost like that of any layout change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nnstretch.devices.base.routine import Layout, Lowering, Parameters, Routine
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Layer, TensorType


class FloatFormRoutine(Routine):
    """A routine for float32 that computes int8 layers unrounded; named, tuned and laid out as that routine."""

    def __init__(self, routine: Routine) -> None:
        """Takes the routine for float32."""
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
        """Those of the routine; float32 is the storage type of int8 tensors."""
        inputs, outputs = self._routine.layouts(_form(layer), parameters)
        sources = [layer.type_of(index) for index in layer.activations]
        return tuple(map(_in_float32, inputs, sources)), tuple(map(_in_float32, outputs, layer.outputs))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return self._routine.lower(_form(layer), parameters)


def float_form_routines(routines: Iterable[Routine]) -> tuple[FloatFormRoutine, ...]:
    """A routine for float forms for each routine that computes in float32, in their order."""
    return tuple(FloatFormRoutine(one) for one in routines if one.descriptor.dtype == DEFAULT_DTYPE)


def _form(layer: Layer) -> Layer:
    form = float_form(layer)
    assert form is not None
    return form


def _in_float32(layout: Layout, tensor: TensorType) -> Layout:
    return layout if tensor.quantization is None else replace(layout, dtype=DEFAULT_DTYPE)
