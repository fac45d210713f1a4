"""Pools of windows and of whole images against ONNX Runtime: any kernel, stride, pads and dilations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.layer import Attribute, Layer
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.memory_bound_parity import (
    CORES,
    MEMORY_BOUND_ROUTINES,
    TWO_CORES,
    Shape,
    activations,
    batches,
    channels,
    check,
    make_layer,
    settings_of,
    values,
)


def pool_layer(
    op: str,
    shape: Shape,
    kernel: Shape,
    strides: Shape,
    pads: Shape,
    dilations: Shape = (1, 1),
    include: int = 0,
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    size = [
        (shape[2 + a] + pads[a] + pads[2 + a] - (kernel[a] - 1) * dilations[a] - 1) // strides[a] + 1 for a in range(2)
    ]
    attributes: dict[str, Attribute] = {"kernel": kernel, "strides": strides, "pads": pads}
    attributes |= {"dilations": dilations} if op == "MaxPool" else {"count_include_pad": include}
    return make_layer(op, [shape], (*shape[:2], *size), attributes, activation)


@st.composite
def pools(draw: st.DrawFn) -> Layer:
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = draw(st.tuples(*[st.integers(1, 5)] * 2))
    dilations = draw(st.tuples(*[st.integers(1, 3)] * 2)) if op == "MaxPool" else (1, 1)
    # ONNX Runtime takes no pad as large as the kernel
    pads = tuple(draw(st.integers(0, kernel[axis] - 1)) for axis in (0, 1, 0, 1))
    spans = [(kernel[a] - 1) * dilations[a] + 1 for a in range(2)]
    low = [max(spans[a] - pads[a] - pads[2 + a], 1) if dilations[a] == 1 else spans[a] for a in range(2)]
    size = tuple(draw(st.integers(low[a], low[a] + 9)) for a in range(2))
    strides = draw(st.tuples(*[st.integers(1, 7)] * 2))
    shape = (draw(batches), draw(channels), *size)
    return pool_layer(op, shape, kernel, strides, pads, dilations, draw(st.integers(0, 1)), draw(activations))


@given(pools())
@settings(max_examples=examples(60))
def test_pool(layer: Layer) -> None:
    check(layer)


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads"),
    [
        ((1, 64, 28, 28), (3, 3), (2, 2), (1, 1, 1, 1)),
        ((1, 19, 29, 31), (3, 3), (2, 2), (0, 0, 1, 1)),
        ((1, 32, 14, 14), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((2, 17, 9, 40), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((1, 3, 1, 1), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((1, 5, 2, 3), (5, 7), (9, 11), (3, 2, 4, 6)),
        ((1, 16, 40, 40), (1, 1), (13, 2), (0, 0, 0, 0)),
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("include", [0, 1])
def test_pool_shapes(op: str, include: int, shape: Shape, kernel: Shape, strides: Shape, pads: Shape) -> None:
    layer = pool_layer(op, shape, kernel, strides, pads, include=include)
    wanted = check(layer, exact=op == "MaxPool", threads=(*CORES, TWO_CORES))
    assert np.ptp(wanted) > 0


def test_pool_refuses_windows_of_padding_alone() -> None:
    assert not any(
        r.supports(pool_layer("MaxPool", (1, 3, 4, 4), (2, 2), (1, 1), (2, 0, 0, 0))) for r in MEMORY_BOUND_ROUTINES
    )
    late = make_layer(
        "AveragePool",
        [(1, 3, 4, 4)],
        (1, 3, 5, 4),
        {"kernel": (1, 1), "strides": (1, 1), "pads": (0, 0, 1, 0), "count_include_pad": 0},
    )
    assert not any(r.supports(late) for r in MEMORY_BOUND_ROUTINES)


@given(batches, channels, st.integers(1, 13), st.integers(1, 13), st.sampled_from(["average", "max"]), activations)
@settings(max_examples=examples(30))
def test_global_pool(n: int, c: int, h: int, w: int, mode: str, activation: Activation) -> None:
    check(make_layer("GlobalPool", [(n, c, h, w)], (n, c, 1, 1), {"mode": mode}, activation))


def test_global_pool_of_a_large_plane_keeps_its_digits() -> None:
    shape = (1, 3, 300, 300)
    layer = make_layer("GlobalPool", [shape], (1, 3, 1, 1), {"mode": "average"})
    feed = values(shape, 1) + np.float32(100)
    for routine, parameters in settings_of(layer):
        inputs, outputs = routine.layouts(layer, parameters)
        (found,) = run_lowering(routine.lower(layer, parameters), layer, [feed], inputs, outputs, CORES[0])
        wanted = feed.mean(axis=(2, 3), keepdims=True, dtype=np.float64)
        np.testing.assert_allclose(found, wanted, rtol=5e-7)
