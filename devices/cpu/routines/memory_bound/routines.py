"""All memory-bound routines."""

from __future__ import annotations

from nnstretch.devices.base.routine import Routine
from nnstretch.devices.cpu.routines.memory_bound.base import MOVED_DTYPES, MemoryBoundRoutine
from nnstretch.devices.cpu.routines.memory_bound.concat import ConcatRoutine
from nnstretch.devices.cpu.routines.memory_bound.eltwise import EltwiseRoutine
from nnstretch.devices.cpu.routines.memory_bound.pool import PoolRoutine
from nnstretch.devices.cpu.routines.memory_bound.reorder import ReorderRoutine, ReshapeRoutine
from nnstretch.devices.cpu.routines.memory_bound.resize import ResizeRoutine
from nnstretch.devices.cpu.routines.memory_bound.softmax import SoftmaxRoutine
from nnstretch.devices.cpu.routines.memory_bound.strided import StridedRoutine
from nnstretch.graph.dtypes import DEFAULT_DTYPE


def memory_bound_routines(block: int | None = None) -> tuple[MemoryBoundRoutine, ...]:
    """All memory-bound routines, with the blocked layout of `block` (None: this machine's)."""
    others = [dtype for dtype in MOVED_DTYPES if dtype != DEFAULT_DTYPE]
    moving = (ConcatRoutine, StridedRoutine, ReshapeRoutine)
    return (
        PoolRoutine(block),
        EltwiseRoutine(block),
        ConcatRoutine(block),
        SoftmaxRoutine(block),
        ResizeRoutine(block),
        StridedRoutine(block),
        ReshapeRoutine(block),
        *(routine(block, dtype) for dtype in others for routine in moving),
    )


MEMORY_BOUND_ROUTINES: tuple[Routine, ...] = memory_bound_routines()
"""Memory-bound routines of this machine; at most one supports a layer."""

REORDER_ROUTINE: Routine = ReorderRoutine()
"""The routine that converts layouts."""
