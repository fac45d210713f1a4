"""Concatenation."""

from __future__ import annotations

import math
from itertools import accumulate

from nnstretch.devices.base.routine import Descriptor, KernelCall, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.routines.memory_bound.base import (
    BLOCK,
    OUTPUT,
    DataMovementRoutine,
    activate_in_place,
    stored_floats,
)
from nnstretch.devices.engine.binding.library import MAX_READS
from nnstretch.graph.layer import Layer


class ConcatRoutine(DataMovementRoutine):
    """Concat of run-time tensors along any axis; blocked ones may have any channel counts."""

    descriptor = Descriptor("cpu", "float32", "concat")
    operators = frozenset({"Concat"})

    def covers(self, layer: Layer) -> bool:
        """No constant among the inputs."""
        return not layer.constants and len(layer.activations) == len(layer.inputs)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """A call for every 16 inputs."""
        block, axis = parameters[BLOCK], layer.attributes["axis"]
        assert isinstance(axis, int)
        sizes = [layer.type_of(i).shape[axis] for i in layer.activations]
        # a block may be shared by two inputs unless all that follow one another end with a full one
        shared = block and axis == 1 and any(size % block for size in sizes[:-1])
        calls = _join_lanes(layer, sizes, block) if shared else _join_rows(layer, axis, block)
        floats = stored_floats(layer.outputs[0].shape, block)
        return Lowering((*calls, *activate_in_place(layer, floats)))


def _calls(kernel: str, sizes: list[int], fixed: tuple[int, ...], total: int) -> tuple[KernelCall, ...]:
    """Calls that write inputs of these sizes one behind the other; with `fixed`, offset, total, sizes."""
    offsets = [0, *accumulate(sizes)]
    return tuple(
        KernelCall(
            kernel,
            tuple(Operand("input", i) for i in range(first, min(first + MAX_READS, len(sizes)))),
            (OUTPUT,),
            (*fixed, offsets[first], total, *sizes[first : first + MAX_READS]),
        )
        for first in range(0, len(sizes), MAX_READS)
    )


def _join_rows(layer: Layer, axis: int, block: int) -> tuple[KernelCall, ...]:
    """By copying what lies behind the axis in memory, which is together in all inputs."""
    stored = [Layout(block).storage_shape(layer.type_of(i).shape) for i in layer.activations]
    total = Layout(block).storage_shape(layer.outputs[0].shape)
    bytes_each = layer.outputs[0].element.bytes
    rows = [math.prod(shape[axis:]) * bytes_each for shape in stored]
    return _calls("concat/rows", rows, (math.prod(total[:axis]),), math.prod(total[axis:]) * bytes_each)


def _join_lanes(layer: Layer, channels: list[int], block: int) -> tuple[KernelCall, ...]:
    """By moving channels between lanes."""
    images, total, height, width = layer.outputs[0].shape
    return _calls("concat/lanes", channels, (images, height * width, block), total)
