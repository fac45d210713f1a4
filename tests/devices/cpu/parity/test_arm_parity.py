"""Kernels for 64-bit ARM against ONNX Runtime, on CPUs that qemu emulates."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.geometry import KernelGeometry
from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.manifest import families
from nnstretch.devices.cpu.manifest import kernels as kernels_by_name
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.cpu.routines.convolution.winograd import WinogradConvolutionOfInt16Weights
from nnstretch.devices.engine.build.instruction_sets import cpu_features
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import BFLOAT16, FLOAT16
from nnstretch.graph.layer import Layer, fused_pair
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import activations, conv_layer, feeds_of, pointwise_layers
from tests.kits.kernels.convolution_shapes import (
    LAYERS,
    convolutions,
    dense_channels,
    dense_layer,
    dense_layers,
    few_channels,
    grouped_channels,
    kernels,
    narrow_channels,
)
from tests.kits.kernels.cpu_features import families_that_differ
from tests.kits.kernels.cpu_routines import compute_bound_routines
from tests.kits.kernels.emulated_kernels import (
    CPUS,
    TARGET,
    Request,
    cases_of,
    check_cases,
    check_requests,
    cpus_of,
    emulator,
    errors_of,
    program,
    request_of,
)
from tests.kits.kernels.fused_shapes import depthwise_project, expand_depthwise, inverted_residuals
from tests.kits.kernels.int8_layers import (
    int8_convolutions,
    quantized,
    summed,
    whole_channels,
    whole_quads,
    with_float_result,
    zero_points,
)
from tests.kits.kernels.rounded_layers import reference_of_pair, reference_of_rounded, rounded
from tests.kits.kernels.token_layers import attention_layer, reference_of_attention

pytestmark = pytest.mark.slow

FUZZ_ROUNDS = 20
ROUTINES = compute_bound_routines(TARGET.isa)
FLOAT_CPUS, INT8_CPUS = cpus_of("convolution", "winograd"), cpus_of("int8")
few = settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow])
odd_channels = st.sampled_from([2, 32, 33, 64, 65, 100])


@few
@given(
    layer=convolutions(dense_channels, kernels)
    | convolutions(dense_channels, st.just((1, 1)))
    | convolutions(grouped_channels, kernels)
    | convolutions(narrow_channels, st.sampled_from([(3, 3), (5, 5), (7, 7)]))
    | convolutions(few_channels, kernels)
    | pointwise_layers(odd_channels, odd_channels, activations)
    | dense_layers
    | expand_depthwise()
    | depthwise_project()
    | inverted_residuals(),
    cpu=st.sampled_from(FLOAT_CPUS),
)
def test_random_layers(layer: Layer, cpu: str) -> None:
    if cases := cases_of(ROUTINES, layer):
        check_cases(cases, cpu)


@pytest.mark.parametrize("cpu", FLOAT_CPUS)
def test_layers_of_networks_use_every_kernel_for_convolutions(cpu: str) -> None:
    """Every tile of the direct convolution and of the first layer, on layers of networks."""
    tried: set[str] = set()
    for name in (
        "resnet_stem",
        "mobilenet_stem",
        "resnet_3x3",
        "resnet_wide",
        "regnet_stride",
        "odd_channels",
        "efficientnet",
    ):
        cases = cases_of(ROUTINES, LAYERS[name][0])
        check_cases(cases, cpu)
        tried |= {case.call.kernel for case in cases}
    for family in ("conv_direct", "conv_planar"):
        assert {kernel.name for kernel in families()[family].on(TARGET.isa)} <= tried


@pytest.mark.parametrize("cpu", FLOAT_CPUS)
def test_encoded_weights_stored_as_int16(cpu: str) -> None:
    """Every transform and tile, with a last group of channels that is not full."""
    (routine,) = (one for one in ROUTINES if isinstance(one, WinogradConvolutionOfInt16Weights))
    layer = conv_layer((1, 37, 9, 9), 32, residual=True)
    settings = [
        {**routine.parameter_space(layer)[0], "alpha": division.down.alpha, "tiles": tiles, "vectors": vectors}
        for division in routine.divisions(KernelGeometry.of(layer))
        for tiles, vectors in routine.tiles
    ]
    cases = cases_of([routine], layer, lambda *_: settings)
    check_cases(cases, cpu)
    names = {kernel.name for kernel in families()["winograd_int16"].on(TARGET.isa)}
    assert {case.call.kernel for case in cases} == names


@few
@given(
    layer=int8_convolutions(whole_channels | whole_quads, kernels | st.just((1, 1)))
    | st.builds(quantized, dense_layers, st.integers(0, 999), st.tuples(zero_points, zero_points, zero_points)),
    cpu=st.sampled_from(INT8_CPUS),
)
def test_random_int8_layers(layer: Layer, cpu: str) -> None:
    if cases := cases_of(ROUTINES, layer):
        check_cases(cases, cpu)


@cache
def int8_requests() -> list[Request]:
    """All tiles, groups within a block, sums rounded twice, depthwise kernels of 3 and 5 columns, dense layers."""
    names = "resnet_stem", "resnet_3x3", "resnet_wide", "regnet_stride", "odd_channels", "mobilenet", "efficientnet"
    layers = [LAYERS[name][0] for name in names]
    layers += [
        conv_layer((1, 8, 9, 9), 3, residual=True),
        conv_layer((1, 3, 9, 9), 3, residual=True),
        dense_layer(7, 33, 70, bias=True, residual=True, activation=NO_ACTIVATION),
    ]
    int8_layers = [quantized(layer, 1) for layer in layers]
    int8_layers += [
        summed(quantized(conv_layer((1, 20, 9, 9), 24, residual=True), 1), first=False),
        summed(quantized(conv_layer((1, 24, 6, 7), 24, groups=4, residual=True), 1)),
    ]
    unrounded = [
        conv_layer((1, 3, 9, 15), 20, (7, 7), pads=(3,) * 4),
        conv_layer((1, 20, 9, 9), 24, activation=Activation(ActivationKind.RELU)),
        conv_layer((1, 24, 6, 7), 24, groups=4),
        conv_layer((1, 20, 9, 9), 20, groups=20),
        dense_layer(1, 33, 70, bias=True, residual=False, activation=NO_ACTIVATION),
        dense_layer(7, 33, 70, bias=True, residual=False, activation=NO_ACTIVATION),
    ]
    int8_layers += [with_float_result(quantized(layer, 1)) for layer in unrounded]
    return [request_of(cases_of(ROUTINES, layer)) for layer in int8_layers]


@pytest.mark.parametrize("cpu", INT8_CPUS)
def test_int8_layers_use_every_kernel_for_them(cpu: str) -> None:
    for request in int8_requests():
        check_requests([request], cpu)
    tried = {case.call.kernel for request in int8_requests() for case in request.cases}
    for family in ("conv_int8", "conv_int8_planar", "rows_int8", "depthwise_int8", "dense_int8"):
        assert {kernel.name for kernel in families()[family].on(TARGET.isa)} <= tried


@pytest.mark.parametrize("cpu", cpus_of("bfloat16"))
def test_products_of_bfloat16(cpu: str) -> None:
    """Groups that begin within a part of the rounded rows, rows of all widths of strips, channels that fill no pair; pairs."""
    every = native_routines(TARGET.isa, features=cpu_features(), products=(BFLOAT16,))
    routines = [one for one in every if one.rounds_to]
    layers = [
        conv_layer((1, 72, 5, 7), 48, (3, 2), groups=3, residual=True),
        conv_layer((2, 37, 4, 15), 21, (1, 1), pads=(0, 0, 0, 0)),
        conv_layer((1, 34, 9, 3), 20, strides=(2, 2), dilations=(2, 1)),
        conv_layer((1, 42, 2, 27), 42, (1, 3), groups=14),
    ]
    requests = [request_of(cases_of(routines, layer), reference_of_rounded(layer)) for layer in layers]
    expand, depthwise = conv_layer((1, 12, 7, 9), 40, (1, 1), pads=(0,) * 4), conv_layer((1, 40, 7, 9), 40, groups=40)
    project = conv_layer((1, 40, 7, 9), 20, (1, 1), pads=(0,) * 4, residual=True)
    pairs = fused_pair(expand, depthwise), fused_pair(depthwise, project)
    requests += [request_of(cases_of(routines, one), reference_of_pair(one, part)) for part, one in enumerate(pairs)]
    layer = dense_layer(19, 37, 70, bias=True, residual=True, activation=NO_ACTIVATION)
    requests.append(request_of(cases_of(routines, layer), reference_of_rounded(layer)))
    layer = attention_layer((2, 1, 15, 21, 7, 9), heads=2, groups=1)
    wanted = reference_of_attention(layer, feeds_of(layer), rounded)
    requests.append(request_of(cases_of(routines, layer), wanted.astype(np.float32)))
    check_requests(requests, cpu)
    tried = {case.call.kernel for request in requests for case in request.cases}
    of_bfloat16 = [kernel for kernel in kernels_by_name().values() if kernel.family.endswith(BFLOAT16)]
    assert tried == {kernel.name for kernel in of_bfloat16 if kernel.is_in(TARGET.isa)}


HALF_CPUS = [cpu for cpu, features in CPUS.items() if "asimdhp" in features]
TERMS = {64: 3e-3, 128: 4e-3}
"""Products that are added up in float16 -> error that they may have, relative to the largest output."""


def float16_routines() -> list[Routine]:
    return [one for one in native_routines(TARGET.isa, features=cpu_features(), products=(FLOAT16,)) if one.rounds_to]


@pytest.mark.parametrize("cpu", HALF_CPUS)
def test_products_of_float16(cpu: str) -> None:
    """Groups, strides and dilations, tiles of one and of two vectors, blocks that fill no vector; patches; dense layers."""
    layers = [
        conv_layer((1, 72, 5, 7), 48, (3, 2), groups=3, residual=True),
        conv_layer((2, 37, 4, 15), 21, (1, 1), pads=(0, 0, 0, 0)),
        conv_layer((1, 34, 9, 3), 20, strides=(2, 2), dilations=(2, 1)),
        conv_layer((1, 64, 14, 14), 8),
        conv_layer((1, 5, 16, 20), 24, (4, 4), strides=(4, 4), pads=(0, 0, 0, 0)),
        dense_layer(19, 37, 70, bias=True, residual=True, activation=NO_ACTIVATION),
        dense_layer(7, 150, 12, bias=False, residual=False, activation=NO_ACTIVATION),
    ]
    requests = [request_of(cases_of(float16_routines(), layer)) for layer in layers]
    check_requests(requests, cpu)
    tried = {case.call.kernel for request in requests for case in request.cases}
    of_float16 = [kernel for kernel in kernels_by_name().values() if kernel.family.endswith("_float16")]
    assert tried == {kernel.name for kernel in of_float16 if kernel.is_in(TARGET.isa)}


@pytest.mark.parametrize("channels", [64, 512])
@pytest.mark.parametrize("what", ["any sign", "all positive"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_error_of_sums_of_float16(channels: int, what: str, size: float) -> None:
    """It does not grow with the number of channels, nor for inputs and weights beyond the range of float16."""
    layer = conv_layer((1, channels, 8, 8), 32, (1, 1), pads=(0, 0, 0, 0), bias=False)
    feed, weight = feeds_of(layer)[0] * np.float32(size), layer.constants[1] * np.float32(1e6)
    if what == "all positive":
        feed, weight = np.abs(feed), np.abs(weight)
    layer = replace(layer, constants={**layer.constants, 1: weight})
    wanted = np.einsum("nchw,oc->nohw", feed.astype(np.float64), weight[:, :, 0, 0].astype(np.float64))
    (routine,) = (one for one in float16_routines() if one.supports(layer))
    settings = [{**routine.default_parameters(layer), "terms": terms} for terms in TERMS]
    request = request_of(cases_of([routine], layer, lambda *_: settings), wanted, [feed])
    errors = errors_of(request, "cortex-a76")
    assert all(error < allowed for error, allowed in zip(errors, TERMS.values(), strict=True)), errors
    assert errors[0] > 1e-4  # sums are of float16


REQUIRED = ("conv_float16", "dense_float16")
"""Families of kernels that 64-bit ARM has only with a feature, that of the Cortex-A76."""


@pytest.mark.parametrize(
    ("cpu", "some"),
    [
        ("cortex-a53", [family for family in families() if family not in REQUIRED]),
        ("cortex-a76", list(REQUIRED)),
        ("max,sve=off", families_that_differ("-i8mm")),
    ],
    ids=["cortex-a53", "required", "i8mm"],
)
def test_no_access_beside_operands(cpu: str, some: list[str]) -> None:
    """Every kernel, and the variants for i8mm, with random parameters, on memory of exactly the sizes that it asks for."""
    command = [emulator(), "-cpu", cpu, str(program("kernel_fuzz.c")), str(FUZZ_ROUNDS), "1", *some]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout.rpartition(chr(10))[2]}: {done.stderr}"
    names = {kernel.name for family in some for kernel in families()[family].on(TARGET.isa)}
    assert {line.split()[0] for line in done.stdout.splitlines()} == names
