"""Errors of routines against the reference."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np
import pytest

from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import answer_error


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_without_quantization_must_be_equal(dtype: str) -> None:
    kind = TensorType((2, 3), dtype)
    layer = Layer("moved", "Transpose", (kind,), (kind,), MappingProxyType({}))
    wanted = np.arange(6, dtype=dtype).reshape(2, 3) * 20
    assert answer_error(layer, 0, wanted.copy(), wanted) == 0.0
    assert answer_error(layer, 0, wanted + np.ones((), dtype), wanted) == math.inf


def test_floats_have_an_error_relative_to_their_range() -> None:
    kind = TensorType((4,), "float32")
    layer = Layer("moved", "Transpose", (kind,), (kind,), MappingProxyType({}))
    wanted = np.linspace(0, 1000, 4, dtype=np.float32)
    assert answer_error(layer, 0, wanted + 1, wanted) == pytest.approx(1e-3)
