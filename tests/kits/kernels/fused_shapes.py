"""Fused convolutions of many shapes for parity tests."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from nnstretch.graph.layer import Layer, fused_layer, fused_pair
from tests.kits.kernels.convolution_parity import activations, conv_layer, pads, pairs

channels = st.sampled_from([1, 5, 12, 16, 17, 24, 31, 32, 33, 48, 50, 64, 72, 80])


def pointwise(shape: tuple[int, int, int, int], outputs: int, **more: object) -> Layer:
    return conv_layer(shape, outputs, (1, 1), pads=(0,) * 4, **more)  # type: ignore[arg-type]


def after(layer: Layer) -> tuple[int, int, int, int]:
    batch, outputs, height, width = layer.outputs[0].shape
    return batch, outputs, height, width


@st.composite
def depthwise_layers(draw: st.DrawFn, *, residual: bool = False) -> Layer:
    """Depthwise convolutions of any kernel, mostly those that have a template of their own."""
    count = draw(channels)
    usual = st.sampled_from([3, 5, 7]).map(lambda k: (k, k))
    kernel = draw(usual | st.tuples(st.integers(1, 7), st.integers(1, 7)))
    strides, dilations = draw(st.sampled_from([(1, 1), (2, 2)]) | pairs), draw(st.just((1, 1)) | pairs)
    padding = draw(st.just((kernel[0] // 2, kernel[1] // 2) * 2) | pads)
    height, width = draw(st.integers(1, 15)), draw(st.sampled_from([1, 2, 3, 7, 8, 13, 14, 15, 16, 28, 30, 57]))
    extent = (height + padding[0] + padding[2], width + padding[1] + padding[3])
    assume(all((k - 1) * d < r for k, d, r in zip(kernel, dilations, extent, strict=True)))
    return conv_layer(
        (draw(st.integers(1, 2)), count, height, width),
        count,
        kernel,
        strides=strides,
        pads=padding,
        dilations=dilations,
        groups=count,
        bias=draw(st.booleans()),
        residual=residual and draw(st.booleans()),
        activation=draw(activations),
    )


@st.composite
def expand_depthwise(draw: st.DrawFn) -> Layer:
    second = draw(depthwise_layers(residual=True))
    batch, count, height, width = second.type_of(0).shape
    shape = (batch, draw(channels), height, width)
    return fused_pair(pointwise(shape, count, bias=draw(st.booleans()), activation=draw(activations)), second)


@st.composite
def depthwise_project(draw: st.DrawFn) -> Layer:
    first = draw(depthwise_layers())
    bias, residual = draw(st.booleans()), draw(st.booleans())
    second = pointwise(after(first), draw(channels), bias=bias, residual=residual, activation=draw(activations))
    return fused_pair(first, second)


@st.composite
def inverted_residuals(draw: st.DrawFn) -> Layer:
    """Blocks of three convolutions; the residual is the block's input if that has the output's shape, or another tensor."""
    depthwise = draw(depthwise_layers())
    batch, count, height, width = depthwise.type_of(0).shape
    shape = (batch, draw(channels), height, width)
    expand = pointwise(shape, count, bias=draw(st.booleans()), activation=draw(activations))
    residual = draw(st.booleans())
    project = pointwise(
        after(depthwise), draw(channels), bias=draw(st.booleans()), residual=residual, activation=draw(activations)
    )
    return block_layer(expand, depthwise, project)


def block_layer(expand: Layer, depthwise: Layer, project: Layer) -> Layer:
    """The inverted residual block of these convolutions."""
    own = expand.inputs[0] != project.outputs[0]
    residual = (int(own),) if project.has(3) else ()
    return fused_layer((expand, depthwise, project), ((0,), (-1,), (-2, *residual)))
