"""Concatenation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

from nnstretch.devices.base.routine import Descriptor, KernelCall, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import kernel_call
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
        # inputs share a block of the output if one before the last ends inside a block
        shared = block and axis == 1 and any(size % block for size in sizes[:-1])
        calls = _join_lanes(layer, sizes, block) if shared else _join_rows(layer, axis, block)
        floats = stored_floats(layer.outputs[0].shape, block)
        return Lowering((*calls, *activate_in_place(layer, floats)))


def _parts(sizes: list[int]) -> Iterator[tuple[int, tuple[Operand, ...], list[int]]]:
    """Offset, inputs and sizes of each call, for inputs of these sizes."""
    offsets = [0, *accumulate(sizes)]
    for first in range(0, len(sizes), MAX_READS):
        part = sizes[first : first + MAX_READS]
        yield offsets[first], tuple(Operand("input", first + i) for i in range(len(part))), part


def _join_rows(layer: Layer, axis: int, block: int) -> tuple[KernelCall, ...]:
    """Copies rows: the elements from the axis on, which are contiguous in all inputs."""
    stored = [Layout(block).storage_shape(layer.type_of(i).shape) for i in layer.activations]
    shape = Layout(block).storage_shape(layer.outputs[0].shape)
    each = layer.outputs[0].element.bytes
    outer, total = math.prod(shape[:axis]), math.prod(shape[axis:]) * each
    return tuple(
        kernel_call("concat/rows", inputs, (OUTPUT,), outer=outer, offset=offset, total=total, sizes=sizes)
        for offset, inputs, sizes in _parts([math.prod(shape[axis:]) * each for shape in stored])
    )


def _join_lanes(layer: Layer, channels: list[int], block: int) -> tuple[KernelCall, ...]:
    """Moves channels between lanes."""
    images, total, height, width = layer.outputs[0].shape
    return tuple(
        kernel_call(
            "concat/lanes",
            inputs,
            (OUTPUT,),
            images=images,
            pixels=height * width,
            block=block,
            offset=offset,
            total=total,
            channels=part,
        )
        for offset, inputs, part in _parts(channels)
    )
