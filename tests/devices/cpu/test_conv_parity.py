"""Convolutions and dense layers against ONNX Runtime: every routine and setting, on every instruction set that runs here."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Routine
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.convolution_parity import activations, check, conv_layer, pads, pairs, random
from tests.kits.hypothesis_examples import examples

many = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


def dense_layer(batch: int, inputs: int, outputs: int, *, bias: bool, residual: bool, activation: Activation) -> Layer:
    weight = random((outputs, inputs), 1, inputs**-0.5)
    output = TensorType((batch, outputs))
    return Layer(
        "tested",
        "Dense",
        (
            TensorType((batch, inputs)),
            TensorType(weight.shape),
            TensorType((outputs,)) if bias else None,
            output if residual else None,
        ),
        (output,),
        MappingProxyType({}),
        activation,
        MappingProxyType({1: weight} | ({2: random((outputs,), 2)} if bias else {})),
    )


kernels = st.tuples(st.integers(1, 7), st.integers(1, 7))


@st.composite
def convolutions(
    draw: st.DrawFn, channels: st.SearchStrategy[tuple[int, int, int]], kernels: st.SearchStrategy[tuple[int, int]]
) -> Layer:
    """Convolutions of (inputs, outputs, groups) whose planes are about as wide as register tiles."""
    inputs, outputs, groups = draw(channels)
    kernel, dilations, padding = draw(kernels), draw(pairs), draw(pads)
    height, width = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 5, 6, 7, 9, 11, 13, 14, 15, 27, 28, 29]))
    extent = (height + padding[0] + padding[2], width + padding[1] + padding[3])
    assume(all((k - 1) * d < r for k, d, r in zip(kernel, dilations, extent, strict=True)))
    return conv_layer(
        (draw(st.integers(1, 3)), inputs, height, width),
        outputs,
        kernel,
        strides=draw(pairs),
        pads=padding,
        dilations=dilations,
        groups=groups,
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(activations),
    )


dense_channels = st.tuples(
    st.integers(1, 50), st.sampled_from([1, 3, 7, 16, 24, 31, 32, 33, 48, 64, 80, 96, 100]), st.just(1)
)
grouped_channels = st.builds(
    lambda groups, inputs, outputs: (groups * inputs, groups * outputs, groups),
    st.integers(2, 6),
    st.sampled_from([1, 2, 3, 4, 8, 12, 16, 24, 32]),
    st.sampled_from([1, 2, 4, 5, 8, 16, 24, 32]),
)
narrow_channels = st.builds(
    lambda groups, width: (groups * width, groups * width, groups),
    st.integers(2, 40),
    st.sampled_from([1, 1, 1, 2, 4, 8]),
)
few_channels = st.tuples(st.integers(1, 4), st.sampled_from([5, 16, 24, 32, 33, 64]), st.just(1))


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
@given(
    layer=st.builds(
        dense_layer,
        st.sampled_from([1, 2, 5, 6, 7, 13, 64]),
        st.integers(1, 70),
        st.sampled_from([1, 4, 15, 16, 17, 31, 63, 64, 65, 130]),
        bias=st.booleans(),
        residual=st.booleans(),
        activation=activations,
    )
)
def test_dense(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, {"dense", "conv"} if layer.type_of(0).shape[0] > 1 and not layer.has(3) else {"dense"})


LAYERS = {
    "resnet_stem": (conv_layer((1, 3, 32, 32), 64, (7, 7), strides=(2, 2), pads=(3,) * 4), {"planar", "direct"}),
    "mobilenet_stem": (conv_layer((2, 3, 33, 33), 32, strides=(2, 2)), {"planar", "direct"}),
    "resnet_3x3": (conv_layer((1, 64, 14, 14), 128, residual=True), {"direct"}),
    "resnet_3x3_7": (conv_layer((1, 128, 7, 7), 128), {"direct"}),
    "resnet_downsample": (conv_layer((1, 64, 14, 14), 128, (1, 1), strides=(2, 2), pads=(0,) * 4), {"direct"}),
    "resnet_wide": (conv_layer((2, 192, 7, 7), 64, (1, 1), pads=(0,) * 4, residual=True), {"direct"}),
    "regnet": (conv_layer((1, 72, 14, 14), 72, groups=3), {"direct"}),
    "regnet_stride": (conv_layer((1, 168, 14, 14), 168, groups=7, strides=(2, 2)), {"direct"}),
    "resnext": (conv_layer((1, 64, 14, 14), 64, groups=32), {"direct", "depthwise"}),
    "aligned_groups": (conv_layer((1, 128, 9, 9), 128, groups=2), {"direct"}),
    "multiplier": (conv_layer((1, 20, 9, 9), 40, groups=20), {"direct"}),
    "mobilenet": (conv_layer((1, 40, 28, 28), 40, groups=40), {"direct", "depthwise"}),
    "efficientnet": (
        conv_layer((1, 40, 29, 29), 40, (5, 5), pads=(1, 1, 2, 2), strides=(2, 2), groups=40),
        {"direct", "depthwise"},
    ),
    "convnext": (conv_layer((1, 96, 14, 14), 96, (7, 7), pads=(3,) * 4, groups=96), {"direct", "depthwise"}),
    "odd_channels": (conv_layer((1, 51, 13, 13), 77), {"direct"}),
    "odd_pointwise": (conv_layer((1, 97, 7, 7), 279, (1, 1), pads=(0,) * 4, residual=True), {"direct"}),
    "half_a_block_left": (conv_layer((2, 24, 13, 13), 72, (1, 1), pads=(0,) * 4, residual=True), {"direct"}),
    "less_than_half_left": (conv_layer((1, 20, 9, 9), 51, (1, 1), pads=(0,) * 4), {"direct"}),
    "panels_of_two_widths": (conv_layer((1, 40, 7, 7), 272, (1, 1), pads=(0,) * 4), {"direct"}),
    "groups_of_two_and_a_half": (conv_layer((1, 120, 9, 9), 120, groups=3, strides=(2, 2)), {"direct"}),
    "groups_of_half": (conv_layer((1, 48, 9, 9), 24, groups=3, residual=True), {"direct"}),
    "squeeze": (conv_layer((1, 240, 1, 1), 10, (1, 1), pads=(0,) * 4), {"direct"}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_networks(routines: Sequence[Routine], name: str) -> None:
    layer, wanted = LAYERS[name]
    check(routines, layer, wanted)


def test_depthwise_with_every_pixel_at_the_border(routines: Sequence[Routine]) -> None:
    """With a dilation so large that no pixel has all its taps inside the input."""
    layer = conv_layer((1, 5, 120, 120), 5, pads=(50,) * 4, dilations=(50, 50), groups=5)
    check(routines, layer, {"direct", "depthwise"})


def test_sums_may_be_made_in_the_residuals_memory(routines: Sequence[Routine]) -> None:
    """A planner may give the output the residual's memory: every kernel reads a residual before it writes there."""
    layers = [conv_layer((1, 40, 9, 9), 64, residual=True), conv_layer((1, 40, 9, 9), 40, groups=40, residual=True)]
    layers += [conv_layer((1, 3, 9, 9), 16, residual=True)]
    for layer in layers:
        check(routines, layer, in_place=True)
