"""Reductions and pads."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

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
        mode, axes = layer.attributes["mode"], _padded(layer)
        if 0 in layer.constants or mode not in ("constant", "reflect", "edge", "wrap") or len(axes) > 2:
            return False
        if len(axes) == 2 and axes[1] != axes[0] + 1:
            return False
        # Pixels of the plane must be single elements, unless whole runs of them are pads.
        inner = math.prod(layer.type_of(0).shape[axes[-1] + 1 :]) if axes else 1
        if len(axes) == 2 and inner > 1 and mode != "constant":
            return False
        return max(_plane(layer, 0).out) <= family("pad").limits("out_height")[1]

    def blockable(self, layer: Layer) -> bool:
        """If an image is padded in height and width; padding lanes stay 0."""
        shape = layer.type_of(0).shape
        if len(shape) != 4 or min(_padded(layer), default=2) < 2:
            return False
        return layer.attributes["mode"] != "constant" or layer.attributes["value"] == 0 or shape[1] % self.block == 0

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = parameters[BLOCK]
        planes, (height, width), (top, left), (out_height, out_width) = _plane(layer, block)
        sizes = {"planes": planes, "lanes": block or 1, "height": height, "width": width}
        sizes |= {"out_height": out_height, "out_width": out_width}
        mode, value = str(layer.attributes["mode"]), layer.attributes["value"]
        if mode == "constant":
            assert isinstance(value, float | int)
            return one_call("pad", layer, {**sizes, "top": top, "left": left, "value": float_bits(float(value))})
        tables = _table(height, out_height, top, mode), _table(width, out_width, left, mode)
        return one_call("resize/nearest", layer, sizes, (INPUT, Operand("constant", 0), Operand("constant", 1)), tables)


def _padded(layer: Layer) -> tuple[int, ...]:
    """The axes with pads."""
    pads, rank = layer.ints("pads"), len(layer.type_of(0).shape)
    return tuple(axis for axis in range(rank) if pads[axis] or pads[rank + axis])


class _Plane(NamedTuple):
    """What is padded, as planes of rows and columns.

    Attributes:
        planes: their number.
        size: rows and columns of the input.
        begin: rows and columns before it.
        out: rows and columns of the output.
    """

    planes: int
    size: tuple[int, int]
    begin: tuple[int, int]
    out: tuple[int, int]


def _plane(layer: Layer, block: int) -> _Plane:
    """The planes of a layer in the layout of this block."""
    shape, result, pads = layer.type_of(0).shape, layer.outputs[0].shape, layer.ints("pads")
    axes = (2, 3) if block else _padded(layer) or (len(shape) - 1,)
    outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
    if block:
        outer = shape[0] * -(-shape[1] // block)
    if len(axes) == 1:
        axis = axes[0]
        return _Plane(outer, (shape[axis], inner), (pads[axis], 0), (result[axis], inner))
    size, begin, out = ((values[axes[0]], values[axes[1]] * inner) for values in (shape, pads, result))
    return _Plane(outer, size, begin, out)


def _table(size: int, result: int, begin: int, mode: str) -> np.ndarray:
    """Source of each of `result` places of an axis."""
    places = np.arange(result) - begin
    if mode == "edge":
        places = np.clip(places, 0, size - 1)
    elif mode == "wrap":
        places %= size
    elif size > 1:
        period = 2 * (size - 1)
        places = (size - 1) - np.abs(places % period - (size - 1))
    return np.ascontiguousarray(np.clip(places, 0, size - 1), np.int32)


ROUTINES = (ReduceRoutine, PadRoutine)
