"""Views: layers whose outputs are bytes of their inputs, so that they need no kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.devices.engine.binding.library import BUFFER_ALIGNMENT
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer

_IMAGE_RANK = 4  # of the tensors that blocked layouts store


def becomes_view(layer: Layer, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> bool:
    """Whether a layer is a view in these layouts and costs nothing."""
    if layer.op == "Concat":
        return len({*inputs, *outputs}) == 1 and joinable(layer, outputs[0]) is not None
    return view_offset(layer, inputs[0], outputs[0]) is not None


def is_view(layer: Layer, blocked: Layout) -> bool:
    """Whether a layer is a view where all images are in a blocked layout, and other tensors in rows."""
    inputs, outputs = (
        [blocked if len(tensor.shape) == _IMAGE_RANK else PLAIN for tensor in tensors if tensor is not None]
        for tensors in (layer.inputs, layer.outputs)
    )
    return bool(inputs) and becomes_view(layer, inputs, outputs)


def joinable(layer: Layer, layout: Layout) -> tuple[int, ...] | None:
    """Byte offsets of a concat's inputs in its output if they lie one after the other, else None.

    That is so where all dimensions outside the axis are 1, all integers, if they are stored as such, stand for the same
    numbers, every input begins where a buffer may and, in a blocked layout, every input but the last fills its blocks.
    """
    axis = layer.integer("axis")
    shapes = [t.shape for t in layer.inputs if t is not None]
    if len(shapes) != len(layer.inputs) or layer.constants or any(d != 1 for d in shapes[0][:axis]):
        return None
    rounded = {t.quantization for t in (*layer.inputs, *layer.outputs) if t is not None and not layout.dtype}
    if layer.activation != NO_ACTIVATION or len(rounded) > 1:
        return None
    if layout.block and (axis != 1 or any(s[1] % layout.block for s in shapes[:-1])):
        return None
    sizes = [layout.bytes(layer.type_of(i)) for i in range(len(shapes))]
    offsets = tuple(itertools.accumulate(sizes[:-1], initial=0))
    return None if any(offset % BUFFER_ALIGNMENT for offset in offsets) else offsets


def view_offset(layer: Layer, before: Layout, after: Layout) -> int | None:
    """Where in the bytes of its input those of a layer begin, if they lie there as they should; else None.

    Such layers are reshapes, slices, and Dequantize of what is stored as floats already.
    """
    if layer.op == "Dequantize":
        return 0 if before.dtype == after.element(layer.outputs[0]).name and before.block == after.block else None
    if layer.op not in ("Reshape", "Slice") or after.dtype != before.dtype or layer.activation != NO_ACTIVATION:
        return None
    if layer.op == "Slice":
        return _slice_offset(layer, before, after)
    source, result = layer.type_of(0).shape, layer.outputs[0].shape
    if after.block:
        same_pixels = len(source) == len(result) == 4 and source[:2] == result[:2]
        return 0 if before == after and same_pixels else None
    if not before.block:
        return 0
    n, c, h, w = source
    return 0 if h == w == 1 and (n == 1 or c % before.block == 0) else None


def _slice_offset(layer: Layer, before: Layout, after: Layout) -> int | None:
    """Where the bytes of a slice begin, if it takes neighbours along one axis and there is but one of each axis outside it."""
    source, result = layer.type_of(0), layer.outputs[0]
    cut = [axis for axis, (a, b) in enumerate(zip(source.shape, result.shape, strict=True)) if a != b]
    starts = layer.ints("starts")
    if before != after or len(cut) > 1 or any(step != 1 for step in layer.ints("steps")):
        return None
    axis = cut[0] if cut else 0
    if any(size != 1 for size in source.shape[:axis]):
        return None
    if before.block and cut and (axis != 1 or starts[1] % before.block):
        return None
    offset = before.bytes(replace(source, shape=(*source.shape[:axis], starts[axis], *source.shape[axis + 1 :])))
    return None if offset % BUFFER_ALIGNMENT else offset
