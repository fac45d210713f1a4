"""Small layers of every operator but convolutions, and one convolution that repeats its channels, with uneven sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.kits.kernels.convolution_parity import ACTIVATIONS, conv_layer, random
from tests.kits.kernels.recurrent_layers import GATES, recurrent_layer
from tests.kits.kernels.token_layers import attention_layer, product_layer

Shape = tuple[int, ...]

IMAGE = (2, 13, 5, 7)
RELU = Activation(ActivationKind.RELU)


def _layer(
    op: str,
    inputs: Sequence[Shape],
    output: Shape,
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
    constants: Mapping[int, np.ndarray] | None = None,
) -> Layer:
    types = tuple(map(TensorType, inputs))
    more = MappingProxyType(dict(attributes or {})), activation, MappingProxyType(dict(constants or {}))
    return Layer("tested", op, types, (TensorType(output),), *more)


def _norm(op: str, attributes: Mapping[str, Attribute]) -> Layer:
    length = IMAGE[1]
    constants = {1: random((length,), 1), 2: random((length,), 2)}
    return _layer(op, [IMAGE, (length,), (length,)], IMAGE, {"epsilon": 1e-5, **attributes}, RELU, constants)


def _pool(op: str, more: Mapping[str, Attribute]) -> Layer:
    window: dict[str, Attribute] = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
    return _layer(op, [IMAGE], (2, 13, 3, 7), {**window, **more}, RELU)


def _resize(mode: str, coordinates: str) -> Layer:
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "coordinates": coordinates,
        "nearest": "floor",
        "scales": (2.0, 1.5),
    }
    return _layer("Resize", [IMAGE], (2, 13, 10, 10), attributes)


def _pad(mode: str) -> Layer:
    attributes: dict[str, Attribute] = {"pads": (0, 0, 1, 2, 0, 0, 2, 1), "mode": mode, "value": 0.5}
    return _layer("Pad", [IMAGE], (2, 13, 8, 10), attributes)


def _reduced(axes: Shape) -> Shape:
    return tuple(1 if axis in axes else size for axis, size in enumerate(IMAGE))


def _cast(source: str, result: str) -> Layer:
    layer = _layer("Cast", [IMAGE], IMAGE)
    return replace(layer, inputs=(TensorType(IMAGE, source),), outputs=(TensorType(IMAGE, result),))


SMALL_LAYERS: tuple[Layer, ...] = (
    *(_layer("Activation", [IMAGE], IMAGE, activation=one) for one in ACTIVATIONS[1:]),
    *(_layer(op, [IMAGE, IMAGE], IMAGE, activation=RELU) for op in ("Add", "Sub", "Mul", "Max", "Min")),
    _layer("Mul", [IMAGE, (2, 13, 1, 1)], IMAGE),
    _layer("Div", [IMAGE, (1, 13, 1, 1)], IMAGE, constants={1: 2 + random((1, 13, 1, 1), 3, 0.1)}),
    _layer("Affine", [IMAGE, (13,), (13,)], IMAGE, constants={1: random((13,), 1), 2: random((13,), 2)}),
    _layer("PRelu", [IMAGE, (13,)], IMAGE, constants={1: random((13,), 1)}),
    _norm("LayerNorm", {"axis": 1, "rms": 0}),
    _norm("LayerNorm", {"axis": 1, "rms": 1}),
    _norm("GroupNorm", {"groups": 13}),
    _norm("GroupNorm", {"groups": 1}),
    *(_layer("Softmax", [IMAGE], IMAGE, {"axis": axis}) for axis in (1, 3)),
    *(_layer("Reduce", [IMAGE], _reduced(axes), {"axes": axes, "mode": mode})
      for axes, mode in (((1,), "mean"), ((3,), "sum"), ((2, 3), "max"), ((0, 1), "min"))),
    _pool("MaxPool", {"dilations": (1, 1)}),
    _pool("AveragePool", {"count_include_pad": 0}),
    _pool("AveragePool", {"count_include_pad": 1}),
    *(_layer("GlobalPool", [IMAGE], (2, 13, 1, 1), {"mode": mode}) for mode in ("average", "max")),
    _resize("nearest", "asymmetric"),
    _resize("linear", "half_pixel"),
    _resize("linear_antialias", "half_pixel"),
    *map(_pad, ("constant", "reflect", "edge")),
    _layer("Concat", [IMAGE, (2, 6, 5, 7)], (2, 19, 5, 7), {"axis": 1}),
    _layer("Concat", [IMAGE, (2, 13, 5, 3)], (2, 13, 5, 10), {"axis": 3}),
    _layer("Transpose", [IMAGE], (2, 5, 7, 13), {"perm": (0, 2, 3, 1)}),
    _layer("Transpose", [IMAGE], (7, 5, 13, 2), {"perm": (3, 2, 1, 0)}),
    _layer("Slice", [IMAGE], (2, 9, 2, 7), {"starts": (0, 4, 1, 0), "steps": (1, 1, 2, 1)}),
    _layer("Expand", [(1, 13, 1, 7)], IMAGE, activation=RELU),
    _layer("Reshape", [IMAGE], (2, 455), activation=RELU),
    _layer("DepthToSpace", [(2, 16, 3, 5)], (2, 4, 6, 10), {"size": 2, "mode": "DCR"}),
    _layer("SpaceToDepth", [(2, 5, 6, 10)], (2, 20, 3, 5), {"size": 2}),
    *(_cast(name, "float32") for name in ("float16", "uint8", "int32", "int64")),
    _cast("float32", "float16"),
    conv_layer((1, 6, 5, 5), 12, groups=6),
    product_layer(((), (2,)), (13, 21, 19)),
    product_layer(((2,), (2,)), (25, 70, 30), transposed=(True, True), activation=RELU),
    product_layer(((3,), (3,)), (5, 9, 17), constant=random((3, 9, 17), 4)),
    attention_layer((1, 2, 13, 17, 9, 11), heads=2, groups=1),
    attention_layer((2, 1, 30, 41, 8, 12), heads=3, groups=3, rows=True, biases=[(2, 1, 1, 41)]),
    attention_layer((1, 2, 13, 17, 9, 11), heads=2, groups=2, factor=random((1, 2, 1, 1), 5), epsilon=1e-12),
    *(recurrent_layer(cell, (3, 13), 9) for cell in GATES),
    *(recurrent_layer(cell, (2, 7, 4), 12, axis=3, states=["input"]) for cell in GATES),
)  # fmt: skip

NEAR, FAR = QuantizationParameters(1 / 16, 3), QuantizationParameters(3 / 64, -7)


def _int8(layer: Layer) -> Layer:
    """A layer of float32 as one of int8, whose result has other parameters unless it only takes elements."""
    keeps = layer.op in ("MaxPool", "Concat", "Reshape")
    inputs = tuple(TensorType(layer.type_of(i).shape, "int8", NEAR) for i in range(len(layer.inputs)))
    output = TensorType(layer.outputs[0].shape, "int8", NEAR if keeps else FAR)
    return replace(layer, inputs=inputs, outputs=(output,))


def _rounded(shape: Shape) -> Layer:
    return replace(_layer("Quantize", [shape], shape), outputs=(TensorType(shape, "int8", NEAR),))


SMALL_INT8_LAYERS: tuple[Layer, ...] = (
    _rounded(IMAGE),
    _rounded((2, 3, 5, 7)),
    _int8(_layer("Quantize", [IMAGE], IMAGE)),
    replace(_layer("Dequantize", [IMAGE], IMAGE), inputs=(TensorType(IMAGE, "int8", FAR),)),
    _int8(_layer("Activation", [IMAGE], IMAGE, activation=Activation(ActivationKind.SIGMOID))),
    *(_int8(_layer(op, [IMAGE, IMAGE], IMAGE, activation=RELU)) for op in ("Add", "Sub", "Mul")),
    _int8(_layer("Mul", [IMAGE, (2, 13, 1, 1)], IMAGE)),
    _int8(replace(_pool("MaxPool", {"dilations": (1, 1)}), activation=NO_ACTIVATION)),
    _int8(_pool("AveragePool", {"count_include_pad": 0})),
    *(_int8(_layer("GlobalPool", [IMAGE], (2, 13, 1, 1), {"mode": mode})) for mode in ("average", "max")),
    _int8(_layer("Concat", [IMAGE, (2, 6, 5, 7)], (2, 19, 5, 7), {"axis": 1})),
    _int8(_layer("Reshape", [IMAGE], (2, 455))),
    _int8(_resize("nearest", "asymmetric")),
    _int8(_resize("linear", "half_pixel")),
)
"""Memory-bound layers of int8."""
