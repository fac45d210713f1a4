"""Weights stored as int16 and widened to float32 in registers: half the bytes to read."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np

from nnstretch.graph.layer import Layer

_LARGEST_PEAK = 20.0
"""Largest weights of outputs over all, in the root mean square: the rounding's share of a sum is then below 2e-4 / 3."""
_fitting: WeakKeyDictionary[Layer, bool] = WeakKeyDictionary()


def fit_int16(layer: Layer) -> bool:
    """Whether int16 keeps a layer's weights well: the largest of an output are not far larger than the others."""
    if layer not in _fitting:
        weight = layer.constants[1]
        if not weight.size:
            return False
        rows = weight.reshape(len(weight), -1)
        peak, size = (float(np.linalg.norm(some)) / math.sqrt(some.size) for some in (peaks(rows), rows))
        _fitting[layer] = math.isfinite(peak) and peak <= _LARGEST_PEAK * size
    return _fitting[layer]


def peaks(rows: np.ndarray) -> np.ndarray:
    """The largest absolute value of every row."""
    return np.asarray(np.maximum(rows.max(axis=1), -rows.min(axis=1)))
