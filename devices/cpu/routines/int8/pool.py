"""Pooling and nearest resizing of int8."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.algorithms.quantized import is_quantized, only_clips, parameters_of, ratio_bits, result_of
from nnstretch.devices.algorithms.resize import has_tables, resize_tables
from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import INPUT, OUTPUT, Descriptor, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.cpu.routines.int8.quantize import requantize_call
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, planes_of, stored_floats
from nnstretch.devices.cpu.routines.pool import AVERAGE, MAXIMUM, PoolRoutine, plane_sizes, window_parameters
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer


class Int8PoolRoutine(PoolRoutine):
    """MaxPool, AveragePool and GlobalPool over N,C,H,W, with exact sums."""

    descriptor = Descriptor("cpu", "int8", "pool")

    def covers(self, layer: Layer) -> bool:
        """As in float32, for windows whose sum an int32 holds; an activation only clips."""
        source, result = layer.type_of(0), layer.outputs[0]
        if not (is_quantized(source) and is_quantized(result) and only_clips(layer.activation)):
            return False
        if not super().covers(layer):
            return False
        if layer.op == "MaxPool" and (source.quantization != result.quantization or layer.activation != NO_ACTIVATION):
            return False
        return KernelGeometry.of(layer).taps <= family("int8_pool_global").limits("pixels")[1]

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = parameters[BLOCK]
        source, result = parameters_of(layer.type_of(0)), parameters_of(layer.outputs[0])
        rounding = {"x_zero": source.zero_point, **result_of(layer)}
        if layer.op == "GlobalPool":
            planes = planes_of(layer.type_of(0).shape, block)
            mode = MAXIMUM if layer.attributes["mode"] == "max" else AVERAGE
            scale = ratio_bits(source, result, planes.pixels if mode == AVERAGE else 1)
            sizes = {"rows": planes.planes, "pixels": planes.pixels, "lanes": planes.lanes}
            call = kernel_call("int8/pool_global", (INPUT,), mode=mode, **sizes, scale=scale, **rounding)
        else:
            scale, window = ratio_bits(source, result), window_parameters(layer, block)
            call = kernel_call("int8/pool_window", (INPUT,), **window, scale=scale, **rounding)
        return Lowering((call,))


class Int8ResizeRoutine(MemoryBoundRoutine):
    """Nearest Resize over H and W."""

    descriptor = Descriptor("cpu", "int8", "resize")
    operators = frozenset({"Resize"})

    def covers(self, layer: Layer) -> bool:
        """Rank 4, known coordinate and rounding modes, and no activation."""
        quantized = is_quantized(layer.type_of(0)) and is_quantized(layer.outputs[0])
        plain = layer.attributes["mode"] == "nearest" and layer.activation == NO_ACTIVATION
        return quantized and plain and has_tables(layer)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call, and one more for other quantization parameters."""
        block, (rows, columns) = parameters[BLOCK], resize_tables(layer)
        tables = tuple(np.ascontiguousarray(table.indices[:, 0]) for table in (rows, columns))
        reads = (INPUT, *(Operand("constant", i) for i in range(len(tables))))
        calls = [kernel_call("resize/nearest_bytes", reads, **plane_sizes(layer, block))]
        source, result = parameters_of(layer.type_of(0)), parameters_of(layer.outputs[0])
        if source != result:
            count = stored_floats(layer.outputs[0].shape, block)
            calls.append(requantize_call(source, result, count, read=OUTPUT))
        return Lowering(tuple(calls), tables)


ROUTINES = (Int8PoolRoutine, Int8ResizeRoutine)
