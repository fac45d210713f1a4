"""Layers that move elements without changing them: Concat, Transpose, Slice, Reshape, and the pseudo-layer Reorder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from nnstretch.devices.algorithms.quantized import is_quantized, parameters_of
from nnstretch.devices.algorithms.strided import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    DIMENSIONS,
    StridedCopy,
    moves_blocks,
    strided_copy,
)
from nnstretch.devices.base.routine import (
    INPUT,
    PLAIN,
    REORDER,
    Descriptor,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
    pipeline,
    reorder_layouts,
)
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.cpu.routines.int8.quantize import dequantize_call, quantize_call
from nnstretch.devices.cpu.routines.memory_bound import (
    BLOCK,
    MOVED_DTYPES,
    DataMovementRoutine,
    activate_in_place,
    stored_floats,
    to_blocked,
)
from nnstretch.devices.engine.binding.library import MAX_READS
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ElementType
from nnstretch.graph.layer import Layer, TensorType


class ConcatRoutine(DataMovementRoutine):
    """Concat along any axis; blocked tensors may have any channel counts. Constants are float32."""

    descriptor = Descriptor("cpu", "float32", "concat")
    operators = frozenset({"Concat"})

    def covers(self, layer: Layer) -> bool:
        """All inputs are there, and one at least is computed at run time."""
        present = len(layer.activations) + len(layer.constants) == len(layer.inputs)
        return present and bool(layer.activations) and (self._is_float32 or not layer.constants)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """A call for every 16 inputs."""
        block = parameters[BLOCK]
        operands = _operands(layer)
        joined = (
            join_lanes(layer, operands, block) if shares_blocks(layer, block) else _join_rows(layer, operands, block)
        )
        floats = stored_floats(layer.outputs[0].shape, block)
        constants = tuple(to_blocked(layer.constants[i], block) for i in sorted(layer.constants))
        return Lowering((*joined, *activate_in_place(layer, floats)), constants)


def shares_blocks(layer: Layer, block: int) -> bool:
    """Whether inputs of a Concat share a block of the output: one before the last ends inside a block."""
    channels = [layer.type_of(i).shape[1] for i in range(len(layer.inputs))] if block else []
    return layer.integer("axis") == 1 and any(size % block for size in channels[:-1])


def _operands(layer: Layer) -> list[Operand]:
    """What a Concat reads: inputs and constants in their order."""
    numbers = {index: number for number, index in enumerate(sorted(layer.constants))}
    return [
        Operand("constant", numbers[index]) if index in numbers else Operand("input", index)
        for index in range(len(layer.inputs))
    ]


def _parts(operands: Sequence[Operand], sizes: list[int]) -> Iterator[tuple[int, tuple[Operand, ...], list[int]]]:
    """Offset, inputs and sizes of each call, for inputs of these sizes."""
    offsets = [0, *accumulate(sizes)]
    for first in range(0, len(sizes), MAX_READS):
        part = slice(first, first + MAX_READS)
        yield offsets[first], tuple(operands[part]), sizes[part]


def _join_rows(layer: Layer, operands: Sequence[Operand], block: int) -> tuple[KernelCall, ...]:
    """Copies rows: the elements from the axis on, which are contiguous in all inputs."""
    axis = layer.integer("axis")
    stored = [Layout(block).storage_shape(layer.type_of(i).shape) for i in range(len(layer.inputs))]
    shape = Layout(block).storage_shape(layer.outputs[0].shape)
    each = layer.outputs[0].element.bytes
    outer, total = math.prod(shape[:axis]), math.prod(shape[axis:]) * each
    return tuple(
        kernel_call("concat/rows", inputs, outer=outer, offset=offset, total=total, sizes=sizes)
        for offset, inputs, sizes in _parts(operands, [math.prod(shape[axis:]) * each for shape in stored])
    )


def join_lanes(layer: Layer, operands: Sequence[Operand], block: int) -> tuple[KernelCall, ...]:
    """The calls that join the channels of a Concat's inputs, in blocks that these share.

    Args:
        layer: of float32, or of elements of one byte.
        operands: what holds the inputs, in their order.
        block: of the layout.
    """
    kernel = "concat/lanes" if layer.outputs[0].dtype == DEFAULT_DTYPE else "concat/lanes_bytes"
    channels = [layer.type_of(i).shape[1] for i in range(len(layer.inputs))]
    images, total, height, width = layer.outputs[0].shape
    return tuple(
        kernel_call(
            kernel,
            inputs,
            images=images,
            pixels=height * width,
            block=block,
            offset=offset,
            total=total,
            channels=part,
        )
        for offset, inputs, part in _parts(operands, channels)
    )


def copy_call(copy: StridedCopy, element: ElementType) -> KernelCall:
    """The call that makes a strided copy of input 0."""
    wide, size = copy.widened(element.bytes)
    padded = wide.padded()
    return kernel_call(
        "strided/copy", (INPUT,), sizes=padded.sizes, strides=padded.strides, first=padded.first, bytes=size
    )


class StridedRoutine(DataMovementRoutine):
    """Layers that are strided copies in at most `DIMENSIONS` dimensions.

    With a block, a transpose to N,H,W,C reads the blocked layout, one from N,H,W,C writes it, and the others read and write it.
    """

    descriptor = Descriptor("cpu", "float32", "strided")
    operators = frozenset({"Transpose", "Slice", "Expand", "DepthToSpace", "SpaceToDepth", "Rearrange"})

    def covers(self, layer: Layer) -> bool:
        """The input is computed at run time, and the copy needs at most `DIMENSIONS` dimensions."""
        return 0 not in layer.constants and len(strided_copy(layer).sizes) <= DIMENSIONS

    def blockable(self, layer: Layer) -> bool:
        """If the channels become the last axis or are it, or blocks are moved: whole ones, but where a kernel knows others."""
        if layer.op == "Transpose":
            order = layer.ints("perm")
            if order == CHANNELS_LAST:
                return self._is_float32 or layer.type_of(0).shape[1] % self.block == 0
            return order == CHANNELS_FIRST and layer.outputs[0].shape[1] % self.block == 0
        return moves_blocks(layer, self.block)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """A transpose reads or writes the plain layout."""
        layout = Layout(parameters[BLOCK])
        if layer.op != "Transpose":
            return (layout,), (layout,)
        return ((PLAIN,), (layout,)) if layer.ints("perm") == CHANNELS_FIRST else ((layout,), (PLAIN,))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call, and one more for an activation."""
        (_,), (target,) = self.layouts(layer, parameters)
        block = parameters[BLOCK]
        if layer.op == "Transpose" and block and layer.ints("perm") == CHANNELS_LAST and self._is_float32:
            images, channels, height, width = layer.type_of(0).shape
            call = kernel_call(
                "strided/channels_last", (INPUT,), images=images, channels=channels, pixels=height * width, block=block
            )
        else:
            call = copy_call(strided_copy(layer, block), layer.outputs[0].element)
        floats = stored_floats(layer.outputs[0].shape, target.block)
        return Lowering((call, *activate_in_place(layer, floats)))


