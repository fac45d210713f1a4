"""Layers of one tensor, number by number: Quantize, Dequantize, Activation of int8, and copies."""

from __future__ import annotations

from nnstretch.devices.algorithms.quantized import has_usual_scale, is_quantized, parameters_of, ratio_bits
from nnstretch.devices.algorithms.table import tabulate
from nnstretch.devices.base.routine import INPUT, OUTPUT, KernelCall, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import DTYPE, ceil_div, constant
from nnstretch.devices.opencl.routines.elementwise import AnyLayout
from nnstretch.devices.opencl.routines.int8.base import Int8Routine
from nnstretch.graph.activation import NO_ACTIVATION, float_bits
from nnstretch.graph.dtypes import HIGHEST, LOWEST
from nnstretch.graph.layer import FUSION_GROUP, Layer
from nnstretch.graph.pointwise import is_pointwise


class Quantize(Int8Routine, AnyLayout):
    """Quantize of float32 or of int8 with other parameters, and Dequantize."""

    algorithm = "quantize"
    source = "quantize.cl"
    ops = ("Quantize", "Dequantize")

    def _supports(self, layer: Layer) -> bool:
        if layer.constants or layer.activation != NO_ACTIVATION or layer.type_of(0).shape != layer.outputs[0].shape:
            return False
        source, result = layer.type_of(0), layer.outputs[0]
        if layer.op == "Dequantize":
            return is_quantized(source) and result.dtype == DTYPE
        return is_quantized(result) and (is_quantized(source) or (source.dtype == DTYPE and has_usual_scale(result)))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        return Lowering((self._call(layer, self.numbers(layer, parameters)),))

    def _call(self, layer: Layer, count: int) -> KernelCall:
        source, result = layer.type_of(0), layer.outputs[0]
        if is_quantized(source) and is_quantized(result):
            before, after = parameters_of(source), parameters_of(result)
            words = (before.zero_point, ratio_bits(before, after), after.zero_point, LOWEST, HIGHEST)
            return self.flat("requantize", count, words)
        mine = parameters_of(source if layer.op == "Dequantize" else result)
        kernel = "dequantize" if layer.op == "Dequantize" else "quantize"
        types = {operand: tensor.dtype for operand, tensor in ((INPUT, source), (OUTPUT, result))}
        return self.flat(kernel, count, (float_bits(mine.scale), mine.zero_point), types)


class Table(Int8Routine, AnyLayout):
    """Activation of int8, and groups of layers that depend on one integer: a table has the result of each."""

    algorithm = "table"
    source = "quantize.cl"
    ops = ("Activation", FUSION_GROUP)

    def _supports(self, layer: Layer) -> bool:
        return is_pointwise(layer) and is_quantized(layer.type_of(0)) and is_quantized(layer.outputs[0])

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = self.numbers(layer, parameters)
        each = self.flat_per_item(count)
        call = self.call("look_up", (INPUT, constant(0)), (count, each), (ceil_div(count, each),))
        return Lowering((call,), (tabulate(layer),))


ROUTINES = (Quantize, Table)
