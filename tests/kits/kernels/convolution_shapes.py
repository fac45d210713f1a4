"""Convolutions and dense layers of many shapes for parity tests: random ones, and those of networks."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import assume
from hypothesis import strategies as st

from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.convolution_parity import activations, conv_layer, exact_in_int16, pads, pairs, random


def dense_layer(batch: int, inputs: int, outputs: int, *, bias: bool, residual: bool, activation: Activation) -> Layer:
    weight = exact_in_int16(random((outputs, inputs), 1, inputs**-0.5))
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
    lambda groups, width, times: (groups * width, groups * width * (times if width == 1 else 1), groups),
    st.integers(2, 40),
    st.sampled_from([1, 1, 1, 2, 4, 8]),
    st.sampled_from([1, 1, 2, 4]),
)
few_channels = st.tuples(st.integers(1, 4), st.sampled_from([5, 16, 24, 32, 33, 64]), st.just(1))

dense_layers = st.builds(
    dense_layer,
    st.sampled_from([1, 2, 5, 6, 7, 13, 64]),
    st.integers(1, 70),
    st.sampled_from([1, 4, 15, 16, 17, 31, 63, 64, 65, 130]),
    bias=st.booleans(),
    residual=st.booleans(),
    activation=activations,
)
"""Small and large batches, panels that are not full."""

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
    "multiplier": (conv_layer((1, 20, 9, 9), 40, groups=20), {"direct", "repeated_depthwise"}),
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
    "pointwise_groups": (conv_layer((1, 18, 9, 9), 36, (1, 1), pads=(0,) * 4, groups=3), {"direct"}),
    "groups_of_half": (conv_layer((1, 48, 9, 9), 24, groups=3, residual=True), {"direct"}),
    "squeeze": (conv_layer((1, 240, 1, 1), 10, (1, 1), pads=(0,) * 4), {"direct", "dense", "dense_int16"}),
    "head": (conv_layer((3, 40, 1, 1), 70, (1, 1), pads=(0,) * 4, residual=True), {"direct", "dense", "dense_int16"}),
    "vit_stem": (conv_layer((1, 3, 48, 80), 40, (16, 16), (16, 16), (0,) * 4), {"planar", "direct", "patches"}),
    "swin_stem": (conv_layer((2, 3, 19, 22), 40, (4, 4), (4, 4), (0,) * 4), {"planar", "direct", "patches"}),
    "patches_of_many_channels": (conv_layer((1, 20, 8, 12), 33, (4, 4), (4, 4), (0,) * 4), {"direct", "patches"}),
}
"""Layers of networks, and the algorithms that compute them beside Strassen's and Winograd's."""
