"""Convolutions of int8 and the sum that reads them, as one: the residual blocks of networks that round what is added.

A quantised network rounds the result of a convolution before a residual is added, and rounds the sum again. The kernels do
both in registers, so the tensor between them is never stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.routine import Descriptor, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.routines.int8.convolution import (
    DirectInt8Convolution,
    Int8Convolution,
    RowsInt8Convolution,
)
from nnstretch.devices.cpu.routines.int8.rounding import is_quantized, parameters_of
from nnstretch.devices.cpu.routines.int8.weighted import SUM_SCALE, SUM_ZERO
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import FUSION_GROUP, Layer

_RESIDUAL = 3
"""The input of a Conv that is added."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Smallest number that is not flushed to 0."""


class _Summed(Int8Convolution):
    """Base class: a fusion group of a convolution and the Add that reads it, computed as a convolution with a residual."""

    def supports(self, layer: Layer) -> bool:
        form = _with_residual(layer) if layer.op == FUSION_GROUP else None
        return form is not None and super().supports(form)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().parameter_space(_form(layer))

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().search_space(_form(layer))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        inputs, outputs = super().layouts(_form(layer), parameters)
        of_input = dict(zip(_sources(layer), inputs, strict=True))
        return tuple(of_input[index] for index in sorted(of_input)), outputs

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The convolution's call, whose operands are the inputs of the group."""
        made = self._convolution(_form(layer), parameters)
        places = {
            Operand("input", i): Operand("input", j) for i, j in zip((0, _RESIDUAL), _sources(layer), strict=True)
        }
        calls = (
            replace(call, reads=tuple(None if read is None else places.get(read, read) for read in call.reads))
            for call in made.calls
        )
        return replace(made, calls=tuple(calls))

    @abstractmethod
    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        """The call for a convolution with a residual."""


def _sources(layer: Layer) -> tuple[int, int]:
    """The inputs of the group that the convolution reads and that is added."""
    return layer.wiring[0][0], next(source for source in layer.wiring[1] if source >= 0)


def _form(layer: Layer) -> Layer:
    """The convolution with a residual for a group; other layers are such a convolution already."""
    form = _with_residual(layer) if layer.op == FUSION_GROUP else layer
    assert form is not None
    return form


def _with_residual(group: Layer) -> Layer | None:
    """A convolution and an Add as one convolution with a residual, or None.

    How the sum is rounded before the residual is added stands in its attributes.
    """
    if [part.op for part in group.parts] != ["Conv", "Add"]:
        return None
    conv, total = group.parts
    if conv.activations != (0,) or conv.activation != NO_ACTIVATION or total.activations != (0, 1):
        return None
    between, result = conv.outputs[0], total.outputs[0]
    residual = total.type_of(1 if group.wiring[1][0] == -1 else 0)
    same_shape = between.shape == residual.shape == result.shape
    if sorted(group.wiring[1]) != [-1, 1] or not same_shape or not all(map(is_quantized, (between, residual, result))):
        return None
    scale = parameters_of(between).scale / parameters_of(result).scale
    if scale < _LEAST_SCALE:
        return None
    inputs = (
        *conv.inputs[:_RESIDUAL],
        *(None,) * (_RESIDUAL - len(conv.inputs)),
        residual,
        *conv.inputs[_RESIDUAL + 1 :],
    )
    attributes = {
        **conv.attributes,
        SUM_SCALE: parameters_of(between).scale,
        SUM_ZERO: parameters_of(between).zero_point,
    }
    return replace(
        conv,
        inputs=inputs,
        outputs=total.outputs,
        activation=total.activation,
        attributes=MappingProxyType(attributes),
    )


class SummedDirectConvolution(_Summed, DirectInt8Convolution):
    """`DirectInt8Convolution` of such a group."""

    descriptor = Descriptor("cpu", "int8", "direct_add")

    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        return DirectInt8Convolution.lower(self, form, parameters)


class SummedRowsConvolution(_Summed, RowsInt8Convolution):
    """`RowsInt8Convolution` of such a group."""

    descriptor = Descriptor("cpu", "int8", "rows_add")

    def _convolution(self, form: Layer, parameters: Parameters) -> Lowering:
        return RowsInt8Convolution.lower(self, form, parameters)


ROUTINES = (SummedRowsConvolution, SummedDirectConvolution)
