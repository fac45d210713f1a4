"""Workload ratios for cores of different speeds (ACLTuner, section 2.1), from the measured speed of each core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnstretch.devices.base.spec import simplest_ratios
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.binding.library import engine
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore

DIFFERENT = 1.15
"""Cores whose speeds differ by no more than this factor count as equal."""

_WORKLOAD = "float32 peak, seconds per billion operations"
_ROUNDS = 40
_MILLISECONDS = 5
_STEPS = 4
"""Ratios are in quarters of the slowest core's speed."""

Gflops = Callable[[int, int], float]
"""(core, milliseconds to measure for) -> GFLOP/s."""


def measured_ratios(
    cores: Sequence[int], store: Callable[[], ProfileStore] = ProfileStore, gflops: Gflops | None = None
) -> tuple[int, ...]:
    """Ratios by which cores share work; empty if the cores are about equally fast.

    Other load makes a core slower, never faster. So cores count as equal once each was fast in one round. Cores that stay
    slow in all rounds count as slow; the store keeps their speeds, and a faster measurement replaces them.

    Args:
        cores: as in a processor's specification.
        store: opens the profile store, which keeps speeds of unequal cores.
        gflops: measures a core; the engine's float32 peak by default.

    Raises:
        BuildError: the engine cannot be built.
        FileError: the store cannot be read or written.
    """
    measure = gflops or engine().peak_gflops
    best = {core: measure(core, 0) for core in cores}
    if len(cores) < 2 or _are_equal(best):
        return ()
    speeds = store()
    try:
        rows = {core: speeds.get(cpu_model(), _WORKLOAD, f"core {core}", {}) for core in cores}
        known = {core: 1 / row.seconds for core, row in rows.items() if row is not None and row.seconds}
        for _ in range(0 if len(known) == len(cores) else _ROUNDS):
            best = {core: max(best[core], measure(core, _MILLISECONDS)) for core in cores}
            if _are_equal(best):
                return ()
        best = {core: max(best[core], known.get(core, 0.0)) for core in cores}
        if best != known:
            for core, found in best.items():
                speeds.put(cpu_model(), _WORKLOAD, f"core {core}", {}, Measurement(1 / found))
    finally:
        speeds.close()
    return proposed_ratios([best[core] for core in cores])


def proposed_ratios(speeds: Sequence[float]) -> tuple[int, ...]:
    """Small integers in proportion to speeds; empty if the speeds are about equal."""
    slowest = min(speeds)
    if max(speeds) <= DIFFERENT * slowest:
        return ()
    return simplest_ratios(tuple(round(_STEPS * speed / slowest) for speed in speeds))


def _are_equal(speeds: dict[int, float]) -> bool:
    return max(speeds.values()) <= DIFFERENT * min(speeds.values())
