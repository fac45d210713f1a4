"""Memory planning: offsets of tensors in an arena such that no two overlap while both are live.

Queues run concurrently, so liveness is no interval of step numbers. A tensor may reuse another's bytes only
if every use of one happens before every use of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnstretch.scheduler.plan.schema import aligned


@dataclass(frozen=True)
class Tenant:
    """A tensor of `bytes` in an arena; `steps` are its writers and readers."""

    bytes: int
    steps: tuple[int, ...]


def plan_arena(tenants: Sequence[Tenant], before: Callable[[int, int], bool]) -> tuple[list[int], int]:
    """Offsets for all tenants, and the arena's size in bytes.

    Tenants are placed one after another, each in the lowest gap between the tenants that it conflicts with.
    The best order differs between networks, so several are tried. `before(i, j)` tells whether step i is done
    before step j.
    """
    conflicts = _conflicts(tenants, before)
    least = least_bytes(tenants)
    best: tuple[list[int], int] | None = None
    for key in _ORDERS:
        offsets, size = _place(tenants, conflicts, sorted(range(len(tenants)), key=lambda i: (key(tenants[i]), i)))
        if best is None or size < best[1]:
            best = offsets, size
        if size <= least:
            break
    assert best is not None
    return best[0], aligned(best[1])


_ORDERS: tuple[Callable[[Tenant], tuple[int, ...]], ...] = (
    lambda t: (-t.bytes,),
    lambda t: (min(t.steps) - max(t.steps), -t.bytes),
    lambda t: (-t.bytes * (1 + max(t.steps) - min(t.steps)),),
    lambda t: (min(t.steps), -t.bytes),
)


def _conflicts(tenants: Sequence[Tenant], before: Callable[[int, int], bool]) -> list[list[int]]:
    """For every tenant those that must not overlap with it."""
    conflicts: list[list[int]] = [[] for _ in tenants]
    for i, tenant in enumerate(tenants):
        for k in range(i):
            one, other = tenant.steps, tenants[k].steps
            first = all(before(a, b) for a in one for b in other)
            if not (first or all(before(b, a) for a in one for b in other)):
                conflicts[i].append(k)
                conflicts[k].append(i)
    return conflicts


def _place(
    tenants: Sequence[Tenant], conflicts: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    offsets = [-1] * len(tenants)
    size = 0
    for index in order:
        taken = sorted((offsets[k], offsets[k] + tenants[k].bytes) for k in conflicts[index] if offsets[k] >= 0)
        offset = 0
        for start, end in taken:
            if offset + tenants[index].bytes <= start:
                break
            offset = max(offset, aligned(end))
        offsets[index] = offset
        size = max(size, offset + tenants[index].bytes)
    return offsets, size


def least_bytes(tenants: Sequence[Tenant]) -> int:
    """A lower bound of the arena: the most bytes live at a time if steps run in the order of their numbers."""
    ends = [(min(t.steps), 1, t.bytes) for t in tenants] + [(max(t.steps) + 1, 0, -t.bytes) for t in tenants]
    live = most = 0
    for _, _, change in sorted(ends):
        live += change
        most = max(most, live)
    return most
