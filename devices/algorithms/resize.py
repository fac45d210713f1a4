"""Resize as tables of source pixels, so that kernels need no coordinate, rounding and interpolation modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from nnstretch.graph.layer import Layer
from nnstretch.graph.resizing import COORDINATES, INTERPOLATED_COORDINATES

_FILTERED = ("cubic", "linear_antialias", "cubic_antialias")
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


class FilterTable(NamedTuple):
    """The source pixels whose weighted sums are the outputs along one axis.

    Attributes:
        indices: of source pixels, int32, shape (outputs, taps).
        weights: of these, float32, shape (outputs, taps); their sum is 1 for every output.
    """

    indices: np.ndarray
    weights: np.ndarray


def has_tables(layer: Layer) -> bool:
    """Whether a Resize layer copies or interpolates two pixels along height and width of images, with known modes."""
    mode, nearest = layer.attributes["mode"], layer.attributes.get("nearest")
    if mode == "nearest":
        return _resizes_images(layer, COORDINATES) and nearest in _NEAREST
    return _resizes_images(layer, INTERPOLATED_COORDINATES) and mode == "linear"


def has_filters(layer: Layer) -> bool:
    """Whether a Resize layer sums more than two weighted pixels along height and width of images, with known modes."""
    return _resizes_images(layer, INTERPOLATED_COORDINATES) and layer.attributes["mode"] in _FILTERED


def _resizes_images(layer: Layer, coordinates: Sequence[str]) -> bool:
    shape, result = layer.type_of(0).shape, layer.outputs[0].shape
    return len(shape) == 4 and shape[:2] == result[:2] and layer.attributes["coordinates"] in coordinates


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


def filter_tables(layer: Layer) -> tuple[FilterTable, FilterTable]:
    """The tables of rows and of columns (ONNX, Resize: cubic, antialias and exclude_outside)."""
    scales, coordinates = layer.attributes["scales"], str(layer.attributes["coordinates"])
    assert isinstance(scales, tuple)
    kernel, radius = _hat, 1
    if str(layer.attributes["mode"]).startswith("cubic"):
        coefficient = layer.attributes["cubic_coefficient"]
        assert isinstance(coefficient, float)
        kernel, radius = partial(_cubic, a=coefficient), 2
    widens = str(layer.attributes["mode"]).endswith("antialias")

    def table(axis: int) -> FilterTable:
        size, result = layer.type_of(0).shape[2 + axis], layer.outputs[0].shape[2 + axis]
        positions = _positions(size, result, scales[axis], coordinates).astype(np.float64)
        stretch = max(1 / scales[axis], 1.0) if widens else 1.0
        reach = radius * stretch
        first = np.ceil(positions - reach).astype(np.int64)
        pixels = first[:, None] + np.arange(2 * math.ceil(reach) + 1)
        weights = kernel(np.abs(pixels - positions[:, None]) / stretch)
        if layer.attributes.get("exclude_outside"):
            weights = np.where((pixels >= 0) & (pixels < size), weights, 0.0)
        weights /= weights.sum(axis=1, keepdims=True)
        used = slice(0, int(np.flatnonzero(weights.any(axis=0))[-1]) + 1)
        indices = np.clip(pixels[:, used], 0, size - 1).astype(np.int32)
        return FilterTable(np.ascontiguousarray(indices), np.ascontiguousarray(weights[:, used], np.float32))

    return table(0), table(1)


def _hat(distance: np.ndarray) -> np.ndarray:
    """Weights of linear interpolation."""
    return np.asarray(np.maximum(1 - distance, 0.0))


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Weights of Keys' cubic convolution with the coefficient `a`."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


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
    if coordinates == "half_pixel_symmetric":
        # The image of the outputs has the middle of the sources, also where the scale is not that of the sizes.
        middle = np.float32(size / 2) * (1 - np.float32(result) / (factor * np.float32(size)))
        return np.asarray(middle + ((index + _HALF) / factor - _HALF))
    return np.asarray((index + _HALF) / factor - _HALF)
