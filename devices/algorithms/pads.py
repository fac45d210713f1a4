"""Pads of one axis or of two neighbours, as planes of rows and columns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nnstretch.graph.layer import Layer


def padded_axes(layer: Layer) -> tuple[int, ...]:
    """The axes with pads."""
    pads, rank = layer.ints("pads"), len(layer.type_of(0).shape)
    return tuple(axis for axis in range(rank) if pads[axis] or pads[rank + axis])


class PaddedPlane(NamedTuple):
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


def padded_plane(layer: Layer, block: int) -> PaddedPlane:
    """The planes of a layer in the layout of this block."""
    shape, result, pads = layer.type_of(0).shape, layer.outputs[0].shape, layer.ints("pads")
    axes = (2, 3) if block else padded_axes(layer) or (len(shape) - 1,)
    outer, inner = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
    if block:
        outer = shape[0] * -(-shape[1] // block)
    if len(axes) == 1:
        axis = axes[0]
        return PaddedPlane(outer, (shape[axis], inner), (pads[axis], 0), (result[axis], inner))
    size, begin, out = ((values[axes[0]], values[axes[1]] * inner) for values in (shape, pads, result))
    return PaddedPlane(outer, size, begin, out)


def pad_sources(size: int, result: int, begin: int, mode: str) -> np.ndarray:
    """Source of each of `result` places of an axis; -1 outside the axis, if `mode` is "constant"."""
    places = np.arange(result) - begin
    if mode == "constant":
        return np.where((places < 0) | (places >= size), -1, places).astype(np.int32)
    if mode == "edge":
        places = np.clip(places, 0, size - 1)
    elif mode == "wrap":
        places %= size
    elif size > 1:
        period = 2 * (size - 1)
        places = (size - 1) - np.abs(places % period - (size - 1))
    return np.ascontiguousarray(np.clip(places, 0, size - 1), np.int32)
