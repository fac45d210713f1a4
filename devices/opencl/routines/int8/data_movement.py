"""Concat and Reshape of int8 tensors."""

from __future__ import annotations

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of, ratio_bits
from nnstretch.devices.base.routine import Lowering, Parameters
from nnstretch.devices.opencl.routines import data_movement
from nnstretch.devices.opencl.routines.base import PlainRoutine, is_image
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

    def words_of(self, layer: Layer, index: int) -> tuple[int, ...]:
        """Whether input `index` stays as it is, its zero point, the ratio of scales, and the zero point of the result."""
        source, result = parameters_of(layer.type_of(index)), parameters_of(layer.outputs[0])
        return int(source == result), source.zero_point, ratio_bits(source, result), result.zero_point


class ConcatBlocked(Concat, data_movement.ConcatBlocked):
    """Concatenation of blocked tensors along channels, of any number each."""

    kernel = "concat_int8_blocked"

    def _supports(self, layer: Layer) -> bool:
        return super()._supports(layer) and is_image(layer.outputs[0]) and layer.attributes["axis"] == 1


class ConcatPlain(Concat, data_movement.ConcatPlain):
    """Concatenation of plain tensors of any rank along any axis."""

    kernel = "concat_int8_plain"


class Reshape(Int8Routine, PlainRoutine):
    """A copy between plain tensors of different shapes."""

    algorithm = "copy"
    source = "quantize.cl"
    ops = ("Reshape",)

    def _supports(self, layer: Layer) -> bool:
        source, result = layer.type_of(0), layer.outputs[0]
        same = source.elements == result.elements and source.quantization == result.quantization
        return same and is_quantized(source) and is_quantized(result) and layer.activation == NO_ACTIVATION

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return Lowering((self.flat("copy_bytes", layer.outputs[0].elements, ()),))


ROUTINES = (ConcatBlocked, ConcatPlain, Reshape)
