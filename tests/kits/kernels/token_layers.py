"""Layers of transformers for parity tests: attention, and products of matrices that are computed at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np
from hypothesis import strategies as st

from nnstretch.devices.algorithms.attention import BIASES, FACTOR, attention_numbers
from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.layer import Attribute, Layer, TensorType

Shape = tuple[int, ...]


def attention_layer(
    sizes: Shape,
    *,
    heads: int,
    groups: int,
    rows: bool = False,
    biases: Sequence[np.ndarray | Shape] = (),
    scale: float = 0.25,
    factor: np.ndarray | None = None,
    epsilon: float = 0.0,
) -> Layer:
    """Attention of `sizes`: images, windows, queries, keys, channels per head of keys, and of values."""
    batch, windows, queries, keys, depth, width = sizes

    def tokens(count: int, channels: int) -> TensorType:
        shape = (batch * windows, count, channels) if rows else (batch, channels, windows, count)
        return TensorType(shape)

    extents = (queries, heads * depth), (keys, groups * depth), (keys, groups * width)
    inputs: list[TensorType | None] = [tokens(count, channels) for count, channels in extents]
    inputs += [TensorType(bias.shape if isinstance(bias, np.ndarray) else bias) for bias in biases]
    constants = {3 + i: bias for i, bias in enumerate(biases) if isinstance(bias, np.ndarray)}
    attributes: dict[str, Attribute] = {"heads": heads, "groups": groups, "scale": scale}
    if factor is not None:
        inputs += [*(None,) * (2 - len(biases)), TensorType(factor.shape)]
        constants[FACTOR] = factor
    if epsilon:
        attributes["epsilon"] = epsilon
    return Layer(
        "tested",
        "Attention",
        tuple(inputs),
        (tokens(queries, heads * width),),
        MappingProxyType(attributes),
        constants=MappingProxyType(constants),
    )


def reference_of_attention(
    layer: Layer, feeds: Sequence[np.ndarray], rounded: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> np.ndarray:
    """Attention in float64, of operands and weights of values as `rounded` makes them of float32."""
    arrays = dict(layer.constants) | dict(zip(layer.activations, feeds, strict=True))
    heads, groups = layer.integer("heads"), layer.integer("groups")
    scale, epsilon = attention_numbers(layer)

    def split(array: np.ndarray, count: int) -> np.ndarray:
        if array.ndim == 4:
            array = array.transpose(0, 2, 3, 1).reshape(-1, array.shape[3], array.shape[1])
        parts = array.astype(np.float64).reshape(*array.shape[:2], count, -1).transpose(0, 2, 1, 3)
        return np.repeat(parts, heads // count, axis=1)

    def scaled(array: np.ndarray, factor: float | np.ndarray) -> np.ndarray:
        if epsilon:
            factor = factor / np.maximum(np.sqrt((array**2).sum(-1, keepdims=True)), epsilon)
        return rounded((array * factor).astype(np.float32)).astype(np.float64)

    queries = scaled(split(arrays[0], heads), np.float32(scale) * arrays.get(FACTOR, np.ones(1)))
    scores = queries @ scaled(split(arrays[1], groups), 1.0).swapaxes(2, 3)
    for bias in (arrays[index] for index in BIASES if index in arrays):
        scores = scores + bias.astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    found = split(rounded(arrays[2].astype(np.float32)), groups)
    values = rounded(weights.astype(np.float32)).astype(np.float64) @ found
    result = values / weights.sum(-1, keepdims=True)
    rows: np.ndarray = result.transpose(0, 2, 1, 3).reshape(result.shape[0], result.shape[2], -1)
    shape = layer.outputs[0].shape
    if len(shape) == 3:
        return rows
    return rows.reshape(shape[0], shape[2], shape[3], shape[1]).transpose(0, 3, 1, 2)


@st.composite
def attention_layers(draw: st.DrawFn) -> Layer:
    """Attention of small sizes."""
    heads = draw(st.integers(1, 3))
    batch, windows = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    depth, width = draw(st.integers(1, 36)), draw(st.integers(1, 36))
    biases: list[np.ndarray | Shape] = []
    for _ in range(draw(st.integers(0, 2))):
        flags = [draw(st.booleans()) for _ in range(3)]
        whole = (batch * windows, heads, queries)
        shape = (*(size if flag else 1 for size, flag in zip(whole, flags, strict=True)), keys)
        array = np.random.default_rng(3).normal(0, 2, shape).astype(np.float32)
        biases.append(array if draw(st.booleans()) else shape)
    factor = None
    if draw(st.booleans()):
        shape = (draw(st.sampled_from([1, batch * windows])), heads, 1, 1)
        factor = np.random.default_rng(4).uniform(-2, 2, shape).astype(np.float32)
    return attention_layer(
        (batch, windows, queries, keys, depth, width),
        heads=heads,
        groups=draw(st.sampled_from([1, heads])),
        rows=draw(st.booleans()),
        biases=biases,
        factor=factor,
        epsilon=draw(st.sampled_from([0.0, 1e-12, 4.0])),
    )


def product_layer(
    images: tuple[Shape, Shape],
    sizes: Shape,
    *,
    transposed: tuple[bool, bool] = (False, False),
    activation: Activation = NO_ACTIVATION,
    constant: np.ndarray | None = None,
) -> Layer:
    """A product of `sizes` m, k, n with these images of each operand."""
    m, k, n = sizes
    x = (*images[0], *((k, m) if transposed[0] else (m, k)))
    y = (*images[1], *((n, k) if transposed[1] else (k, n)))
    result = (*np.broadcast_shapes(*images), m, n)
    return Layer(
        "tested",
        "MatMul",
        (TensorType(x), TensorType(y)),
        (TensorType(result),),
        MappingProxyType({"transpose_x": int(transposed[0]), "transpose_y": int(transposed[1])}),
        activation,
        MappingProxyType({} if constant is None else {1: constant}),
    )
