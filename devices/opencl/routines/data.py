"""Concatenation, softmax and changes of layout."""

from __future__ import annotations

import math
from dataclasses import replace

from nnstretch.devices.base.routine import (
    REORDER,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    reorder_layouts,
)
from nnstretch.devices.opencl.routines.base import HALF, INPUT, OpenCLRoutine, PlainRoutine, ceil_div, is_image
from nnstretch.graph.layer import Layer


class ConcatBlocked(OpenCLRoutine):
    """Concatenation of blocked tensors along channels, of any number each."""

    algorithm = "concat_blocked"
    source = "concat.cl"
    ops = ("Concat",)
    stores_half = True

    def _supports(self, layer: Layer) -> bool:
        return not layer.constants and is_image(layer.outputs[0]) and layer.attributes["axis"] == 1

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `concat_blocked` per input, in the order that the kernel requires."""
        del parameters
        b = self.traits.block
        n, out_channels, h, w = layer.outputs[0].shape
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            channels = layer.type_of(index).shape[1]
            touched = ceil_div(to % b + channels, b)
            each = self.plane_per_item(h * w, touched * n)
            words = (self.blocks(channels), self.blocks(out_channels), h * w, to, each, *layer.activation.words())
            size = (ceil_div(h * w, each), touched, n)
            calls.append(self.call("concat_blocked", (Operand("input", index),), words, size))
            to += channels
        return Lowering(tuple(calls))


class ConcatPlain(PlainRoutine):
    """Concatenation of plain tensors of any rank along any axis."""

    algorithm = "concat_plain"
    source = "concat.cl"
    ops = ("Concat",)

    def _supports(self, layer: Layer) -> bool:
        return not layer.constants

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `concat_plain` per input."""
        del parameters
        axis = layer.attributes["axis"]
        assert isinstance(axis, int)
        shape = layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        calls: list[KernelCall] = []
        to = 0
        for index in layer.activations:
            row = layer.type_of(index).shape[axis] * inner
            words = (row, shape[axis] * inner, to, *layer.activation.words())
            calls.append(self.call("concat_plain", (Operand("input", index),), words, (outer,)))
            to += row
        return Lowering(tuple(calls))


class Softmax(PlainRoutine):
    """Softmax of a plain tensor along any axis."""

    algorithm = "softmax"
    source = "softmax.cl"
    ops = ("Softmax",)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `softmax`."""
        del parameters
        axis = layer.attributes["axis"]
        assert isinstance(axis, int)
        shape = layer.outputs[0].shape
        inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
        words = (shape[axis], inner, *layer.activation.words())
        return Lowering((self.call("softmax", (INPUT,), words, (inner, outer)),))


class Reorder(OpenCLRoutine):
    """Conversion between plain and blocked layout and between float32 and float16, or a copy (`reorder_layer`)."""

    algorithm = "reorder"
    source = "reorder.cl"
    ops = (REORDER,)

    def _supports(self, layer: Layer) -> bool:
        source, target = reorder_layouts(layer)
        known = all(o.block in (0, self.traits.block) and o.dtype in (None, HALF) for o in (source, target))
        return known and (source.block == target.block or is_image(layer.type_of(0)))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The layouts in the layer's attributes."""
        del parameters
        source, target = reorder_layouts(layer)
        return (source,), (target,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `to_blocked` or `to_plain`, or of `copy` if the order stays."""
        del parameters
        source, target = reorder_layouts(layer)
        if source.block == target.block:
            count = math.prod(source.storage_shape(layer.outputs[0].shape))
            each = self.flat_per_item(count)
            return Lowering((self._cast(self.call("copy", (INPUT,), (count, each), (ceil_div(count, each),)), layer),))
        n, c, h, w = layer.type_of(0).shape
        blocks = self.blocks(c)
        each = self.plane_per_item(h * w, blocks * n)
        kernel = "to_blocked" if target.block else "to_plain"
        call = self.call(kernel, (INPUT,), (c, h * w, each), (ceil_div(h * w, each), blocks, n))
        return Lowering((self._cast(call, layer),))

    def _cast(self, call: KernelCall, layer: Layer) -> KernelCall:
        """Adapts a call to the storage types of the layer's layouts."""
        halves = [layout.dtype == HALF for layout in reorder_layouts(layer)]
        if not any(halves) or call.launch is None:
            return call
        macros = zip(("FROM_HALVES", "TO_HALVES"), map(int, halves), strict=True)
        sizes = tuple(layout.element(layer.type_of(0)).bytes for layout in reorder_layouts(layer))
        return replace(call, launch=replace(call.launch, defines=(*call.launch.defines, *macros), item_bytes=sizes))
