"""Recurrent layers for parity tests, and what they compute in float64."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from hypothesis import strategies as st

from nnstretch.graph.layer import Layer, TensorType

Shape = tuple[int, ...]
GATES = {"lstm": 4, "gru": 3, "gru_reset_after": 3}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def recurrent_layer(
    cell: str,
    pixels: Shape,
    hidden: int,
    *,
    axis: int = 0,
    direction: str = "bidirectional",
    bias: bool = True,
    states: Sequence[str] = (),
) -> Layer:
    """A Recurrence on rows of channels of these two `pixels`, or on N,C,H,W if `pixels` are N, H and W.

    `states`: "constant", "input" or "" for the first hidden states, and for the first cell states of an LSTM.
    """
    directions, gates = DIRECTIONS[direction], GATES[cell] * hidden
    random = np.random.default_rng(hidden)

    def shape(channels: int) -> Shape:
        return (*pixels, channels) if len(pixels) == 2 else (pixels[0], channels, *pixels[1:])

    def constant(*sizes: int) -> np.ndarray:
        return random.normal(0, 0.5, sizes).astype(np.float32)

    constants = {1: constant(directions, gates, hidden)}
    inputs: list[TensorType | None] = [TensorType(shape(directions * gates)), TensorType((directions, gates, hidden))]
    inputs.append(TensorType((directions, hidden)) if cell == "gru_reset_after" and bias else None)
    if inputs[2]:
        constants[2] = constant(directions, hidden)
    sequences = int(np.prod(pixels)) // shape(1)[axis]
    for index, kind in enumerate(states, 3):
        inputs.append(TensorType((directions, sequences, hidden)) if kind else None)
        if kind == "constant":
            constants[index] = constant(directions, sequences, hidden)
    return Layer(
        "tested",
        "Recurrence",
        tuple(inputs),
        (TensorType(shape(directions * hidden)),),
        MappingProxyType({"cell": cell, "axis": axis, "direction": direction}),
        constants=MappingProxyType(constants),
    )


def reference_of_recurrence(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    """The hidden states of all steps, in float64."""
    given = iter(feeds)
    arrays: list[np.ndarray | None] = []
    for index, kind in enumerate(layer.inputs):
        array = None if kind is None else layer.constants[index] if index in layer.constants else next(given)
        arrays.append(None if array is None else array.astype(np.float64))
    x, weights, bias, first, first_cell = (*arrays, None, None)[:5]
    assert x is not None
    assert weights is not None
    axis, (directions, _, hidden) = layer.integer("axis"), weights.shape
    order = (axis, 1 - axis, 2) if x.ndim == 3 else (axis, 0, 5 - axis, 1)
    rows = x.transpose(order)
    sums = rows.reshape(rows.shape[0], -1, directions, weights.shape[1])
    results = np.zeros((*sums.shape[:3], hidden))
    for direction in range(directions):
        backwards = direction == 1 or layer.attributes["direction"] == "reverse"
        state = np.zeros(results.shape[1::2]) if first is None else first[direction]
        cell = np.zeros_like(state) if first_cell is None else first_cell[direction]
        product_bias = np.zeros(hidden) if bias is None else bias[direction]
        for step in reversed(range(len(sums))) if backwards else range(len(sums)):
            state, cell = _step(str(layer.attributes["cell"]), sums[step, :, direction], state, cell,
                                weights[direction], product_bias)  # fmt: skip
            results[step, :, direction] = state
    last = results.reshape(*rows.shape[:-1], directions * hidden)
    return last.transpose([order.index(i) for i in range(len(order))])


def _step(
    kind: str, sums: np.ndarray, state: np.ndarray, cell: np.ndarray, weights: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Hidden and cell states behind a step."""
    hidden = state.shape[1]
    parts = np.split(sums, sums.shape[1] // hidden, axis=1)
    products = np.split(state @ weights.T, len(parts), axis=1)
    if kind == "lstm":
        enter, leave, forget, candidate = (a + b for a, b in zip(parts, products, strict=True))
        cell = _sigmoid(forget) * cell + _sigmoid(enter) * np.tanh(candidate)
        return _sigmoid(leave) * np.tanh(cell), cell
    update, reset = (_sigmoid(parts[i] + products[i]) for i in (0, 1))
    if kind == "gru":
        candidate = np.tanh(parts[2] + (reset * state) @ weights[2 * hidden :].T)
    else:
        candidate = np.tanh(parts[2] + reset * (products[2] + bias))
    return (1 - update) * candidate + update * state, cell


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


@st.composite
def recurrent_layers(draw: st.DrawFn) -> Layer:
    """Recurrent layers of small sizes."""
    cell = draw(st.sampled_from(sorted(GATES)))
    kinds = st.sampled_from(["", "constant", "input"])
    pixels = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    image = draw(st.booleans())
    return recurrent_layer(
        cell,
        (draw(st.integers(1, 2)), *pixels) if image else pixels,
        draw(st.integers(1, 40) | st.sampled_from([16, 32, 48])),
        axis=draw(st.integers(2, 3) if image else st.integers(0, 1)),
        direction=draw(st.sampled_from(sorted(DIRECTIONS))),
        bias=draw(st.booleans()),
        states=[draw(kinds) for _ in range(2 if cell == "lstm" else 1)],
    )
