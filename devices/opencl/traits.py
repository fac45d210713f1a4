"""Traits of OpenCL devices, of this machine or another one, from what their drivers say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.devices.opencl.routines.base import Traits

if TYPE_CHECKING:
    from nnstretch.devices.engine.build.instruction_sets import Isa
    from nnstretch.devices.opencl.drivers import DeviceInfo

_GPU_BLOCK = 4  # numbers that a work item of a GPU loads at once
_GPU_FLOATS = 64  # registers that a work item of a GPU may use for its tile


def traits_of(info: DeviceInfo, threads: int, isa: Isa) -> Traits:
    """Traits of a device. On the CPU, the block is that of the CPU engine, so that tensors keep their layout.

    Args:
        info: of the device.
        threads: CPU threads of a device on the CPU.
        isa: instruction set of its machine.
    """
    if not info.on_cpu:
        vectors = _GPU_FLOATS // _GPU_BLOCK
        return Traits(_GPU_BLOCK, False, info.compute_units, vectors, info.local_memory, info.group_items)
    if info.scalar:
        return Traits(isa.block, False, info.compute_units, max(_GPU_FLOATS // isa.block, 4))
    # AVX-512 and NEON have 32 vector registers, older x86 16.
    wide = isa.block == 16 or isa.name.startswith("aarch64")
    return Traits(isa.block, True, threads, 32 if wide else 16)
