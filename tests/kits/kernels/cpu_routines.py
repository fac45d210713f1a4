"""The CPU's routines by what bounds them."""

from __future__ import annotations

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.cpu.routines.memory_bound import MemoryBoundRoutine
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa, cpu_features


def compute_bound_routines(isa: Isa) -> tuple[Routine, ...]:
    """Routines for convolutions, fused pairs and dense layers of engines built for `isa`, for CPUs with all features."""
    every = native_routines(isa, features=cpu_features())
    packed = native_routines(isa, features=cpu_features().keys() - {"amx_int8"})  # their weights lack zeros
    more = (routine for routine in packed if str(routine.descriptor) == "cpu:int8/rows")
    return (*(routine for routine in every if not isinstance(routine, MemoryBoundRoutine)), *more)


def memory_bound_routines(block: int) -> tuple[MemoryBoundRoutine, ...]:
    """Memory-bound routines that offer a layout of this block: their kernels are in every engine."""
    isa = next(isa for isa in ISAS if isa.block == block)
    return tuple(routine for routine in native_routines(isa) if isinstance(routine, MemoryBoundRoutine))
