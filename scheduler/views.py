"""Layers that need no kernel, because what they make is bytes that are there already."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nnstretch.devices.routine import Layout
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer


def becomes_view(layer: Layer, inputs: Sequence[Layout], outputs: Sequence[Layout]) -> bool:
    """Whether a layer needs no kernel in these layouts, so that it costs nothing."""
    if layer.op == "Concat":
        return len({*inputs, *outputs}) == 1 and joinable(layer, outputs[0]) is not None
    return layer.op == "Reshape" and is_view(layer, inputs[0], outputs[0])


def joinable(layer: Layer, layout: Layout) -> tuple[int, ...] | None:
    """Byte offsets of a concat's inputs in its output if they lie one after the other, else None.

    That is so where all dimensions outside the axis are 1, all integers stand for the same numbers and, in a blocked layout,
    every input but the last fills its blocks.
    """
    axis = int(layer.attributes["axis"])  # type: ignore[arg-type]
    shapes = [t.shape for t in layer.inputs if t is not None]
    if len(shapes) != len(layer.inputs) or layer.constants or any(d != 1 for d in shapes[0][:axis]):
        return None
    if layer.activation != NO_ACTIVATION or len({t.grid for t in (*layer.inputs, *layer.outputs) if t is not None}) > 1:
        return None
    if layout.block and (axis != 1 or any(s[1] % layout.block for s in shapes[:-1])):
        return None
    sizes = [layout.bytes(layer.type_of(i)) for i in range(len(shapes))]
    return tuple(itertools.accumulate(sizes[:-1], initial=0))


def is_view(layer: Layer, before: Layout, after: Layout) -> bool:
    """Whether a reshape leaves all bytes where they are."""
    if after.block or after.dtype != before.dtype or layer.activation != NO_ACTIVATION:
        return False
    if not before.block:
        return True
    n, c, h, w = layer.type_of(0).shape
    return h == w == 1 and (n == 1 or c % before.block == 0)
