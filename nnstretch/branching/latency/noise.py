"""Weights for layers when only their shapes matter."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

_SHARED = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)


@cache
def noise(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal noise of any shape that takes no memory of its own: a read-only view whose elements overlap."""
    odd = (1, 3, 5, 7)
    length = sum((size - 1) * step for size, step in zip(shape, odd, strict=False)) + 1
    base = _SHARED if length <= len(_SHARED) else np.resize(_SHARED, length)
    strides = tuple(step * base.itemsize for step in odd[: len(shape)])
    view = np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)
    assert math.prod(view.shape) == math.prod(shape)
    return view
