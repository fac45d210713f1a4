"""Shares of layers compute the channels of the whole layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Layer
from nnstretch.graph.reference import run_layer
from nnstretch.graph.slices import bounds, is_divisible, layer_share, sliced_inputs
from tests.kits.kernels.int8_layers import exact_steps, int8_convolutions, int8_feeds

CHANNELS = st.sampled_from([(8, 40, 1), (40, 40, 40), (3, 33, 1)])
"""Channels of input and output, and groups: plain and depthwise convolutions."""
KERNELS = st.sampled_from([(1, 1), (3, 3)])


def in_float(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    """The result of the float form of an int8 layer."""
    form, floats = float_form(layer), []
    assert form is not None
    for row, feed in zip(layer.activations, feeds, strict=True):
        quantization = layer.type_of(row).quantization
        assert quantization is not None
        floats.append(quantization.dequantize(feed))
    (found,) = run_layer(form, *floats)
    return found


@settings(max_examples=25)
@given(int8_convolutions(CHANNELS, KERNELS), st.integers(1, 32))
def test_shares_of_int8_layers(layer: Layer, first: int) -> None:
    """Each has its own scales, in its float form, too."""
    assume(layer.outputs[0].shape[0] == 1)
    assert is_divisible(layer)
    feeds, exact, floats = int8_feeds(layer), [], []
    for begin, end in bounds((first, layer.outputs[0].shape[1] - first)):
        own = [
            feed[:, begin:end] if row in sliced_inputs(layer) else feed
            for row, feed in zip(layer.activations, feeds, strict=True)
        ]
        share = layer_share(layer, begin, end)
        exact.append(exact_steps(share, own))
        floats.append(in_float(share, own))
    np.testing.assert_array_equal(np.concatenate(exact, axis=1), exact_steps(layer, feeds))
    whole = in_float(layer, feeds)
    np.testing.assert_allclose(np.concatenate(floats, axis=1), whole, rtol=1e-4, atol=1e-4 * np.abs(whole).max())
