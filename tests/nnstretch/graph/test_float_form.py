"""Float forms of int8 layers compute what their expansion to ONNX does before it rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Attribute, Layer, TensorType, fused_pair
from nnstretch.graph.reference import run_layer
from tests.kits.kernels.int8_layers import int8_convolutions, int8_feeds, typed_layer

SHAPE = (1, 3, 6, 5)
A, B = QuantizationParameters(0.125, 3), QuantizationParameters(0.25, -7)
UNSIGNED = QuantizationParameters(0.5, -128)
RELU = Activation(ActivationKind.RELU)


def int8(quantization: QuantizationParameters, shape: tuple[int, ...] = SHAPE) -> TensorType:
    return TensorType(shape, "int8", quantization)


def check(layer: Layer) -> None:
    """Rounds what the float form computes and compares it with ONNX Runtime's int8 layer."""
    form = float_form(layer)
    assert form is not None
    assert form is float_form(layer)
    assert not form.is_int8
    assert form.name == layer.name
    feeds = int8_feeds(layer)
    types = [layer.type_of(index) for index in layer.activations]
    floats = [f if t.quantization is None else t.quantization.dequantize(f) for f, t in zip(feeds, types, strict=True)]
    (wanted,), (found,) = run_layer(layer, *feeds), run_layer(form, *floats)
    rounding = layer.outputs[0].quantization
    if rounding is None:
        np.testing.assert_array_equal(found, wanted)
        return
    low, high = rounding.dequantize(np.array([-128, 127]))
    if form.activation.kind is ActivationKind.CLIP:
        assert found.min() >= low
        assert found.max() <= high
    assert np.abs(rounding.quantize(found).astype(int) - wanted).max() <= 1


@given(
    int8_convolutions(
        st.sampled_from([(3, 5, 1), (4, 4, 4), (6, 4, 2)]), st.tuples(st.integers(1, 3), st.integers(1, 3))
    )
)
@settings(max_examples=30, deadline=None)
def test_convolutions(layer: Layer) -> None:
    check(layer)


WINDOW: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 1)}
HALVED = (1, 3, 3, 5)


@pytest.mark.parametrize(
    "layer",
    [
        typed_layer("Dequantize", [int8(A)], TensorType(SHAPE)),
        typed_layer("Quantize", [int8(A)], int8(B)),
        typed_layer("Quantize", [int8(A)], int8(UNSIGNED)),
        *(typed_layer(op, [int8(A), int8(B)], int8(UNSIGNED)) for op in ("Add", "Sub", "Mul")),
        typed_layer("Add", [int8(A), int8(B)], int8(A), None, RELU),
        typed_layer("Mul", [int8(A), int8(B)], int8(B), None, Activation(ActivationKind.CLIP, -0.5, 0.75)),
        typed_layer("MaxPool", [int8(A)], int8(A, HALVED), {**WINDOW, "dilations": (1, 1)}),
        typed_layer("AveragePool", [int8(A)], int8(B, HALVED), {**WINDOW, "count_include_pad": 0}),
        typed_layer("GlobalPool", [int8(A)], int8(B, (1, 3, 1, 1)), {"mode": "average"}),
        typed_layer("Concat", [int8(A), int8(B)], int8(B, (1, 6, 6, 5)), {"axis": 1}),
        typed_layer("Activation", [int8(A)], int8(UNSIGNED), None, Activation(ActivationKind.SIGMOID)),
        typed_layer("Softmax", [int8(A)], int8(QuantizationParameters(1 / 256, -128)), {"axis": 1}),
        typed_layer("Reshape", [int8(A)], int8(A, (1, 90))),
        typed_layer("Transpose", [int8(A)], int8(A, (1, 6, 5, 3)), {"perm": (0, 2, 3, 1)}),
    ],
    ids=lambda layer: f"{layer.op} {layer.activation} {layer.outputs[0].quantization}",
)
def test_other_layers(layer: Layer) -> None:
    check(layer)


def test_groups_of_layers() -> None:
    first = typed_layer("Add", [int8(A), int8(B)], int8(UNSIGNED))
    second = typed_layer("Dequantize", [int8(UNSIGNED)], TensorType(SHAPE))
    form = float_form(fused_pair(first, second))
    assert form is not None
    assert [part.op for part in form.parts] == ["Add", "Reshape"]
    assert not form.is_int8


@pytest.mark.parametrize("op", ["AveragePool", "GlobalPool", "Concat", "Resize"])
def test_a_relu_that_only_integers_have_is_kept(op: str) -> None:
    """A float form of such a layer would lose it, unless its inputs have no negative numbers either."""
    assert float_form(typed_layer(op, [int8(A)], int8(UNSIGNED))) is None
    assert float_form(typed_layer(op, [int8(UNSIGNED)], int8(UNSIGNED))) is not None


def test_layers_without_a_float_form() -> None:
    assert float_form(typed_layer("Add", [TensorType(SHAPE)], TensorType(SHAPE))) is None
    assert float_form(typed_layer("Add", [int8(A), int8(B)], int8(A), None, Activation(ActivationKind.GELU))) is None
    assert float_form(typed_layer("Reduce", [int8(A)], int8(A))) is None
    unknown = typed_layer("Conv", [int8(A), int8(B), int8(B)], int8(A))
    assert float_form(unknown) is None
    assert float_form(replace(fused_pair(unknown, unknown))) is None
