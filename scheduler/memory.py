"""Memory planning: places for tensors in an arena such that no two overlap while both are needed.

Lanes run at the same time, so "needed" is not an interval of step numbers: one tensor may take another's bytes only if every
use of the one happens before every use of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnstretch.scheduler.plan import aligned


@dataclass(frozen=True)
class Tenant:
    """Something that needs `bytes` of an arena while any of `steps` runs (its writers and readers)."""

    bytes: int
    steps: tuple[int, ...]


def plan_arena(tenants: Sequence[Tenant], before: Callable[[int, int], bool]) -> tuple[list[int], int]:
    """Offsets for all tenants, and the arena's size in bytes.

    Tenants are placed largest first, each at the lowest gap that fits between the tenants it may not overlap (greedy by
    size). `before(i, j)` says whether step i is done before step j starts.
    """
    offsets = [0] * len(tenants)
    placed: list[int] = []
    size = 0
    for index in sorted(range(len(tenants)), key=lambda i: (-tenants[i].bytes, i)):
        tenant = tenants[index]
        rivals = sorted(
            (offsets[other], offsets[other] + tenants[other].bytes)
            for other in placed
            if not _ordered(tenant, tenants[other], before)
        )
        offset = 0
        for start, end in rivals:
            if offset + tenant.bytes <= start:
                break
            offset = max(offset, aligned(end))
        offsets[index] = offset
        size = max(size, offset + tenant.bytes)
        placed.append(index)
    return offsets, aligned(size)


def _ordered(one: Tenant, other: Tenant, before: Callable[[int, int], bool]) -> bool:
    return all(before(a, b) for a in one.steps for b in other.steps) or all(
        before(b, a) for a in one.steps for b in other.steps
    )
