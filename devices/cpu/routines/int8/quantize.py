"""Layers of one int8 tensor, element by element: Quantize, Dequantize and Activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of, ratio_bits
from nnstretch.devices.algorithms.table import tabulate
from nnstretch.devices.base.routine import (
    INPUT,
    PLAIN,
    Descriptor,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
)
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, stored_floats
from nnstretch.graph.activation import NO_ACTIVATION, float_bits
from nnstretch.graph.dtypes import DEFAULT_DTYPE, HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import FUSION_GROUP, Layer
from nnstretch.graph.pointwise import is_pointwise


def quantize_call(parameters: QuantizationParameters, count: int) -> KernelCall:
    """The call that makes `count` integers of as many floats of input 0."""
    scale, zero = float_bits(parameters.scale), parameters.zero_point
    return kernel_call("int8/quantize", (INPUT,), count=count, scale=scale, zero=zero)


def dequantize_call(parameters: QuantizationParameters, count: int) -> KernelCall:
    """The call that makes `count` floats of as many integers of input 0."""
    scale, zero = float_bits(parameters.scale), parameters.zero_point
    return kernel_call("int8/dequantize", (INPUT,), count=count, scale=scale, zero=zero)


def requantize_call(
    source: QuantizationParameters,
    result: QuantizationParameters,
    row: int,
    *,
    outer: int = 1,
    offset: int = 0,
    total: int | None = None,
    read: Operand = INPUT,
) -> KernelCall:
    """The call that gives integers other parameters.

    Args:
        source: what the integers stand for.
        result: what those of the result stand for.
        row: integers of a row.
        outer: number of rows.
        offset: first integer of a row in a row of the output.
        total: integers of a row of the output; None: those of a row.
        read: what is read. With `offset` 0 and no `total`, it may be the output itself.
    """
    in_place = 0 if total is None and read == INPUT else None
    return kernel_call(
        "int8/requantize",
        (read,),
        in_place=in_place,
        outer=outer,
        row=row,
        offset=offset,
        total=row if total is None else total,
        x_zero=source.zero_point,
        scale=ratio_bits(source, result),
        zero=result.zero_point,
        low=LOWEST,
        high=HIGHEST,
    )


class QuantizeRoutine(MemoryBoundRoutine):
    """Quantize of float32 or of int8 with other parameters, and Dequantize."""

    descriptor = Descriptor("cpu", "int8", "quantize")
    operators = frozenset({"Quantize", "Dequantize"})

    def supports(self, layer: Layer) -> bool:
        """As the base class, but one side is float32."""
        if layer.op not in self.operators or 0 in layer.constants or layer.activation != NO_ACTIVATION:
            return False
        source, result = layer.type_of(0), layer.outputs[0]
        if layer.op == "Dequantize":
            admitted = is_quantized(source) and result.dtype == DEFAULT_DTYPE
        else:
            admitted = is_quantized(result) and (source.dtype == DEFAULT_DTYPE or is_quantized(source))
        return admitted and source.elements > 0 and self.covers(layer)

    def covers(self, layer: Layer) -> bool:
        return layer.type_of(0).shape == layer.outputs[0].shape

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        source, result = layer.type_of(0), layer.outputs[0]
        count = stored_floats(result.shape, parameters[BLOCK])
        if layer.op == "Dequantize":
            call = dequantize_call(parameters_of(source), count)
        elif source.dtype == DEFAULT_DTYPE:
            call = quantize_call(parameters_of(result), count)
        else:
            call = requantize_call(parameters_of(source), parameters_of(result), count)
        return Lowering((call,))


class QuantizeImageRoutine(MemoryBoundRoutine):
    """Quantize of plain float32 images of few channels to the blocked layout, in which convolutions read them."""

    descriptor = Descriptor("cpu", "int8", "quantize_image")
    operators = frozenset({"Quantize"})

    def supports(self, layer: Layer) -> bool:
        """As the base class, but the input is float32."""
        admitted = layer.op in self.operators and 0 not in layer.constants and layer.activation == NO_ACTIVATION
        return admitted and layer.type_of(0).dtype == DEFAULT_DTYPE and self.covers(layer)

    def covers(self, layer: Layer) -> bool:
        shape, limits = layer.type_of(0).shape, family("int8_quantize_image").limits("channels")
        few = len(shape) == 4 and math.prod(shape) > 0 and limits[0] <= shape[1] <= limits[1]
        return few and shape == layer.outputs[0].shape and is_quantized(layer.outputs[0])

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The engine's block alone."""
        return (MappingProxyType({BLOCK: self.block}),)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (PLAIN,), (Layout(parameters[BLOCK]),)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        images, channels, height, width = layer.type_of(0).shape
        result = parameters_of(layer.outputs[0])
        call = kernel_call(
            "int8/quantize_image",
            (INPUT,),
            images=images,
            channels=channels,
            pixels=height * width,
            block=parameters[BLOCK],
            scale=float_bits(result.scale),
            zero=result.zero_point,
        )
        return Lowering((call,))


class TableRoutine(MemoryBoundRoutine):
    """Activation of int8, and groups of layers that depend on one integer: a table has the result of each.

    Such groups are gates (x times the sigmoid of x) and functions spelt out; each of their steps is rounded.
    """

    descriptor = Descriptor("cpu", "int8", "table")
    operators = frozenset({"Activation", FUSION_GROUP})

    def covers(self, layer: Layer) -> bool:
        return is_pointwise(layer) and is_quantized(layer.type_of(0)) and is_quantized(layer.outputs[0])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = stored_floats(layer.outputs[0].shape, parameters[BLOCK])
        call = kernel_call("int8/table", (INPUT, Operand("constant", 0)), in_place=0, count=count)
        return Lowering((call,), (tabulate(layer),))


ROUTINES = (QuantizeImageRoutine, QuantizeRoutine, TableRoutine)
