"""Every setting that GPUs of phones are offered demands no more registers, local memory and work items than they have."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from nnstretch.api.devices import opencl_traits
from nnstretch.devices.opencl.routines import OpenCLRoutine, Traits, routines
from nnstretch.devices.opencl.routines.demand import Demand
from nnstretch.devices.opencl.routines.images import reads_image
from nnstretch.devices.opencl.traits import half_rate
from nnstretch.devices.opencl.vendors import UNKNOWN, VENDORS, vendor_name
from nnstretch.graph.layer import Layer
from tests.kits.opencl import small_layers
from tests.kits.opencl.amdgpu import WAVES, compiled, settings
from tests.kits.opencl.phones import ADRENO, LAYERS, NVIDIA, PHONES, traits

OFFERED = Path(__file__).with_name("offered_settings.json")
DTYPES = ("float32", "float16")
ALL = [*LAYERS.values(), *small_layers.LAYERS, *small_layers.INT8_LAYERS]
TOO_LARGE = {
    (device, name): registers
    for device in ("mali", "mali with small groups", "mali with images")
    for name, registers in (("depthwise 5x5", 68), ("depthwise 7x7", 84))
}
"""Registers of the smallest tile, where the weights and inputs of one row of a kernel take more than there are."""


def supporting(limits: Traits, layer: Layer) -> list[OpenCLRoutine]:
    return [routine for routine in routines(limits, DTYPES) if routine.supports(layer)]


def demands(limits: Traits, layer: Layer) -> list[Demand]:
    """Of every setting of every routine."""
    return [r.demand(layer, p) for r in supporting(limits, layer) for p in r.parameter_space(layer)]


@pytest.mark.parametrize("device", PHONES)
@pytest.mark.parametrize("name", LAYERS)
def test_settings_fit_phones(device: str, name: str) -> None:
    limits, layer = PHONES[device], LAYERS[name]
    found = demands(limits, layer)
    assert found, "no routine computes the layer"
    most = TOO_LARGE.get((device, name), limits.item_registers)
    assert all(one.registers <= most for one in found)
    assert all(one.local_bytes <= limits.local_memory and one.items <= limits.group_items for one in found)


@pytest.mark.parametrize("device", PHONES)
def test_groups_fit_phones(device: str) -> None:
    """Sizes of groups as they are launched: those that routines state, whole waves where there is local memory."""
    limits = PHONES[device]
    for layer in ALL:
        for routine in supporting(limits, layer):
            for parameters in routine.parameter_space(layer):
                stated = routine.demand(layer, parameters).items
                launches = [call.launch for call in routine.lower(layer, parameters).calls if call.launch is not None]
                sizes = [math.prod(launch.local_size) for launch in launches if launch.local_size is not None]
                assert not stated or stated in sizes
                assert all(size <= limits.group_items and size % limits.wave == 0 for size in sizes)
                for launch in launches:
                    grid = zip(launch.global_size, launch.local_size or launch.global_size, strict=True)
                    assert all(whole % part == 0 for whole, part in grid)


def test_larger_gpus_are_offered_what_phones_do_not_have() -> None:
    """The limits exclude settings that were the fastest elsewhere, of convolutions of every kind."""
    large = traits(NVIDIA)
    for device, name in (("adreno", "3x3"), ("adreno", "first"), ("adreno", "depthwise 7x7"), ("mali", "grouped")):
        found = demands(large, LAYERS[name])
        assert any(one.registers > PHONES[device].item_registers for one in found)
        assert all(one.fits(large) for one in found)


@pytest.mark.parametrize("device", ["PoCL with AVX-512", "PoCL with AVX2", "NVIDIA"])
def test_settings_that_were_measured_stay(device: str) -> None:
    """What routines offer to a CPU and to an NVIDIA GPU is what was the fastest there when it was measured."""
    kinds = {
        "PoCL with AVX-512": Traits(16, True, 2, 32),
        "PoCL with AVX2": Traits(8, True, 4, 16),
        "NVIDIA": traits(NVIDIA),
    }
    assert offered(kinds[device]) == json.loads(OFFERED.read_text())[device]


def offered(limits: Traits) -> dict[str, list[str]]:
    """Descriptors and parameters by layer, in the order in which they are measured."""
    return {
        name: [
            " ".join((str(routine.descriptor), *(f"{key}={value}" for key, value in parameters.items())))
            for routine in routines(limits)
            if routine.supports(layer)
            for parameters in routine.parameter_space(layer)
        ]
        for name, layer in LAYERS.items()
    }


@pytest.mark.parametrize(
    ("device", "name", "algorithm"),
    [
        ("adreno", "3x3", "implicit_gemm"),
        ("adreno", "first", "planar_gemm"),
        ("adreno", "depthwise 3x3", "depthwise"),
        ("mali", "grouped", "direct"),
        ("mali", "depthwise 3x3", "depthwise"),
        ("mali", "matmul of rows", "matmul"),
        ("mali", "global pool", "global_pool"),
        ("mali", "attention", "attention"),
        ("adreno with images", "3x3", "implicit_gemm"),
        ("adreno with images", "depthwise 3x3", "depthwise"),
        ("mali with images", "grouped", "direct"),
    ],
)
def test_inner_loops_stay_in_registers(device: str, name: str, algorithm: str) -> None:
    """A compiler for GPUs that has as many registers as a phone keeps the inner loops of the first setting free of memory.

    With images, it is the first setting that reads them. Where local memory limits the waves, it takes no limit of registers,
    and must do without one.
    """
    limits = PHONES[device]
    calls = [
        (routine.demand(LAYERS[name], parameters), call)
        for layer, routine, parameters, call in settings(limits)
        if layer == name
        and routine.algorithm == algorithm
        and reads_image(parameters) == device.endswith("with images")
    ]
    demand, call = calls[0]
    assert call.launch is not None
    made = compiled(call.launch.source, call.launch.defines, WAVES[limits.item_registers])[call.kernel]
    assert made.registers <= limits.item_registers
    assert made.inner_spills == 0
    assert made.local_bytes == demand.local_bytes


def test_a_tile_for_large_gpus_spills_on_a_phone() -> None:
    """The compiler shows what the estimate excludes: a tile of an NVIDIA GPU with a Mali's registers."""
    tile = ("PIXELS", 14), ("VECTORS", 1), ("STRIDE_W", 1), ("REACH", 8)
    waves = WAVES[PHONES["mali"].item_registers]
    few = compiled("conv.cl", (("NNS_BLOCK", 4), ("NNS_CPU", 0), *tile), waves)["conv_direct"]
    assert few.inner_spills > 0


