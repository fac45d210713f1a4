"""Kernels for 64-bit ARM that compute no convolution against ONNX Runtime, on CPUs that qemu emulates."""

from __future__ import annotations

from functools import cache

import pytest

from nnstretch.devices.cpu.manifest import families
from nnstretch.devices.cpu.routines import native_routines
from tests.kits.kernels.emulated_kernels import TARGET, Request, cases_of, check_requests, cpus_of, emulator, request_of
from tests.kits.kernels.small_layers import SMALL_INT8_LAYERS, SMALL_LAYERS

pytestmark = pytest.mark.slow

ELSEWHERE = {
    "conv_direct",
    "conv_planar",
    "conv_strassen",
    "winograd",
    "winograd_int16",
    "dense",
    "dense_int16",
    "depthwise",
    "expand_depthwise",
    "depthwise_project",
    "inverted_residual",
    "conv_int8",
    "conv_int8_planar",
    "rows_int8",
    "depthwise_int8",
    "dense_int8",
    "conv_bfloat16",
    "expand_depthwise_bfloat16",
    "depthwise_project_bfloat16",
    "dense_bfloat16",
    "attention_bfloat16",
    "conv_float16",
    "dense_float16",
}
"""Families of kernels for convolutions and dense layers: test_arm_parity.py."""


@cache
def requests() -> list[Request]:
    routines = native_routines(TARGET.isa)
    layers = (*SMALL_LAYERS, *SMALL_INT8_LAYERS)
    found = [cases_of(routines, layer, lambda routine, layer: routine.parameter_space(layer)) for layer in layers]
    assert all(found), [layer.op for layer, cases in zip(layers, found, strict=True) if not cases]
    return [request_of(cases) for cases in found]


@pytest.mark.parametrize("cpu", cpus_of("attention", "memory_bound", "int8"))
def test_small_layers_of_every_operator(cpu: str) -> None:
    emulator()
    check_requests(requests(), cpu)


def test_every_family_of_kernels_is_used() -> None:
    used = {call.kernel for request in requests() for case in request.cases for call in case.calls}
    missing = [f.name for f in families().values() if used.isdisjoint(kernel.name for kernel in f.on(TARGET.isa))]
    assert set(missing) <= ELSEWHERE
