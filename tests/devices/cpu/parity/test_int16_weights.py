"""Weights that are stored as int16, with a scale per output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from nnstretch.devices.algorithms.int16_weights import fit_int16
from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines.convolution.dense import DenseOfInt16Weights
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import feeds_of, random, reference
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.kernel_driver import run_lowering

STEPS = 32767


def with_weights(weight: np.ndarray) -> Layer:
    layer = dense_layer(1, weight.shape[1], weight.shape[0], bias=True, residual=False, activation=NO_ACTIVATION)
    constants: Mapping[int, np.ndarray] = {**layer.constants, 1: weight.astype(np.float32)}
    return replace(layer, constants=constants)


@pytest.mark.parametrize(
    ("weight", "fits"),
    [
        (random((9, 33), 1, 0.02), True),
        (random((9, 33), 1, 1e-30), True),
        (np.zeros((9, 33)), True),
        (np.where(np.arange(9 * 4000).reshape(9, 4000) % 4000 == 100, 7e4, 0.1), False),
        (np.full((9, 33), np.nan), False),
        (np.full((9, 33), np.inf), False),
    ],
    ids=["usual", "tiny", "zeros", "peaks", "not numbers", "infinite"],
)
def test_only_weights_that_int16_keeps_are_stored_so(weight: np.ndarray, fits: bool) -> None:
    assert fit_int16(with_weights(weight)) == fits


def test_results_are_those_of_weights_rounded_to_steps(routines: Sequence[Routine]) -> None:
    """A row of zeros and one of large weights have steps of their own."""
    weight = random((70, 4000), 1, 4000**-0.5)
    weight[3], weight[5] = 0, 100 * weight[5]
    layer = with_weights(weight)
    (routine,) = (one for one in routines if isinstance(one, DenseOfInt16Weights))
    assert routine.supports(layer)
    feeds = feeds_of(layer)
    steps = np.abs(weight).max(axis=1, keepdims=True).astype(np.float64) / STEPS
    rounded = np.where(steps > 0, np.rint(weight / np.where(steps > 0, steps, 1)) * steps, 0)
    exact, wanted = (reference(one, feeds) for one in (layer, with_weights(rounded)))
    scale = np.abs(exact).max()
    for parameters in routine.parameter_space(layer):
        lowering = routine.lower(layer, parameters)
        assert lowering.weight_bytes <= 2 * 4002 * 128 + 4 * 128
        (found,) = run_lowering(lowering, layer, feeds, *routine.layouts(layer, parameters))
        assert np.abs(found - wanted).max() < 1e-5 * scale
        assert np.abs(found - exact).max() < 1e-4 * scale