def test_vendors() -> None:
    for texts, wanted in (
        (("NVIDIA H200", "NVIDIA Corporation", "NVIDIA CUDA"), "nvidia"),
        (("gfx1030", "Advanced Micro Devices, Inc.", "AMD Accelerated Parallel Processing"), "amd"),
        (("Intel(R) UHD Graphics", "Intel(R) Corporation", "Intel(R) OpenCL Graphics"), "intel"),
        (("QUALCOMM Adreno(TM)", "QUALCOMM", "QUALCOMM Snapdragon(TM)"), "qualcomm"),
        (("FD740", "freedreno", "rusticl"), "qualcomm"),
        (("Mali-G71", "ARM", "ARM Platform"), "arm"),
        (("PowerVR B-Series", "Imagination Technologies", "PowerVR"), "imagination"),
        (("Charm 5", "Farmgpu", "a platform"), ""),
    ):
        assert vendor_name(*texts) == wanted
    assert set(VENDORS) == {"nvidia", "amd", "intel", "qualcomm", "arm", "imagination"}


def test_traits_of_a_driver_go_to_json() -> None:
    """What `nnstretch devices --json` shows of a phone's GPU, and of one whose vendor is not known."""
    shown = opencl_traits(ADRENO, traits(ADRENO))
    assert (shown.vendor, shown.block, shown.wave, shown.item_registers) == ("qualcomm", 4, 64, 96)
    assert (shown.half_rate, shown.local_memory) == (2, 32 << 10)
    other = replace(ADRENO, vendor="", wave=24, half_arithmetic=False)
    assert half_rate(other) == 0
    assert (traits(other).wave, traits(other).item_registers) == (UNKNOWN.wave, UNKNOWN.item_registers)
    assert half_rate(replace(other, half_arithmetic=True, on_cpu=True)) == 1