def change_layout(tensor: TensorType, source: int, target: int) -> KernelCall:
    """The call that converts input 0 from block `source` to block `target`; float32 or bytes unless it is a copy."""
    copied = source == target and not (source and tensor.shape[1] % source)
    if copied:
        return kernel_call("reorder/copy", (INPUT,), count=tensor.bytes)
    images, channels, height, width = tensor.shape
    return kernel_call(
        "reorder/layout" if tensor.dtype == DEFAULT_DTYPE else "reorder/layout_bytes",
        (INPUT,),
        images=images,
        channels=channels,
        pixels=height * width,
        source=source,
        target=target,
    )


def keeps_channels(layer: Layer) -> bool:
    """Whether a Reshape gives the pixels of N,C,H,W other rows only."""
    source, target = layer.type_of(0).shape, layer.outputs[0].shape
    return len(source) == len(target) == 4 and source[:2] == target[:2]


class ReshapeRoutine(DataMovementRoutine):
    """Reshape: a copy, or a conversion between the plain and the blocked layout that replaces an adapt layer.

    With a block, both are blocked if the pixels of images get other rows; else the input is blocked and the output plain if the
    input has rank 4, else the reverse.
    """

    descriptor = Descriptor("cpu", "float32", "reshape")
    operators = frozenset({"Reshape"})

    def covers(self, layer: Layer) -> bool:
        return 0 not in layer.constants and layer.type_of(0).elements == layer.outputs[0].elements

    def blockable(self, layer: Layer) -> bool:
        """If either side has rank 4."""
        return 4 in (len(layer.type_of(0).shape), len(layer.outputs[0].shape))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Blocked on both sides only if images and channels stay."""
        layout = Layout(parameters[BLOCK])
        if keeps_channels(layer):
            return (layout,), (layout,)
        return ((layout,), (PLAIN,)) if len(layer.type_of(0).shape) == 4 else ((PLAIN,), (layout,))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call, and one more for an activation."""
        (source,), (target,) = self.layouts(layer, parameters)
        floats = math.prod(target.storage_shape(layer.outputs[0].shape))
        if source.block and target.block:
            copy = kernel_call("reorder/copy", (INPUT,), count=source.bytes(layer.type_of(0)))
            return Lowering((copy, *activate_in_place(layer, floats)))
        call = change_layout(layer.outputs[0] if target.block else layer.type_of(0), source.block, target.block)
        return Lowering((call, *activate_in_place(layer, floats)))


