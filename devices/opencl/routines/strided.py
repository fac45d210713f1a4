"""Transposes and slices."""

from __future__ import annotations

import math

from nnstretch.devices.algorithms.strided import CHANNELS_LAST, DIMENSIONS, StridedCopy, slices_blocks, strided_copy
from nnstretch.devices.base.routine import PLAIN, Layout, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import INPUT, OpenCLRoutine, PlainRoutine, ceil_div
from nnstretch.graph.layer import Layer


class ChannelsLast(OpenCLRoutine):
    """Transpose of a blocked tensor to plain N,H,W,C."""

    algorithm = "channels_last"
    source = "strided.cl"
    ops = ("Transpose",)

    def _supports(self, layer: Layer) -> bool:
        return layer.ints("perm") == CHANNELS_LAST

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Blocked in, plain out."""
        del layer, parameters
        return (self.blocked,), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `channels_last`."""
        del parameters
        n, c, h, w = layer.type_of(0).shape
        each = self.plane_per_item(h * w, n)
        words = (c, h * w, each, *layer.activation.words())
        return Lowering((self.call("channels_last", (INPUT,), words, (ceil_div(h * w, each), n)),))


class SliceBlocked(OpenCLRoutine):
    """A slice of blocked data that begins at a whole block of channels."""

    algorithm = "slice_blocked"
    source = "strided.cl"
    ops = ("Slice",)

    def _supports(self, layer: Layer) -> bool:
        return slices_blocks(layer, self.traits.block)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `strided_copy`."""
        del parameters
        return _lower(self, layer, strided_copy(layer, self.traits.block))


class Strided(PlainRoutine):
    """A transpose or slice of a plain tensor in at most six dimensions."""

    algorithm = "strided"
    source = "strided.cl"
    ops = ("Transpose", "Slice")

    def _supports(self, layer: Layer) -> bool:
        return len(strided_copy(layer).sizes) <= DIMENSIONS

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call of `strided_copy`."""
        del parameters
        return _lower(self, layer, strided_copy(layer))


def _lower(routine: OpenCLRoutine, layer: Layer, copy: StridedCopy) -> Lowering:
    full = copy.padded()
    words = (*full.sizes[1:], *full.strides, full.first, *layer.activation.words())
    rows = math.prod(full.sizes[:-1])
    return Lowering((routine.call("strided_copy", (INPUT,), words, (rows,)),))
