"""Which layers depend on one number of one tensor."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from nnstretch.devices.algorithms.table import _FUNCTIONS
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType, fused_layer
from nnstretch.graph.pointwise import _POINTWISE, is_pointwise
from tests.kits.kernels.int8_layers import typed_layer

SHAPE = (1, 4, 2, 3)
FLOAT, INT8 = TensorType(SHAPE), TensorType(SHAPE, "int8", QuantizationParameters(0.5, 3))
SIGMOID = typed_layer("Activation", [INT8], INT8, None, Activation(ActivationKind.SIGMOID))
PRODUCT = typed_layer("Mul", [INT8, INT8], INT8)


def affine(scale: np.ndarray) -> Layer:
    constants = {1: scale.astype(np.float32), 2: np.zeros(4, np.float32)}
    made = typed_layer("Affine", [FLOAT, TensorType((4,)), TensorType((4,))], FLOAT)
    return replace(made, constants=MappingProxyType(constants))


@pytest.mark.parametrize(
    "layer",
    [
        SIGMOID,
        PRODUCT,
        typed_layer("Dequantize", [INT8], FLOAT),
        affine(np.full(4, 0.5)),
        fused_layer((SIGMOID, PRODUCT), ((0,), (0, -1))),
    ],
    ids=lambda layer: str(layer.op),
)
def test_pointwise(layer: Layer) -> None:
    assert is_pointwise(layer)


def test_tables_know_all_pointwise_operators() -> None:
    assert _FUNCTIONS.keys() == _POINTWISE


@pytest.mark.parametrize(
    "layer",
    [
        affine(np.arange(4)),  # a scale per channel
        typed_layer("Mul", [INT8, TensorType((1, 4, 1, 1), "int8", INT8.quantization)], INT8),
        typed_layer("Reshape", [INT8], TensorType((24,), "int8", INT8.quantization)),
        typed_layer("Activation", [TensorType(SHAPE, "int8")], TensorType(SHAPE, "int8")),  # stand for themselves
        fused_layer((SIGMOID, PRODUCT), ((0,), (1, -1))),  # reads two tensors
    ],
    ids=lambda layer: str(layer.op),
)
def test_not_pointwise(layer: Layer) -> None:
    assert not is_pointwise(layer)
