"""Traits of OpenCL devices, of this machine or another one, from what their drivers say and what is public of their vendors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.devices.opencl.routines.base import Traits
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS
from nnstretch.devices.opencl.vendors import UNKNOWN, VENDORS

if TYPE_CHECKING:
    from nnstretch.devices.engine.build.instruction_sets import Isa
    from nnstretch.devices.opencl.properties import DeviceInfo

_GPU_BLOCK = 4  # numbers that a work item of a GPU loads at once: 128 bits, on the GPUs of all vendors
_MOST_PIXELS = 1 << 29  # of an image: kernels count its numbers in 32 bits
_GPU_FLOATS = 64  # registers that a work item of a GPU may use for its tile, if it has that many


def traits_of(info: DeviceInfo, threads: int, isa: Isa) -> Traits:
    """Traits of a device. On the CPU, the block is that of the CPU engine, so that tensors keep their layout.

    Args:
        info: of the device.
        threads: CPU threads of a device on the CPU.
        isa: instruction set of its machine.
    """
    if not info.on_cpu:
        return traits_of_gpu(info)
    if info.scalar:
        return Traits(isa.block, False, info.compute_units, max(_GPU_FLOATS // isa.block, 4))
    # AVX-512 and NEON have 32 vector registers, older x86 16.
    wide = isa.block == 16 or isa.name.startswith("aarch64")
    return Traits(isa.block, True, threads, 32 if wide else 16)


def traits_of_gpu(info: DeviceInfo) -> Traits:
    """Traits of a GPU: a tile of sums and its operands gets the registers that addresses leave."""
    vendor = VENDORS.get(info.vendor, UNKNOWN)
    floats = min(_GPU_FLOATS, vendor.item_registers - ADDRESS_REGISTERS)
    return Traits(
        _GPU_BLOCK,
        False,
        info.compute_units,
        floats // _GPU_BLOCK,
        info.local_memory,
        info.group_items,
        info.wave if _is_power_of_2(info.wave) else vendor.wave,
        vendor.item_registers,
        min(info.image_buffer, _MOST_PIXELS),
    )


def _is_power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def half_rate(info: DeviceInfo) -> int:
    """Operations on float16 in the time of one on float32; 0 if the device has no arithmetic on float16."""
    if not info.half_arithmetic:
        return 0
    return 1 if info.on_cpu else VENDORS.get(info.vendor, UNKNOWN).half_rate
