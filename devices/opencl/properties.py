"""What drivers say of OpenCL devices."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.opencl.vendors import vendor_name

if TYPE_CHECKING:
    import pyopencl

_SUCCESS = 0
_WAVES = (
    (0x1067, "", ctypes.c_size_t),  # CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, of OpenCL 3.0
    (0x4003, "cl_nv_device_attribute_query", ctypes.c_uint32),  # CL_DEVICE_WARP_SIZE_NV
    (0x4043, "cl_amd_device_attribute_query", ctypes.c_uint32),  # CL_DEVICE_WAVEFRONT_WIDTH_AMD
)
"""Queries of the width of a wave, which pyopencl does not have for all devices: number, extension that it needs, type."""
_DOT_8BIT = 0x1074  # CL_DEVICE_INTEGER_DOT_PRODUCT_ACCELERATION_PROPERTIES_8BIT_KHR
_DOT_OF_VENDORS = ("cl_arm_integer_dot_product_int8", "cl_qcom_dot_product8")
"""Extensions for instructions that vendors had before `cl_khr_integer_dot_product`."""


@dataclass(frozen=True)
class DeviceInfo:
    """An OpenCL device of this machine.

    Attributes:
        index: its number in `opencl:INDEX`.
        name, platform, driver: device name, platform name and driver version from the driver.
        compute_units: CPU threads or multiprocessors.
        on_cpu: whether it runs kernels on CPU cores.
        unified: whether it shares memory with the host, so that buffers need no copies.
        fine_grained: whether it has fine-grained shared virtual memory, which needs no mapping.
        atomics: whether running kernels see concurrent writes of the host to that memory.
        command_times: whether profiling says when commands ran.
        trace_seconds: by which a traced run of a GPU takes longer for every kernel.
        scalar: whether it computes work items side by side and splits vectors into their elements, as GPUs do.
        usable: whether kernels of nnstretch were built and gave the right results.
        why_not: one line on why it is not usable, else "".
        local_memory: bytes of local memory of a work group; 0 if it is global memory, which is no faster.
        group_items: maximum work items of a work group.
        vendor: its key in `VENDORS`; "" for others, and for devices on the CPU.
        wave: work items that run in lockstep, if the driver says so; else 0.
        half_arithmetic: whether it computes with float16.
        int8_dot: its dot products of int8: "accelerated", "emulated", or "" without.
        image: maximum width and height of a two-dimensional image; 0, 0 without images.
        image_buffer: maximum pixels of an image made from a buffer; 0 without images, or if kernels of a GPU fail with them.
        allocation_bytes: maximum size of one allocation.
        address_bits: of a pointer.
        command_buffers: what a test of its command buffers found: "faster" than single launches (GPUs alone are timed),
            "works", or "" without.
    """

    index: int
    name: str
    platform: str
    driver: str
    compute_units: int
    on_cpu: bool
    unified: bool
    fine_grained: bool
    atomics: bool
    command_times: bool
    scalar: bool
    usable: bool
    why_not: str
    local_memory: int = 0
    group_items: int = 0
    trace_seconds: float = 0.0
    vendor: str = ""
    wave: int = 0
    half_arithmetic: bool = False
    int8_dot: str = ""
    image: tuple[int, int] = (0, 0)
    image_buffer: int = 0
    allocation_bytes: int = 0
    address_bits: int = 0
    command_buffers: str = ""

    @property
    def sharing(self) -> Sharing:
        """The cheapest way to share memory with the host."""
        if not self.unified:
            return Sharing.COPIED
        return Sharing.COHERENT if self.fine_grained else Sharing.MAPPED


def describe(index: int, device: pyopencl.Device) -> DeviceInfo:
    """What the driver says of a device; not tested, so it counts as usable with all of it."""
    import pyopencl as cl

    has_local_memory = device.local_mem_type == cl.device_local_mem_type.LOCAL
    on_cpu, has_images = bool(device.type & cl.device_type.CPU), bool(device.image_support)
    names = str(device.name), str(device.vendor), str(device.platform.name)
    return DeviceInfo(
        index=index,
        name=str(device.name).strip(),
        platform=str(device.platform.name),
        driver=str(device.driver_version),
        compute_units=int(device.max_compute_units),
        on_cpu=on_cpu,
        unified=bool(device.host_unified_memory),
        fine_grained=_shares(device, "FINE_GRAIN_BUFFER"),
        atomics=_shares(device, "ATOMICS"),
        command_times=True,
        scalar=int(device.native_vector_width_float) == 1,
        usable=True,
        why_not="",
        local_memory=int(device.local_mem_size) if has_local_memory else 0,
        group_items=int(device.max_work_group_size),
        vendor="" if on_cpu else vendor_name(*names),
        wave=0 if on_cpu else _wave(device),
        half_arithmetic="cl_khr_fp16" in _extensions(device),
        int8_dot=_int8_dot(device),
        image=(int(device.image2d_max_width), int(device.image2d_max_height)) if has_images else (0, 0),
        image_buffer=_image_buffer(device) if has_images else 0,
        allocation_bytes=int(device.max_mem_alloc_size),
        address_bits=int(device.address_bits),
    )


def _image_buffer(device: pyopencl.Device) -> int:
    """Maximum pixels of an image made from a buffer."""
    import pyopencl as cl

    try:
        return int(device.image_max_buffer_size)
    except cl.Error:  # OpenCL before 1.2 lacks the query
        return 0


def _shares(device: pyopencl.Device, capability: str) -> bool:
    """Whether a device has a capability of shared virtual memory."""
    import pyopencl as cl

    try:
        return bool(device.svm_capabilities & getattr(cl.device_svm_capabilities, capability))
    except cl.Error:  # OpenCL before 2.0 lacks the query
        return False


def _extensions(device: pyopencl.Device) -> frozenset[str]:
    return frozenset(str(device.extensions).split())


def _wave(device: pyopencl.Device) -> int:
    """Work items that run in lockstep; 0 if the driver does not say."""
    extensions = _extensions(device)
    for query, extension, kind in _WAVES:
        value = kind()
        if (not extension or extension in extensions) and _ask(device, query, value) and value.value:
            return int(value.value)
    return 0


class _DotAcceleration(ctypes.Structure):
    """cl_device_integer_dot_product_acceleration_properties_khr: whether each form is faster than its parts."""

    _fields_ = [
        (f"{sums}{kind}", ctypes.c_uint32) for sums in ("", "adding_") for kind in ("signed", "unsigned", "mixed")
    ]


def _int8_dot(device: pyopencl.Device) -> str:
    """As `DeviceInfo.int8_dot`."""
    extensions = _extensions(device)
    if any(name in extensions for name in _DOT_OF_VENDORS):
        return "accelerated"
    if "cl_khr_integer_dot_product" not in extensions:
        return ""
    found = _DotAcceleration()
    return "accelerated" if _ask(device, _DOT_8BIT, found) and found.signed else "emulated"


def _ask(device: pyopencl.Device, query: int, into: ctypes.c_size_t | ctypes.c_uint32 | ctypes.Structure) -> bool:
    """Reads a property; False if the driver does not have it."""
    ask = ctypes.CDLL(opencl_library()).clGetDeviceInfo
    handle, size = ctypes.c_void_p(device.int_ptr), ctypes.c_size_t(ctypes.sizeof(into))
    return int(ask(handle, ctypes.c_uint32(query), size, ctypes.byref(into), None)) == _SUCCESS
