"""Fused convolutions against ONNX Runtime: every setting, on every instruction set that runs here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.devices.cpu.routines.convolution.fused import FusedConvolutions
from nnstretch.devices.cpu.routines.convolution.inverted_residual import InvertedResidual
from nnstretch.devices.cpu.routines.convolution.pair import DepthwiseProject, ExpandDepthwise
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer, fused_layer, fused_pair
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import check_setting, conv_layer, feeds_of, reference
from tests.kits.kernels.fused_shapes import (
    after,
    block_layer,
    depthwise_project,
    expand_depthwise,
    inverted_residuals,
    pointwise,
)

RELU6 = Activation(ActivationKind.CLIP, 0.0, 6.0)
SILU = Activation(ActivationKind.SILU)

many = settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])


def variants(routine: Routine, layer: Layer) -> list[Parameters]:
    """The settings that the routine offers, and other bands: one row, uneven shares, more rows than the output."""
    space = list(routine.parameter_space(layer))
    return space + [{**space[band % len(space)], "band": band} for band in (1, 2, 3, 5, 100)]


def check(
    routines: Sequence[Routine], layer: Layer, wanted_routine: type[FusedConvolutions], *, in_place: bool = False
) -> None:
    """Compares all settings of the routine that computes the chain; of one channel, another one may compute it, too."""
    found = {type(routine): routine for routine in routines if routine.supports(layer)}
    assert found.keys() == {wanted_routine} or layer.outputs[0].shape[1] == 1
    routine = found[wanted_routine]
    wanted = reference(layer, feeds_of(layer))
    for parameters in variants(routine, layer):
        check_setting(routine, layer, parameters, wanted, in_place=in_place)


@many
@given(layer=expand_depthwise())
def test_expand_depthwise(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, ExpandDepthwise)


@many
@given(layer=depthwise_project())
def test_depthwise_project(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, DepthwiseProject)


@many
@given(layer=inverted_residuals())
def test_inverted_residual(routines: Sequence[Routine], layer: Layer) -> None:
    check(routines, layer, InvertedResidual)


def block_of(
    inputs: int, middle: int, size: int, kernel: int, stride: int, activation: Activation
) -> tuple[Layer, ...]:
    """An inverted residual block: expand, depthwise, project."""
    expand = pointwise((1, inputs, size, size), middle, activation=activation)
    depthwise = conv_layer(
        after(expand),
        middle,
        (kernel, kernel),
        strides=(stride, stride),
        pads=(kernel // 2,) * 4,
        groups=middle,
        activation=activation,
    )
    return expand, depthwise, pointwise(after(depthwise), inputs, residual=stride == 1)


@pytest.mark.parametrize(
    "block",
    [
        block_of(16, 96, 112, 3, 2, RELU6),
        block_of(24, 144, 56, 3, 1, RELU6),
        block_of(64, 384, 14, 3, 1, RELU6),
        block_of(160, 960, 7, 3, 1, RELU6),
        block_of(40, 240, 19, 5, 2, SILU),
        block_of(272, 1632, 10, 5, 1, SILU),
    ],
    ids=lambda block: f"{block[0].type_of(0).shape[1]}at{block[0].type_of(0).shape[2]}",
)
def test_blocks_of_networks(routines: Sequence[Routine], block: tuple[Layer, ...]) -> None:
    expand, depthwise, project = block
    check(routines, fused_pair(expand, depthwise), ExpandDepthwise)
    check(routines, fused_pair(depthwise, project), DepthwiseProject)
    check(routines, block_layer(*block), InvertedResidual)


def test_other_pairs_are_not_supported(routines: Sequence[Routine]) -> None:
    depthwise = conv_layer((1, 32, 9, 9), 32, groups=32)
    residual = conv_layer((1, 32, 9, 9), 32, groups=32, residual=True)
    expand = pointwise((1, 8, 9, 9), 32)
    others = [
        (depthwise, depthwise),
        (expand, pointwise(after(expand), 8)),
        (pointwise((1, 8, 9, 9), 32, residual=True), depthwise),
        (residual, pointwise(after(depthwise), 8)),
        (conv_layer((1, 8, 9, 9), 32), depthwise),
        (conv_layer((1, 8, 18, 18), 32, (1, 1), strides=(2, 2), pads=(0,) * 4), depthwise),
        (depthwise, conv_layer((1, 32, 9, 9), 64, groups=2)),
    ]
    for first, second in others:
        assert not any(routine.supports(fused_pair(first, second)) for routine in routines)


def test_other_blocks_are_not_supported(routines: Sequence[Routine]) -> None:
    expand, depthwise, project = block_of(24, 144, 9, 3, 2, RELU6)
    grouped = conv_layer((1, 144, 9, 9), 144, strides=(2, 2), groups=72)
    with_residual = conv_layer((1, 144, 9, 9), 144, strides=(2, 2), groups=144, residual=True)
    others = [
        fused_layer((expand, grouped, project), ((0,), (-1,), (-2,))),
        fused_layer((expand, with_residual, project), ((0,), (-1, 1), (-2,))),
        fused_layer((project, pointwise(after(project), 144), depthwise), ((0,), (-1,), (-2,))),
        fused_layer((expand, depthwise, conv_layer(after(depthwise), 24)), ((0,), (-1,), (-2,))),
        fused_layer((expand, project, project), ((0,), (1,), (-2,))),
    ]
    for layer in others:
        assert not any(routine.supports(layer) for routine in routines)


def test_the_output_may_take_the_residuals_memory(routines: Sequence[Routine]) -> None:
    first = conv_layer((1, 40, 9, 15), 40, groups=40, activation=RELU6)
    layer = fused_pair(first, pointwise(after(first), 48, residual=True, activation=RELU6))
    check(routines, layer, DepthwiseProject, in_place=True)
    expand, depthwise, _ = block_of(24, 144, 9, 3, 2, RELU6)
    block = (expand, depthwise, pointwise(after(depthwise), 24, residual=True))
    check(routines, block_layer(*block), InvertedResidual, in_place=True)
