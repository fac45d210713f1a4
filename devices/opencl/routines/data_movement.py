"""Layers that move elements: Concat, Transpose, Slice, Reshape, and changes of layout."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nnstretch.devices.algorithms.quantized import has_usual_scale, is_quantized, parameters_of
from nnstretch.devices.algorithms.strided import CHANNELS_LAST, DIMENSIONS, StridedCopy, moves_blocks, strided_copy
from nnstretch.devices.base.routine import (
    BLOCKS,
    INPUT,
    PLAIN,
    REORDER,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    reorder_layouts,
)
from nnstretch.devices.opencl.routines.base import (
    DTYPE,
    HALF,
    INT8,
    OpenCLRoutine,
    PlainRoutine,
    ceil_div,
    constant,
    is_image,
)
from nnstretch.graph.activation import float_bits
from nnstretch.graph.layer import Layer

_QUAD = 4  # channels that an item moves between blocks


class ConcatBlocked(OpenCLRoutine):
    """Concatenation of blocked tensors along channels, of any number each."""

    algorithm = kernel = "concat_blocked"
    source = "concat.cl"
    ops = ("Concat",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return not layer.constants and is_image(layer.outputs[0]) and layer.attributes["axis"] == 1

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `kernel` per input, in the order that it requires."""
        b = self.traits.block
        n, out_channels, h, w = layer.outputs[0].shape
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            channels = layer.type_of(index).shape[1]
            touched = ceil_div(to % b + channels, b)
            each = self.plane_per_item(h * w, touched * n)
            words = (self.blocks(channels), self.blocks(out_channels), h * w, to, each, *self.words_of(layer, index))
            size = (ceil_div(h * w, each), touched, n)
            calls.append(self.call(self.kernel, (Operand("input", index),), words, size))
            to += channels
        return Lowering(tuple(calls))

    def words_of(self, layer: Layer, index: int) -> tuple[int, ...]:
        """What the kernel changes in input `index`: its last parameters."""
        return layer.activation.words()


class ConcatPlain(PlainRoutine):
    """Concatenation of plain tensors of any rank along any axis; some may be constant."""

    algorithm = kernel = "concat_plain"
    source = "concat.cl"
    ops = ("Concat",)

    def _supports(self, layer: Layer) -> bool:
        return bool(layer.activations)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axis, shape = layer.integer("axis"), layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        calls: list[KernelCall] = []
        constants: list[np.ndarray] = []
        to = 0
        for index in range(len(layer.inputs)):
            row = layer.type_of(index).shape[axis] * inner
            words = (row, shape[axis] * inner, to, *self.words_of(layer, index))
            operand = Operand("input", index)
            if index in layer.constants:
                operand = constant(len(constants))
                constants.append(self.stored(layer.constants[index]))
            calls.append(self.call(self.kernel, (operand,), words, (outer,)))
            to += row
        return Lowering(tuple(calls), tuple(constants))

    def words_of(self, layer: Layer, index: int) -> tuple[int, ...]:
        """What the kernel changes in input `index`: its last parameters."""
        return layer.activation.words()


