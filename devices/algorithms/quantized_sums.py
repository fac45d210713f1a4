"""Fusion groups of an int8 convolution and the Add that reads it, as a convolution with a residual."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of
from nnstretch.devices.algorithms.quantized_products import SUM_SCALE, SUM_ZERO
from nnstretch.devices.base.routine import Layout, Lowering, Operand
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import FUSION_GROUP, Layer

_RESIDUAL = 3
"""The input of a Conv that is added."""
_LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""Smallest number that is not flushed to 0."""


def _sources(layer: Layer) -> tuple[int, int]:
    """The inputs of the group that the convolution reads and that is added."""
    return layer.wiring[0][0], next(source for source in layer.wiring[1] if source >= 0)


def group_layouts(
    layer: Layer, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """The layouts of a group from those of its convolution with a residual."""
    of_input = dict(zip(_sources(layer), inputs, strict=True))
    return tuple(of_input[index] for index in sorted(of_input)), outputs


def group_lowering(layer: Layer, lowering: Lowering) -> Lowering:
    """The lowering of a group from that of its convolution with a residual: operands are the inputs of the group."""
    places = {Operand("input", i): Operand("input", j) for i, j in zip((0, _RESIDUAL), _sources(layer), strict=True)}
    calls = (
        replace(call, reads=tuple(None if read is None else places.get(read, read) for read in call.reads))
        for call in lowering.calls
    )
    return replace(lowering, calls=tuple(calls))


def conv_form(layer: Layer) -> Layer:
    """The convolution with a residual for a group; other layers are such a convolution already."""
    form = with_residual(layer) if layer.op == FUSION_GROUP else layer
    assert form is not None
    return form


def with_residual(group: Layer) -> Layer | None:
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
