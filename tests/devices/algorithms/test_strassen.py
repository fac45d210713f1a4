"""Strassen's 1 × 1 convolutions and dense layers: all supported shapes, also in place; other layers are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.algorithms.strassen import strassen_weights
from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines.convolution.strassen import StrassenConvolution, StrassenDense
from nnstretch.errors import PackageError
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import (
    FOR_STRASSEN,
    NOT_FOR_STRASSEN,
    activations,
    check,
    check_setting,
    conv_layer,
    feeds_of,
    pointwise_layers,
    reference,
)
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.kernel_driver import run_lowering

CHANNELS = st.sampled_from([24, 28, 48, 51, 77, 96, 97, 100, 112, 128, 130, 160])
STRIDES = st.sampled_from([(1, 1), (2, 2), (1, 2), (3, 1)])
OUTPUTS = st.sampled_from([16, 31, 64, 72, 96, 100, 128, 168])


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(layer=pointwise_layers(CHANNELS, OUTPUTS, activations, STRIDES))
def test_any_pointwise_layer(routines: Sequence[Routine], layer: Layer) -> None:
    mine = [r for r in routines if isinstance(r, StrassenConvolution) and r.supports(layer)]
    if mine:
        check(mine, layer)


@pytest.mark.parametrize("pixels", [(7, 7), (13, 13), (14, 14), (1, 15), (5, 3)])
def test_planes_of_networks(routines: Sequence[Routine], pixels: tuple[int, int]) -> None:
    """Outputs are pairs of panels and single vectors; an odd number of pixels has one in both ranges."""
    layer = conv_layer((1, 128, *pixels), 208, (1, 1), pads=(0, 0, 0, 0), residual=True)
    mine = [r for r in routines if isinstance(r, StrassenConvolution)]
    assert mine and mine[0].supports(layer)
    for in_place in (False, True):
        check(mine, layer, in_place=in_place)


@pytest.mark.parametrize("strides", [(2, 2), (1, 3)])
def test_strided_layers(routines: Sequence[Routine], strides: tuple[int, int]) -> None:
    """A shortcut of a ResNet, whose pixels lie apart in rows and columns; units of one tile copy them themselves."""
    layer = conv_layer((2, 130, 27, 28), 208, (1, 1), pads=(0, 0, 0, 0), strides=strides, residual=True)
    (mine,) = [r for r in routines if isinstance(r, StrassenConvolution)]
    assert mine.supports(layer)
    wanted = reference(layer, feeds_of(layer))
    for parameters in mine.parameter_space(layer):
        for tiles, panels in ((1, 1), (2, 3), (parameters["tiles"], parameters["panels"])):
            check_setting(mine, layer, {**parameters, "tiles": tiles, "panels": panels}, wanted)


@pytest.mark.parametrize("lacking", [1, 6, 7])
def test_steps_of_earlier_versions_lack_the_last_parameters(routines: Sequence[Routine], lacking: int) -> None:
    """Packages hold steps of a kernel that knew no rows, or no strides, or no divisions either."""
    layer = conv_layer((1, 128, 13, 13), 192, (1, 1), pads=(0, 0, 0, 0))
    (mine,) = [r for r in routines if isinstance(r, StrassenConvolution)]
    parameters = mine.parameter_space(layer)[0]
    lowering, layouts = mine.lower(layer, parameters), mine.layouts(layer, parameters)
    (call,) = lowering.calls
    earlier = replace(lowering, calls=(replace(call, parameters=call.parameters[:-lacking]),))
    (found,) = run_lowering(earlier, layer, feeds_of(layer), *layouts)
    np.testing.assert_allclose(found, reference(layer, feeds_of(layer)), atol=1e-4)
    damaged = replace(lowering, calls=(replace(call, parameters=call.parameters[: -lacking - 2]),))
    with pytest.raises(PackageError, match="wrong number"):
        run_lowering(damaged, layer, feeds_of(layer), *layouts)


def test_small_units_of_work(routines: Sequence[Routine]) -> None:
    layer = conv_layer((1, 128, 13, 13), 192, (1, 1), pads=(0, 0, 0, 0), residual=True)
    (mine,) = [r for r in routines if isinstance(r, StrassenConvolution)]
    wanted = reference(layer, feeds_of(layer))
    for parameters in mine.parameter_space(layer):
        for tiles, panels in ((1, 1), (2, 3)):
            check_setting(mine, layer, {**parameters, "tiles": tiles, "panels": panels}, wanted)


def test_other_layers_are_not_supported(routines: Sequence[Routine]) -> None:
    (mine,) = [r for r in routines if isinstance(r, StrassenConvolution)]
    assert mine.supports(FOR_STRASSEN)
    assert not any(mine.supports(layer) for layer in NOT_FOR_STRASSEN)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    layer=st.builds(
        dense_layer,
        st.sampled_from([2, 3, 9, 13, 14, 27, 28, 29, 49, 57]),
        CHANNELS,
        OUTPUTS,
        bias=st.booleans(),
        residual=st.booleans(),
        activation=activations,
    ),
    in_place=st.booleans(),
)
def test_any_dense_layer(routines: Sequence[Routine], layer: Layer, in_place: bool) -> None:
    mine = [r for r in routines if isinstance(r, StrassenDense) and r.supports(layer)]
    if mine:
        check(mine, layer, in_place=in_place and layer.has(3))


def test_small_units_of_dense_layers(routines: Sequence[Routine]) -> None:
    """Units of one tile copy their rows themselves; an odd number of rows has one in both ranges."""
    layer = dense_layer(57, 130, 192, bias=True, residual=True, activation=Activation(ActivationKind.GELU))
    (mine,) = [r for r in routines if isinstance(r, StrassenDense)]
    assert mine.supports(layer)
    wanted = reference(layer, feeds_of(layer))
    for parameters in mine.parameter_space(layer):
        for tiles, panels in ((1, 1), (2, 3)):
            check_setting(mine, layer, {**parameters, "tiles": tiles, "panels": panels}, wanted)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 128, 192), (57, 128, 190), (57, 20, 192)])
def test_other_dense_layers_are_not_supported(
    routines: Sequence[Routine], rows: int, inputs: int, outputs: int
) -> None:
    """One row, outputs that fill no whole block, few inputs."""
    (mine,) = [r for r in routines if isinstance(r, StrassenDense)]
    layer = dense_layer(rows, inputs, outputs, bias=True, residual=False, activation=Activation())
    assert not mine.supports(layer)


def test_weights_take_seven_quarters() -> None:
    weights = strassen_weights(np.ones((128, 128, 1, 1), np.float32), 2, 16)
    assert weights.size == 7 * 64 * 64
