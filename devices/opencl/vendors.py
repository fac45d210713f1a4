"""Vendors of OpenCL devices, and what is public of their GPUs that drivers do not say."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Vendor:
    """What is known of a vendor's GPUs.

    Attributes:
        words: what its drivers have in the texts that name vendor, platform or device; lower case.
        wave: work items that run in lockstep, where the driver does not say.
        item_registers: 32-bit registers that a work item may use. With more, the compiler keeps numbers in memory, or
            fewer than half of the work items run at the same time that could.
        half_rate: operations on float16 in the time of one on float32, where there is arithmetic on float16.
    """

    words: tuple[str, ...]
    wave: int
    item_registers: int
    half_rate: int = 1


UNKNOWN = Vendor((), 32, 64)
"""A GPU of another vendor, Imagination's among them: the fewest registers of those below."""

VENDORS = MappingProxyType(
    {
        # CUDA C++ Programming Guide, technical specifications per compute capability: 255 registers per thread, warps of 32.
        # Tiles with most of them were the fastest on an H200.
        "nvidia": Vendor(("nvidia",), 32, 255),
        # "Occupancy explained" (GPUOpen, 2024): with up to 128 of the 1024 registers of a SIMD's lane, half of the 16 waves
        # of RDNA 2 are resident. Packed float16 has twice the rate (RDNA 2 instruction set architecture).
        "amd": Vendor(("advanced micro devices", "amd"), 32, 128, half_rate=2),
        # oneAPI GPU Optimization Guide, "Registers and Performance": a thread has 128 registers of 32 bytes, and thus a work
        # item 128 numbers where 8 share a thread, the fewest. float16 has twice the rate.
        "intel": Vendor(("intel",), 16, 128, half_rate=2),
        # Snapdragon OpenCL General Programming and Optimization (80-NB295-11): waves of 64 or 128, float16 at twice the
        # rate. It has no number of registers; Mesa's compiler for these GPUs has one (ir3; freedreno_devices.py,
        # `reg_size_vec4`): 96 × 4 for 2 of 16 waves of 64. With 96 registers, half of the waves are resident.
        "qualcomm": Vendor(("qualcomm", "adreno", "freedreno"), 64, 96, half_rate=2),
        # Arm Mali Bifrost and Valhall OpenCL Developer Guide (101574), 9.6: a thread has 64 registers of 32 bits, above which
        # the compiler stores to memory; up to 16 adjacent threads; float16 is twice as fast.
        "arm": Vendor(("arm", "mali", "panfrost"), 16, 64, half_rate=2),
        "imagination": Vendor(("imagination", "powervr"), UNKNOWN.wave, UNKNOWN.item_registers),
    }
)
"""By name. The first whose words a driver has counts; words are whole words."""


def vendor_name(*texts: str) -> str:
    """The vendor's key in `VENDORS`, by what a driver says of device, vendor and platform; "" if it is another."""
    letters = "".join(c if c.isalnum() else " " for c in " ".join(texts).lower())
    said = f" {' '.join(letters.split())} "
    return next((name for name, one in VENDORS.items() if any(f" {word} " in said for word in one.words)), "")