class Reshape(PlainRoutine):
    """A copy between plain tensors of different shapes."""

    algorithm = "copy"
    source = "elementwise.cl"
    ops = ("Reshape",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return layer.type_of(0).elements == layer.outputs[0].elements

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        count = layer.outputs[0].elements
        each = self.flat_per_item(count)
        return self.lowering("map", layer, (count, each), (ceil_div(count, each),))


class Reorder(OpenCLRoutine):
    """Conversion between layouts and storage types, or a copy (`reorder_layer`); of float32 and int8 tensors.

    Tensors that are stored as float16, or int8 tensors as floats, may change to each of their other types. One of two blocks
    that differ is the device's own; the other is that of another processor, which the tensor comes from or goes to.
    """

    algorithm = "reorder"
    source = "reorder.cl"
    ops = (REORDER,)

    def supports(self, layer: Layer) -> bool:
        tensor = layer.type_of(0)
        return layer.op == REORDER and tensor.elements > 0 and self._supports(layer)

    def _supports(self, layer: Layer) -> bool:
        tensor, (source, target) = layer.type_of(0), reorder_layouts(layer)
        stored = {layout.element(tensor).name for layout in (source, target)}
        known = all(o.block in (0, *BLOCKS) for o in (source, target))
        if is_quantized(tensor):
            rounds = target.element(tensor).name == INT8 and stored != {INT8}
            kept = stored <= {INT8, DTYPE, HALF} and (not rounds or has_usual_scale(tensor))
        else:
            kept = stored <= {DTYPE, HALF} if tensor.dtype == DTYPE else tensor.dtype == INT8 and stored == {INT8}
        own = {source.block, target.block} & {self.traits.block} or source.block == target.block == 0
        return known and kept and bool(own) and (source.block == target.block or is_image(tensor))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        source, target = reorder_layouts(layer)
        return (source,), (target,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `to_blocked`, `to_plain` or `between_blocks`, or of `copy` if the order stays."""
        source, target = reorder_layouts(layer)
        rounding = _rounding(layer)
        if source.block == target.block:
            count = math.prod(source.storage_shape(layer.outputs[0].shape))
            each = self.flat_per_item(count)
            call = self.call("copy", (INPUT,), (count, each, *rounding), (ceil_div(count, each),))
        elif source.block and target.block:
            call = self._between(layer, source.block, target.block)
        else:
            _, plane, each, size = self.planes(layer)
            kernel = "to_blocked" if target.block else "to_plain"
            words = (layer.type_of(0).shape[1], plane, each, *rounding)
            call = self.call(kernel, (INPUT,), words, size)
        return Lowering((self._cast(call, layer),))

    def _between(self, layer: Layer, source: int, target: int) -> KernelCall:
        """The call that changes the block."""
        n, c, h, w = layer.outputs[0].shape
        quads = ceil_div(c, target) * target // _QUAD
        each = self.per_item(h * w, quads * n)
        words = (c, h * w, source, target, each, *_rounding(layer))
        return self.call("between_blocks", (INPUT,), words, (ceil_div(h * w, each), quads, n))

    def _cast(self, call: KernelCall, layer: Layer) -> KernelCall:
        """Adapts a call to the storage types of the layer's layouts."""
        elements = [layout.element(layer.type_of(0)) for layout in reorder_layouts(layer)]
        if all(element.name == DTYPE for element in elements) or call.launch is None:
            return call
        if all(element.name == INT8 for element in elements):
            macros = [("BYTES", 1)]
        else:
            sides = list(zip(("FROM", "TO"), elements, strict=True))
            macros = [(f"{side}_HALVES", int(one.name == HALF)) for side, one in sides]
            macros += [(f"{side}_INT8", 1) for side, one in sides if one.name == INT8]
        sizes = tuple(element.bytes for element in elements)
        return replace(call, launch=replace(call.launch, defines=(*call.launch.defines, *macros), item_bytes=sizes))


def _rounding(layer: Layer) -> tuple[int, int]:
    """The kernels' last parameters: scale and zero point of a tensor that becomes int8, or was; else zeros."""
    tensor = layer.type_of(0)
    types = {layout.element(tensor).name for layout in reorder_layouts(layer)}
    if INT8 not in types or types == {INT8}:
        return 0, 0
    return float_bits(parameters_of(tensor).scale), parameters_of(tensor).zero_point


class ChannelsLast(OpenCLRoutine):
    """Transpose of a blocked tensor to plain N,H,W,C."""

    algorithm = "channels_last"
    source = "strided.cl"
    ops = ("Transpose",)

    def _supports(self, layer: Layer) -> bool:
        return layer.ints("perm") == CHANNELS_LAST

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.blocked,), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        n, c, h, w = layer.type_of(0).shape
        each = self.plane_per_item(h * w, n)
        return self.lowering("channels_last", layer, (c, h * w, each), (ceil_div(h * w, each), n))


class Strided(PlainRoutine):
    """A strided copy of a plain tensor in at most six dimensions."""

    algorithm = "strided"
    source = "strided.cl"
    ops: tuple[str, ...] = ("Transpose", "Slice", "Expand", "DepthToSpace", "SpaceToDepth", "Rearrange")

    def _supports(self, layer: Layer) -> bool:
        return len(self._copy(layer).sizes) <= DIMENSIONS

    def _copy(self, layer: Layer) -> StridedCopy:
        return strided_copy(layer)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        full = self._copy(layer).padded()
        words = (*full.sizes[1:], *full.strides, full.first)
        return self.lowering("strided_copy", layer, words, (math.prod(full.sizes[:-1]),))


class MoveBlocks(Strided):
    """A copy of whole blocks of channels, or of a slice that begins at one."""

    algorithm = "move_blocks"
    ops = ("Slice", "DepthToSpace", "SpaceToDepth", "Rearrange")
    layouts = OpenCLRoutine.layouts

    def _supports(self, layer: Layer) -> bool:
        return moves_blocks(layer, self.traits.block)

    def _copy(self, layer: Layer) -> StridedCopy:
        return strided_copy(layer, self.traits.block)


ROUTINES = (ConcatBlocked, ConcatPlain, ChannelsLast, MoveBlocks, Strided, Reshape)
