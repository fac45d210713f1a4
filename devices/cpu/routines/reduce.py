"""Reductions and pads."""

from __future__ import annotations

import math

from nnstretch.devices.algorithms.pads import pad_sources, padded_axes, padded_plane
from nnstretch.devices.base.routine import INPUT, Descriptor, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import family
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, MemoryBoundRoutine, one_call
from nnstretch.graph.activation import float_bits
from nnstretch.graph.layer import Layer

MODES = ("sum", "mean", "max", "min", "l1", "l2", "squares", "product")
"""In the order of the kernel's numbers."""


class ReduceRoutine(MemoryBoundRoutine):
    """Reduce over neighbouring axes of a plain tensor."""

    descriptor = Descriptor("cpu", "float32", "reduce")
    operators = frozenset({"Reduce"})

    def covers(self, layer: Layer) -> bool:
        """The axes are neighbours."""
        axes = layer.ints("axes")
        neighbours = axes == tuple(range(axes[0], axes[-1] + 1))
        return 0 not in layer.constants and neighbours and layer.attributes["mode"] in MODES

    def blockable(self, layer: Layer) -> bool:
        return False

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        axes, shape = layer.ints("axes"), layer.type_of(0).shape
        first, end = axes[0], axes[-1] + 1
        sizes = {"outer": shape[:first], "length": shape[first:end], "inner": shape[end:]}
        mode = MODES.index(str(layer.attributes["mode"]))
        return one_call("reduce", layer, {"mode": mode, **{name: math.prod(part) for name, part in sizes.items()}})


class PadRoutine(MemoryBoundRoutine):
    """Pad of one axis, or of two neighbours; blocked images are padded in height and width."""

    descriptor = Descriptor("cpu", "float32", "pad")
    operators = frozenset({"Pad"})

    def covers(self, layer: Layer) -> bool:
        """The padded axes form a plane, and its sizes are within the kernels' limits."""
        mode, axes = layer.attributes["mode"], padded_axes(layer)
        if 0 in layer.constants or mode not in ("constant", "reflect", "edge", "wrap") or len(axes) > 2:
            return False
        if len(axes) == 2 and axes[1] != axes[0] + 1:
            return False
        # Pixels of the plane must be single elements, unless whole runs of them are pads.
        inner = math.prod(layer.type_of(0).shape[axes[-1] + 1 :]) if axes else 1
        if len(axes) == 2 and inner > 1 and mode != "constant":
            return False
        return max(padded_plane(layer, 0).out) <= family("pad").limits("out_height")[1]

    def blockable(self, layer: Layer) -> bool:
        """If an image is padded in height and width; padding lanes stay 0."""
        shape = layer.type_of(0).shape
        if len(shape) != 4 or min(padded_axes(layer), default=2) < 2:
            return False
        return layer.attributes["mode"] != "constant" or layer.attributes["value"] == 0 or shape[1] % self.block == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = parameters[BLOCK]
        planes, (height, width), (top, left), (out_height, out_width) = padded_plane(layer, block)
        sizes = {"planes": planes, "lanes": block or 1, "height": height, "width": width}
        sizes |= {"out_height": out_height, "out_width": out_width}
        mode, value = str(layer.attributes["mode"]), layer.attributes["value"]
        if mode == "constant":
            assert isinstance(value, float | int)
            return one_call("pad", layer, {**sizes, "top": top, "left": left, "value": float_bits(float(value))})
        tables = pad_sources(height, out_height, top, mode), pad_sources(width, out_width, left, mode)
        return one_call("resize/nearest", layer, sizes, (INPUT, Operand("constant", 0), Operand("constant", 1)), tables)


ROUTINES = (ReduceRoutine, PadRoutine)
