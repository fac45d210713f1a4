"""Concat of int8 tensors with different quantization parameters."""

from __future__ import annotations

import math
from itertools import accumulate

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of
from nnstretch.devices.base.routine import Descriptor, KernelCall, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import kernel_call
from nnstretch.devices.cpu.routines.data_movement import join_lanes, shares_blocks
from nnstretch.devices.cpu.routines.int8.quantize import requantize_call
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, stored_floats
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer


class RequantizingConcatRoutine(MemoryBoundRoutine):
    """Concat along any axis whose inputs get the output's quantization parameters on the way."""

    descriptor = Descriptor("cpu", "int8", "requantize_concat")
    operators = frozenset({"Concat"})

    def covers(self, layer: Layer) -> bool:
        """All inputs are computed at run time, and one at least has other parameters than the output."""
        tensors = [t for t in layer.inputs if t is not None]
        if len(layer.activations) != len(layer.inputs) or layer.activation != NO_ACTIVATION:
            return False
        quantized = all(map(is_quantized, (*tensors, *layer.outputs)))
        return quantized and any(t.quantization != layer.outputs[0].quantization for t in tensors)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """A call per input; where inputs share blocks of channels, these are joined once all have the same parameters."""
        block = parameters[BLOCK]
        if shares_blocks(layer, block):
            return _by_lanes(layer, block)
        return Lowering(tuple(_by_rows(layer, block)))


def _by_rows(layer: Layer, block: int) -> list[KernelCall]:
    axis, layout, result = layer.integer("axis"), Layout(block), layer.outputs[0]
    stored = [layout.storage_shape(layer.type_of(i).shape) for i in range(len(layer.inputs))]
    shape = layout.storage_shape(result.shape)
    rows = [math.prod(each[axis:]) for each in stored]
    outer, total = math.prod(shape[:axis]), math.prod(shape[axis:])
    calls: list[KernelCall] = []
    for index, (row, offset) in enumerate(zip(rows, accumulate(rows[:-1], initial=0), strict=True)):
        read, source = Operand("input", index), parameters_of(layer.type_of(index))
        if source == parameters_of(result):
            calls.append(kernel_call("concat/rows", (read,), outer=outer, offset=offset, total=total, sizes=[row]))
        else:
            calls.append(
                requantize_call(source, parameters_of(result), row, outer=outer, offset=offset, total=total, read=read)
            )
    return calls


def _by_lanes(layer: Layer, block: int) -> Lowering:
    result = parameters_of(layer.outputs[0])
    calls: list[KernelCall] = []
    operands: list[Operand] = []
    workspaces: list[int] = []
    for index in range(len(layer.inputs)):
        tensor, read = layer.type_of(index), Operand("input", index)
        if parameters_of(tensor) != result:
            count, place = stored_floats(tensor.shape, block), Operand("workspace", len(workspaces))
            call = requantize_call(parameters_of(tensor), result, count, total=count, read=read)
            calls.append(KernelCall(call.kernel, call.reads, (place,), call.parameters))
            workspaces.append(count)
            read = place
        operands.append(read)
    return Lowering((*calls, *join_lanes(layer, operands, block)), (), tuple(workspaces))


ROUTINES = (RequantizingConcatRoutine,)
