"""Devices with too little memory for a plan, and kernels in larger work groups than a device takes: refused before a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

import nnstretch as nns
from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.binding.program import HUGE_PAGE
from nnstretch.devices.opencl import drivers, queues
from nnstretch.devices.opencl.limits import group_excess, memory_shortage
from nnstretch.devices.opencl.memory import DeviceMemory
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.errors import DeviceError

pytestmark = pytest.mark.opencl

NETWORK = """<ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,32,32] x) => (float[1,16,32,32] y) { a = Relu (x) b = Sigmoid (a) y = Add (a, b) }"""
TENSOR = 4 * 16 * 32 * 32  # bytes


@pytest.fixture
def info() -> DeviceInfo:
    return drivers.device_info(0)


@pytest.fixture
def fresh_runtimes() -> Iterator[None]:
    queues.installed_runtime.cache_clear()
    yield
    queues.installed_runtime.cache_clear()


def test_the_limits_of_memory_are_the_driver_s(info: DeviceInfo) -> None:
    device = drivers.load_drivers()[0]
    assert (info.allocation_bytes, info.address_bits) == (device.max_mem_alloc_size, device.address_bits)
    assert not memory_shortage(info, [info.allocation_bytes])
    assert "at most" in memory_shortage(info, [info.allocation_bytes + 1])


def test_all_buffers_together_lie_within_the_addresses(info: DeviceInfo) -> None:
    small = replace(info, allocation_bytes=1 << 30, address_bits=32)
    assert not memory_shortage(small, [1 << 30] * 3)
    assert memory_shortage(small, [1 << 30] * 4).startswith(
        "has addresses of 32 bits, 4294967296 bytes, and the plan needs 4294967296; use a smaller input or batch"
    )
    assert not memory_shortage(replace(info, allocation_bytes=0, address_bits=0), [1 << 62])
    assert not memory_shortage(small, [])


@pytest.mark.parametrize("on_cpu", [True, False])
def test_coherent_memory_is_one_allocation(info: DeviceInfo, on_cpu: bool) -> None:
    """Parts that fit one by one may not fit together; each begins at a page, and on a CPU the first at a huge one."""
    sizes = [HUGE_PAGE, 100, 5000]
    whole = HUGE_PAGE + 4096 + 8192 + HUGE_PAGE * on_cpu

    def runtime(allocation: int, *, unified: bool = True, fine_grained: bool = True) -> OpenCLRuntime:
        device = replace(info, vendor="", on_cpu=on_cpu, unified=unified, fine_grained=fine_grained)
        device = replace(device, allocation_bytes=allocation, usable=True)
        return OpenCLRuntime(ProcessorSpec("opencl", 0), info=device)

    runtime(whole).memory.require([whole], sizes)
    with pytest.raises(
        DeviceError, match=f"at most {whole - 1} bytes at once, and the plan needs a buffer of {whole};"
    ):
        runtime(whole - 1).memory.require([], sizes)
    runtime(whole - 1).memory.require(sizes)
    runtime(HUGE_PAGE, fine_grained=False).memory.require([], sizes)
    runtime(HUGE_PAGE, unified=False).memory.require([], sizes)


@pytest.mark.usefixtures("fresh_runtimes")
def test_a_plan_that_a_device_cannot_hold_is_refused_before_any_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(drivers.probe_device(0), allocation_bytes=TENSOR - 1)
    monkeypatch.setattr(drivers, "probe_device", lambda _index: small)

    def allocate(*_: object) -> None:
        raise AssertionError("memory was allocated")

    for method in ("_allocate", "_coherent", "_pinned", "_pages"):
        monkeypatch.setattr(DeviceMemory, method, allocate)
    wanted = rf"^OpenCL device 0 \(.+\) allocates at most {TENSOR - 1} bytes at once, and the plan needs a buffer of \d+; use a"
    with pytest.raises(DeviceError, match=wanted) as caught:
        nns.compile(onnx.parser.parse_model(NETWORK), processors="opencl:0", tune=False)
    assert not caught.value.processor  # nothing has run on it
    assert "\n" not in str(caught.value)


def runtime_of(source: str) -> OpenCLRuntime:
    return OpenCLRuntime(ProcessorSpec("opencl", 0), sources={"f.cl": source})


def test_a_kernel_whose_groups_are_too_large_for_the_device_is_refused(info: DeviceInfo) -> None:
    runtime = runtime_of("kernel void f(global float *x) { x[get_global_id(0)] = 1; }")
    launch = Launch("f.cl", (), (2 * info.group_items,), (2 * info.group_items,))
    wanted = rf"runs kernel f in work groups of at most {info.group_items} items, and this setting needs"
    with pytest.raises(DeviceError, match=wanted):
        runtime.kernel(launch, "f")
    assert runtime.kernel(replace(launch, local_size=(info.group_items,)), "f").function_name == "f"
    assert runtime.kernel(replace(launch, local_size=None), "f").function_name == "f"


def test_a_compiled_kernel_may_take_less_than_the_device(info: DeviceInfo) -> None:
    runtime = runtime_of("kernel __attribute__((reqd_work_group_size(4, 2, 1))) void f(global float *x) { x[0] = 1; }")
    assert runtime.kernel(Launch("f.cl", (), (4, 2, 1), (4, 2, 1)), "f").function_name == "f"


@pytest.mark.parametrize(
    ("sizes", "local", "reason"),
    [
        ((64, 64, 2), 100, "has work groups of at most 2 items along axis 2, and kernel f needs 4"),
        ((64, 64, 64), 101, "has 100 bytes of local memory for a work group, and kernel f needs 101"),
        ((64, 64, 64), 100, ""),
    ],
)
def test_axes_and_local_memory_are_checked(sizes: tuple[int, ...], local: int, reason: str) -> None:
    """Of a driver that no machine of the checks has."""
    import pyopencl as cl

    info = cl.kernel_work_group_info
    taken = {info.WORK_GROUP_SIZE: 8, info.LOCAL_MEM_SIZE: local, info.COMPILE_WORK_GROUP_SIZE: [2, 2, 4]}
    device: Any = SimpleNamespace(max_work_item_sizes=sizes, local_mem_size=100)
    kernel: Any = SimpleNamespace(function_name="f", get_work_group_info=lambda what, _device: taken[what])
    assert group_excess(kernel, device, (2, 2, 4)) == reason
