"""Concat and Reshape of int8 tensors."""

from __future__ import annotations

import math

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of, ratio_bits
from nnstretch.devices.base.routine import KernelCall, Layout, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import ceil_div, is_image
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer


class Concat(Int8Routine):
    """Base class: concatenation; inputs get the quantization parameters of the output on the way."""

    source = "concat_int8.cl"
    ops = ("Concat",)

    def _supports(self, layer: Layer) -> bool:
        tensors = (tensor for tensor in (*layer.inputs, *layer.outputs) if tensor is not None)
        return not layer.constants and layer.activation == NO_ACTIVATION and all(map(is_quantized, tensors))

    @staticmethod
    def conversion(layer: Layer, index: int) -> tuple[int, int, int, int]:
        """Whether input `index` stays as it is, its zero point, the ratio of scales, and the zero point of the result."""
        source, result = parameters_of(layer.type_of(index)), parameters_of(layer.outputs[0])
        return int(source == result), source.zero_point, ratio_bits(source, result), result.zero_point


class ConcatBlocked(Concat):
    """Concatenation of blocked tensors along channels, of any number each."""

    algorithm = "concat_blocked"

    def _supports(self, layer: Layer) -> bool:
        return super()._supports(layer) and is_image(layer.outputs[0]) and layer.attributes["axis"] == 1

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call per input, in the order that the kernel requires."""
        b = self.traits.block
        n, out_channels, h, w = layer.outputs[0].shape
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            channels = layer.type_of(index).shape[1]
            touched = ceil_div(to % b + channels, b)
            each = self.plane_per_item(h * w, touched * n)
            words = (self.blocks(channels), self.blocks(out_channels), h * w, to, each, *self.conversion(layer, index))
            size = (ceil_div(h * w, each), touched, n)
            calls.append(self.call("concat_int8_blocked", (Operand("input", index),), words, size))
            to += channels
        return Lowering(tuple(calls))


class ConcatPlain(Concat):
    """Concatenation of plain tensors of any rank along any axis."""

    algorithm = "concat_plain"

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.plain,) * len(layer.activations), (self.plain,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axis, shape = layer.integer("axis"), layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            row = layer.type_of(index).shape[axis] * inner
            words = (row, shape[axis] * inner, to, *self.conversion(layer, index))
            calls.append(self.call("concat_int8_plain", (Operand("input", index),), words, (outer,)))
            to += row
        return Lowering(tuple(calls))


class Reshape(Int8Routine):
    """A copy between plain tensors of different shapes."""

    algorithm = "copy"
    source = "quantize.cl"
    ops = ("Reshape",)

    def _supports(self, layer: Layer) -> bool:
        source, result = layer.type_of(0), layer.outputs[0]
        same = source.elements == result.elements and source.quantization == result.quantization
        return same and is_quantized(source) and is_quantized(result) and layer.activation == NO_ACTIVATION

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.plain,), (self.plain,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return Lowering((self.flat("copy_bytes", layer.outputs[0].elements, ()),))


ROUTINES = (ConcatBlocked, ConcatPlain, Reshape)
