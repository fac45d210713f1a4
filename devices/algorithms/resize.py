"""Resize as tables of source pixels, so that kernels need no coordinate and rounding modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from nnstretch.graph.layer import Layer

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
_HALF = np.float32(0.5)
_TIE = 1e-6
"""Distance from the middle of two pixels below which ONNX Runtime takes a position for the middle."""


def _rounded(positions: np.ndarray, *, up: bool) -> np.ndarray:
    """The nearest integers, and of two that are equally near the upper or the lower one."""
    below = np.floor(positions)
    beyond = positions - below - _HALF
    return np.asarray(below + np.where(np.abs(beyond) < _TIE, up, beyond > 0))


_NEAREST: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": partial(_rounded, up=False),
    "round_prefer_ceil": partial(_rounded, up=True),
}


class ResizeTable(NamedTuple):
    """The source pixels that the outputs along one axis interpolate.

    Attributes:
        indices: two source pixels per output, int32, shape (outputs, 2); both are the same for nearest interpolation.
        weights: weight of the second pixel per output, float32; 0 for nearest interpolation.
    """

    indices: np.ndarray
    weights: np.ndarray


def has_tables(layer: Layer) -> bool:
    """Whether a Resize layer interpolates height and width of images, with known modes."""
    mode, nearest = layer.attributes["mode"], layer.attributes.get("nearest")
    shape, result = layer.type_of(0).shape, layer.outputs[0].shape
    known = layer.attributes["coordinates"] in _COORDINATES
    return (
        known
        and len(shape) == 4
        and shape[:2] == result[:2]
        and (mode == "linear" or (mode == "nearest" and nearest in _NEAREST))
    )


def resize_tables(layer: Layer) -> tuple[ResizeTable, ResizeTable]:
    """The tables of rows and of columns."""
    scales, coordinates = layer.attributes["scales"], str(layer.attributes["coordinates"])
    assert isinstance(scales, tuple)

    def table(axis: int) -> ResizeTable:
        size, result = layer.type_of(0).shape[2 + axis], layer.outputs[0].shape[2 + axis]
        positions = _positions(size, result, scales[axis], coordinates)
        if layer.attributes["mode"] == "nearest":
            chosen = np.clip(_NEAREST[str(layer.attributes["nearest"])](positions), 0, size - 1).astype(np.int32)
            return ResizeTable(np.stack([chosen, chosen], axis=1), np.zeros(result, np.float32))
        inside = np.clip(positions, 0, size - 1)
        first = np.floor(inside).astype(np.int32)
        return ResizeTable(
            np.stack([first, np.minimum(first + 1, size - 1)], axis=1), (inside - first).astype(np.float32)
        )

    return table(0), table(1)


def _positions(size: int, result: int, scale: float, coordinates: str) -> np.ndarray:
    """Positions of `result` pixels among `size` source pixels (ONNX, Resize).

    Computed in float32 as in other engines, because rounding decides which of two neighbours is nearest.
    """
    index, factor = np.arange(result, dtype=np.float32), np.float32(scale)
    if coordinates == "asymmetric":
        return index / factor
    if coordinates == "align_corners":
        return index * np.float32(size - 1) / np.float32(max(result - 1, 1))
    if coordinates == "pytorch_half_pixel" and result == 1:
        return np.zeros(1, np.float32)
    return np.asarray((index + _HALF) / factor - _HALF)
