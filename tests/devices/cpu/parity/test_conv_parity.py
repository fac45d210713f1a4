"""Convolutions and dense layers against ONNX Runtime: every routine and setting, on every instruction set that runs here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Routine
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import check, conv_layer
from tests.kits.kernels.convolution_shapes import (
    LAYERS,
    convolutions,
    dense_channels,
    dense_layers,
    few_channels,
    grouped_channels,
    kernels,
    narrow_channels,
)

many = settings(max_examples=examples(70), suppress_health_check=[HealthCheck.too_slow])


@many
@given(layer=convolutions(dense_channels, kernels))
def test_any_convolution(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer)


@many
@given(layer=convolutions(dense_channels, st.just((1, 1))))
def test_pointwise_convolutions(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer)


@many
@given(layer=convolutions(grouped_channels, kernels))
def test_grouped_convolutions(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer)


@many
@given(layer=convolutions(narrow_channels, kernels | st.sampled_from([(3, 3), (5, 5), (7, 7)])))
def test_depthwise_and_narrow_groups(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer)


@many
@given(layer=convolutions(few_channels, kernels))
def test_first_layers(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer)


@many
@given(layer=dense_layers)
def test_dense(routines: Sequence[Routine], layer: Layer) -> None:
    products = {"dense", "dense_int16"}
    check(routines, layer, products | {"conv"} if layer.type_of(0).shape[0] > 1 and not layer.has(3) else products)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks(routines: Sequence[Routine], name: str) -> None:
    layer, wanted = LAYERS[name]
    check(routines, layer, wanted)


def test_depthwise_with_every_pixel_at_the_border(routines: Sequence[Routine]) -> None:
    """With a dilation so large that no pixel has all its taps inside the input."""
    layer = conv_layer((1, 5, 120, 120), 5, pads=(50,) * 4, dilations=(50, 50), groups=5)
    check(routines, layer, {"direct", "depthwise"})


@pytest.mark.parametrize("dilation", [2, 3, 12])
@pytest.mark.parametrize("size", [3, 5])
def test_dilated_depthwise(routines: Sequence[Routine], size: int, dilation: int) -> None:
    """Columns of a strip are as far apart as taps; rows of all widths, with padding that keeps them and without."""
    for width in (1, 2, 5, 14, 29, 61):
        for padding in {0, size // 2 * dilation}:
            if width + 2 * padding <= (size - 1) * dilation:
                continue
            pads = (padding, padding, padding, padding)
            height = (size - 1) * dilation + 3
            layer = conv_layer(
                (1, 17, height, width), 17, (size, size), pads=pads, dilations=(dilation, dilation), groups=17, residual=True,
                activation=Activation(ActivationKind.GELU),
            )  # fmt: skip
            check(routines, layer, in_place=True)


def test_sums_may_be_made_in_the_residuals_memory(routines: Sequence[Routine]) -> None:
    """A planner may give the output the residual's memory: every kernel reads a residual before it writes there."""
    layers = [conv_layer((1, 40, 9, 9), 64, residual=True), conv_layer((1, 40, 9, 9), 40, groups=40, residual=True)]
    layers += [conv_layer((1, 3, 9, 9), 16, residual=True)]
    # Panels narrower than the widest have tiles of more pixels, which may not reach into the next unit.
    layers += [conv_layer((1, 20, 9, 9), 72, residual=True)]
    for layer in layers:
        check(routines, layer, in_place=True)
