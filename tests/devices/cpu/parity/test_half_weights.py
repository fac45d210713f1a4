"""Weights that are stored as float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines.convolution.dense import DenseOfHalfWeights, as_halves, fit_float16
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import feeds_of, random, reference
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.kernel_driver import run_lowering

SMALLEST = 2.0**-14
LARGEST = 65504.0


def with_weights(weight: np.ndarray) -> Layer:
    layer = dense_layer(1, weight.shape[1], weight.shape[0], bias=True, residual=False, activation=NO_ACTIVATION)
    constants: Mapping[int, np.ndarray] = {**layer.constants, 1: weight.astype(np.float32)}
    return replace(layer, constants=constants)


@given(arrays(np.float32, 40, elements=st.floats(-LARGEST, LARGEST, width=32)))
def test_halves_are_the_nearest_numbers_without_subnormal_ones(weights: np.ndarray) -> None:
    halves = as_halves(weights).astype(np.float64)
    assert ((np.abs(halves) >= SMALLEST) | (halves == 0)).all()
    error = np.abs(halves - weights)
    assert (error <= np.maximum(np.abs(weights) * 2.0**-11, SMALLEST)).all()


@pytest.mark.parametrize(
    ("weight", "fits"),
    [
        (random((9, 33), 1, 0.02), True),
        (np.zeros((9, 33)), True),
        (random((9, 33), 1, 1e-6), False),
        (np.where(np.arange(9 * 33).reshape(9, 33) == 100, 7e4, 0.1), False),
        (np.full((9, 33), np.nan), False),
    ],
    ids=["usual", "zeros", "all subnormal", "one too large", "not numbers"],
)
def test_only_weights_that_float16_keeps_are_stored_so(weight: np.ndarray, fits: bool) -> None:
    assert fit_float16(with_weights(weight)) == fits


def test_the_error_of_results_is_that_of_rounded_weights(routines: Sequence[Routine]) -> None:
    """A long sum, whose error is far below that of a single weight."""
    layer = with_weights(random((70, 4000), 1, 4000**-0.5))
    (routine,) = (one for one in routines if isinstance(one, DenseOfHalfWeights))
    assert routine.supports(layer)
    feeds = feeds_of(layer)
    exact, rounded = (
        reference(one, feeds) for one in (layer, with_weights(as_halves(layer.constants[1]).astype(np.float32)))
    )
    for parameters in routine.parameter_space(layer):
        lowering = routine.lower(layer, parameters)
        assert lowering.weight_bytes < 2 * 4000 * 128 + 4 * 128 + 1
        (found,) = run_lowering(lowering, layer, feeds, *routine.layouts(layer, parameters))
        assert np.abs(found - rounded).max() < 1e-5 * np.abs(exact).max()
        assert np.abs(found - exact).max() < 2.0**-11 * np.abs(exact).max()
