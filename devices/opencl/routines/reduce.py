"""Reductions and pads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnstretch.devices.algorithms.pads import pad_sources, padded_axes, padded_plane
from nnstretch.devices.base.routine import INPUT, NO_PARAMETERS, Layout, Lowering, Parameters
from nnstretch.devices.opencl.routines.base import OpenCLRoutine, PlainRoutine, ceil_div, constant, is_image
from nnstretch.graph.activation import float_bits
from nnstretch.graph.layer import Layer

_MODES = ("sum", "mean", "max", "min", "l1", "l2", "squares", "product")
_PADS = ("constant", "reflect", "edge", "wrap")


class Reduce(PlainRoutine):
    """Reduce over neighbouring axes of a plain tensor."""

    algorithm = "reduce"
    source = "reduce.cl"
    ops = ("Reduce",)

    def _supports(self, layer: Layer) -> bool:
        axes = layer.ints("axes")
        return 0 not in layer.constants and axes == tuple(range(axes[0], axes[-1] + 1))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axes, shape = layer.ints("axes"), layer.type_of(0).shape
        outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
        words = (_MODES.index(str(layer.attributes["mode"])), math.prod(shape[axes[0] : axes[-1] + 1]), inner)
        if inner == 1:
            return self.lowering("reduce_rows", layer, words, (outer,))
        return self.lowering("reduce", layer, words, (ceil_div(inner, self.traits.block), outer))


class Pad(OpenCLRoutine):
    """Pad of one axis, or of two neighbours.

    Parameters: `blocked` 1 or 0, for images that are padded in height and width.
    """

    algorithm = "pad"
    source = "pad.cl"
    ops = ("Pad",)

    def _supports(self, layer: Layer) -> bool:
        axes = padded_axes(layer)
        if 0 in layer.constants or layer.attributes["mode"] not in _PADS or len(axes) > 2:
            return False
        if len(axes) < 2:
            return True
        return axes[1] == axes[0] + 1 and (
            layer.attributes["mode"] == "constant" or math.prod(layer.type_of(0).shape[axes[1] + 1 :]) == 1
        )

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        in_planes = is_image(layer.type_of(0)) and min(padded_axes(layer), default=2) >= 2
        return ({"blocked": 1}, {"blocked": 0}) if in_planes else (NO_PARAMETERS,)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        layout = self.blocked if parameters.get("blocked") else self.plain
        return (layout,), (layout,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = self.traits.block if parameters.get("blocked") else 0
        planes, (height, width), (top, left), (out_height, out_width) = padded_plane(layer, block)
        mode, value = str(layer.attributes["mode"]), layer.attributes.get("value", 0.0)
        assert isinstance(value, float | int)
        tables = pad_sources(height, out_height, top, mode), pad_sources(width, out_width, left, mode)
        words = (block or 1, height, width, out_height, out_width, float_bits(float(value)))
        reads = (INPUT, constant(0), constant(1))
        return self.lowering("pad", layer, words, (out_height, planes), reads, tables)


ROUTINES = (Reduce, Pad)
