"""What an OpenCL device has too little of for a plan, found before anything is allocated or run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyopencl

    from nnstretch.devices.opencl.properties import DeviceInfo

_GRANTS_MORE = "nvidia"
"""Key of the vendor whose devices may give larger buffers than they state."""
_ADVICE = "use a smaller input or batch, or compute the model on another processor"


def memory_shortage(info: DeviceInfo, sizes: Sequence[int]) -> str:
    """Why a device cannot hold buffers; empty if nothing speaks against it.

    Drivers may give more than they state, but promise no more (OpenCL 1.2, section 5.2.1). NVIDIA's states a quarter of the
    memory and may give more in one buffer, so it decides itself.

    Args:
        info: the device.
        sizes: of all buffers, bytes.
    """
    largest, together = max(sizes, default=0), sum(sizes)
    if info.vendor != _GRANTS_MORE and info.allocation_bytes and largest > info.allocation_bytes:
        return f"allocates at most {info.allocation_bytes} bytes at once, and the plan needs a buffer of {largest}; {_ADVICE}"
    if info.address_bits and together >= 1 << info.address_bits:
        return (
            f"has addresses of {info.address_bits} bits, {1 << info.address_bits} bytes, and the plan needs {together}; "
            f"{_ADVICE}"
        )
    return ""


def group_excess(kernel: pyopencl.Kernel, device: pyopencl.Device, local_size: Sequence[int] | None) -> str:
    """Why a device cannot run a compiled kernel in work groups of a size; empty if it can.

    What a kernel takes of registers and local memory is known once it is compiled.

    Args:
        kernel: built for the device.
        device: the device.
        local_size: work items of a group by dimension; None: the driver chooses.
    """
    import pyopencl as cl

    if local_size is None or math.prod(local_size) == 1:
        return ""
    info = cl.kernel_work_group_info
    items, most = math.prod(local_size), int(kernel.get_work_group_info(info.WORK_GROUP_SIZE, device))
    fixed = [int(size) for size in kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, device)]
    # Mesa's rusticl states less than the size that it has compiled a kernel for, and runs.
    if items > most and fixed != [*local_size, 1, 1][:3]:
        return (
            f"runs kernel {kernel.function_name} in work groups of at most {most} items, and this setting needs {items}"
        )
    for axis, (size, limit) in enumerate(zip(local_size, device.max_work_item_sizes, strict=False)):
        if size > limit:
            return f"has work groups of at most {limit} items along axis {axis}, and kernel {kernel.function_name} needs {size}"
    taken, there = int(kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device)), int(device.local_mem_size)
    if taken > there:
        return f"has {there} bytes of local memory for a work group, and kernel {kernel.function_name} needs {taken}"
    return ""
