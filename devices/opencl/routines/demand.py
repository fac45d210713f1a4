"""What a kernel demands of a device: registers of a work item, and local memory and work items of a group.

Registers are estimated: the sums and operands of a tile, and what finds them in memory. A compiler that has more of them
uses more, to load earlier; with as many as estimated it keeps the inner loops free of numbers in memory
(`python -m tests.kits.opencl.amdgpu` prints what a compiler for GPUs makes of them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

ADDRESS_REGISTERS = 24
"""Registers of pointers, counters and bounds that an inner loop needs. What only outer loops need may wait in memory."""


class Limits(Protocol):
    """What a device offers: the members of `Traits` that limit a kernel."""

    @property
    def local_memory(self) -> int: ...

    @property
    def group_items(self) -> int: ...

    @property
    def item_registers(self) -> int: ...


@dataclass(frozen=True)
class Demand:
    """What the kernels of a layer demand, each of the number that needs most.

    Attributes:
        registers: 32-bit registers of a work item.
        local_bytes: local memory of a work group.
        items: work items of a group; 0 if the driver chooses.
    """

    registers: int
    local_bytes: int = 0
    items: int = 0

    def fits(self, limits: Limits) -> bool:
        """Whether a device offers it. Without local memory or without known registers, a device limits neither."""
        in_registers = not limits.item_registers or self.registers <= limits.item_registers
        in_group = not self.local_bytes or (
            self.local_bytes <= limits.local_memory and self.items <= limits.group_items
        )
        return in_registers and in_group


def tile_registers(pixels: int, vectors: int, block: int) -> int:
    """Registers of a tile of `pixels` × `vectors` sums: these, a vector of weights each, one input, and addresses."""
    return block * (pixels * vectors + max(vectors, 2) + 1) + ADDRESS_REGISTERS


def transform_registers(alpha: int) -> int:
    """Registers of one lane's Winograd transform of `alpha` × `alpha` positions: these, and the rows under way."""
    return alpha * alpha + 4 * alpha
