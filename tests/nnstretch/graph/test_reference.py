"""Errors of routines against the reference."""

from __future__ import annotations

import math
from types import MappingProxyType

import numpy as np
import pytest

from nnstretch.errors import ModelError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import answer_error, run_layer


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


def test_scalars_have_an_error_too() -> None:
    kind = TensorType(())
    layer = Layer("moved", "Transpose", (kind,), (kind,), MappingProxyType({}))
    wanted = np.array(4.0, np.float32)
    assert answer_error(layer, 0, wanted.copy(), wanted) == 0.0
    assert answer_error(layer, 0, wanted + np.float32(1), wanted) == 0.25
    assert answer_error(layer, 0, np.array(np.nan, np.float32), wanted) == math.inf


def test_values_that_onnx_runtime_refuses() -> None:
    scales = TensorType((4,))
    image = TensorType((1, 2, 4, 4))
    layer = Layer("larger", "onnx:Resize", (image, None, scales), (image,), {"opset_version": 17})
    (result,) = run_layer(layer, np.ones(image.shape, np.float32), np.ones(4, np.float32))
    assert result.shape == image.shape
    with pytest.raises(ModelError, match=r"cannot run layer larger \(onnx:Resize\): .*Resize"):
        run_layer(layer, np.ones(image.shape, np.float32), -np.ones(4, np.float32))
