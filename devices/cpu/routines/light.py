"""The light routines, which move or combine values without multiplying matrices."""

from __future__ import annotations

from nnstretch.devices.cpu.routines.light_base import LightRoutine
from nnstretch.devices.cpu.routines.light_concat import ConcatRoutine
from nnstretch.devices.cpu.routines.light_eltwise import EltwiseRoutine
from nnstretch.devices.cpu.routines.light_pool import PoolRoutine
from nnstretch.devices.cpu.routines.light_reorder import ReorderRoutine, ReshapeRoutine
from nnstretch.devices.cpu.routines.light_resize import ResizeRoutine
from nnstretch.devices.cpu.routines.light_softmax import SoftmaxRoutine
from nnstretch.devices.cpu.routines.light_strided import StridedRoutine
from nnstretch.devices.routine import Routine


def light_routines(block: int | None = None) -> tuple[LightRoutine, ...]:
    """All light routines, offering the blocked layout of that block (None: of this machine's vectors)."""
    return (
        PoolRoutine(block),
        EltwiseRoutine(block),
        ConcatRoutine(block),
        SoftmaxRoutine(block),
        ResizeRoutine(block),
        StridedRoutine(block),
        ReshapeRoutine(block),
    )


LIGHT_ROUTINES: tuple[Routine, ...] = light_routines()
"""For the CPU processor: at most one of them supports a layer."""

REORDER_ROUTINE: Routine = ReorderRoutine()
"""Changes layouts."""
