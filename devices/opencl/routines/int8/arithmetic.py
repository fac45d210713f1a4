"""Sums, differences and products of two int8 tensors."""

from __future__ import annotations

from nnstretch.devices.algorithms.quantized import is_quantized, only_clips, parameters_of, result_of, scale_bits
from nnstretch.devices.base.routine import INPUT, Lowering, Operand, Parameters
from nnstretch.devices.opencl.routines.base import ceil_div, is_image
from nnstretch.devices.opencl.routines.elementwise import AnyLayout
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.graph.layer import Layer

_OPERATORS = ("Add", "Sub", "Mul")
_READS = (INPUT, Operand("input", 1))


class BinarySame(Int8Routine, AnyLayout):
    """Arithmetic of two tensors of one shape."""

    algorithm = "binary"
    source = "binary_int8.cl"
    ops = _OPERATORS

    def _supports(self, layer: Layer) -> bool:
        return _computes(layer) and layer.type_of(0).shape == layer.type_of(1).shape

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = self.numbers(layer, parameters)
        each = self.flat_per_item(count)
        call = self.call("binary_int8_same", _READS, (count, each, *_words(layer)), (ceil_div(count, each),))
        return Lowering((call,))


class BinaryChannel(Int8Routine):
    """Arithmetic of a blocked tensor and one number per channel, (N or 1, C, 1, 1)."""

    algorithm = "binary_channel"
    source = "binary_int8.cl"
    ops = _OPERATORS

    def _supports(self, layer: Layer) -> bool:
        if not _computes(layer) or not is_image(layer.type_of(0)):
            return False
        n, c = layer.type_of(0).shape[:2]
        return layer.type_of(1).shape in ((n, c, 1, 1), (1, c, 1, 1))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        blocks, plane, each, size = self.planes(layer)
        stride = blocks * self.traits.block if layer.type_of(1).shape[0] > 1 else 0
        words = (blocks, plane, stride, each, *_words(layer))
        return Lowering((self.call("binary_int8_channel", _READS, words, size),))


def _computes(layer: Layer) -> bool:
    """Whether both operands are computed at run time, the first has the result's shape, and an activation only clips."""
    tensors = (layer.type_of(0), layer.type_of(1), layer.outputs[0])
    fits = not layer.constants and layer.type_of(0).shape == layer.outputs[0].shape
    return fits and all(map(is_quantized, tensors)) and only_clips(layer.activation)


def _words(layer: Layer) -> tuple[int, ...]:
    """The kernels' parameters after those of the shape."""
    x, y, result = (parameters_of(tensor) for tensor in (layer.type_of(0), layer.type_of(1), layer.outputs[0]))
    is_product = layer.op == "Mul"
    y_scale = -y.scale if layer.op == "Sub" else y.scale
    scales = (scale_bits(x.scale * (y.scale if is_product else 1) / result.scale), scale_bits(y_scale / result.scale))
    rounding = result_of(layer)
    return (
        *(int(is_product), x.zero_point, y.zero_point, *scales),
        *(rounding[name] for name in ("zero", "low", "high")),
    )


ROUTINES = (BinarySame, BinaryChannel)
