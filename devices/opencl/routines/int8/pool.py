"""Pooling of int8."""

from __future__ import annotations

from nnstretch.devices.algorithms.quantized import is_quantized, only_clips, parameters_of, ratio_bits, result_of
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import is_image
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.devices.opencl.routines.pool import window_words
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.dtypes import HIGHEST, LOWEST
from nnstretch.graph.layer import Layer

_MOST_TAPS = (1 << 31) // (HIGHEST - LOWEST) // 2
"""Integers whose sum an int32 holds."""


class PoolInt8(Int8Routine):
    """Maximum and average over windows, blocked in and out."""

    algorithm = "pool"
    source = "pool_int8.cl"
    ops = ("MaxPool", "AveragePool")

    def _supports(self, layer: Layer) -> bool:
        return _pools(layer) and min(layer.ints("pads")) >= 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        words, size = window_words(self, layer)
        if layer.op == "MaxPool":
            rest = KernelGeometry.of(layer).dilations
            return Lowering((self.call("max_pool_int8", (INPUT,), (*words, *rest), size),))
        padding = (*layer.ints("pads")[2:], int(layer.attributes["count_include_pad"] == 1))
        return Lowering((self.call("average_pool_int8", (INPUT,), (*words, *padding, *_rounding(layer)), size),))


class GlobalPoolInt8(Int8Routine):
    """Maximum or average over whole planes, blocked in and out."""

    algorithm = "global_pool"
    source = "pool_int8.cl"
    ops = ("GlobalPool",)

    def _supports(self, layer: Layer) -> bool:
        return _pools(layer) and layer.attributes["mode"] in ("average", "max")

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        n, c, h, w = layer.type_of(0).shape
        blocks, is_max = self.blocks(c), layer.attributes["mode"] == "max"
        words = (blocks, h * w, int(is_max), *_rounding(layer, 1 if is_max else h * w))
        return Lowering((self.call("global_pool_int8", (INPUT,), words, (blocks, n)),))


def _pools(layer: Layer) -> bool:
    """Whether integers are pooled whose sum an int32 holds; an activation only clips, and a maximum changes no parameters."""
    source, result = layer.type_of(0), layer.outputs[0]
    if not (is_image(source) and is_quantized(source) and is_quantized(result) and only_clips(layer.activation)):
        return False
    if layer.op == "MaxPool" and (source.quantization != result.quantization or layer.activation != NO_ACTIVATION):
        return False
    return KernelGeometry.of(layer).taps <= _MOST_TAPS


def _rounding(layer: Layer, divisor: int = 1) -> tuple[int, ...]:
    """The kernels' last parameters."""
    source, result = parameters_of(layer.type_of(0)), parameters_of(layer.outputs[0])
    rounding = result_of(layer)
    bounds = (rounding[name] for name in ("zero", "low", "high"))
    return source.zero_point, ratio_bits(source, result, divisor), *bounds


ROUTINES = (PoolInt8, GlobalPoolInt8)