class ReorderRoutine(Routine):
    """Reorder: a conversion between layouts, or a copy. Int8 tensors may become float32, and the reverse."""

    descriptor = Descriptor("cpu", "float32", "reorder")

    def supports(self, layer: Layer) -> bool:
        """Copies of plain data of any type; conversions between plain and blocks of 4, 8 and 16, of float32 and of bytes.

        A storage type of its own is float32, of int8 that stands for such numbers.
        """
        if layer.op != REORDER or layer.outputs[0].elements == 0:
            return False
        (tensor,), layouts = layer.outputs, reorder_layouts(layer)
        if any(layout.dtype and not (layout.dtype == DEFAULT_DTYPE and is_quantized(tensor)) for layout in layouts):
            return False
        blocks = {layout.block for layout in layouts}
        if blocks == {0}:
            return tensor.dtype in MOVED_DTYPES
        known = set(family("reorder_layout").limits("source"))
        converted = tensor.dtype == DEFAULT_DTYPE or tensor.element.bytes == 1
        return converted and len(tensor.shape) == 4 and blocks <= known

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        source, target = reorder_layouts(layer)
        return (source,), (target,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call; two if both the type and the block change, where bytes are moved rather than floats."""
        (tensor,), (source, target) = layer.outputs, reorder_layouts(layer)
        if source.dtype == target.dtype:
            stored = replace(tensor, dtype=source.element(tensor).name)
            return Lowering((change_layout(stored, source.block, target.block),))
        convert = dequantize_call if target.dtype else quantize_call
        block = target.block if target.dtype else source.block
        converted = Lowering((convert(parameters_of(tensor), stored_floats(tensor.shape, block)),))
        if source.block == target.block:
            return converted
        moved = Lowering((change_layout(tensor, source.block, target.block),))
        stages = (moved, converted) if target.dtype else (converted, moved)
        return pipeline(stages, [Layout(block).bytes(tensor)])


_MOVING = (ConcatRoutine, StridedRoutine, ReshapeRoutine)
ROUTINES = tuple(partial(routine, dtype=dtype) for dtype in MOVED_DTYPES for routine in _MOVING)
