"""Routines of the OpenCL processor: one class per kernel, for float32 and mostly also for float16 storage.

A module's `ROUTINES` are its classes, most promising first.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.opencl.routines import (
    data_movement,
    dense,
    depthwise,
    direct,
    elementwise,
    implicit_gemm,
    matmul,
    normalization,
    planar,
    pool,
    reduce,
    strassen,
    winograd,
    winograd_gemm,
)
from nnstretch.devices.opencl.routines.base import DTYPE, HALF, OpenCLRoutine, Traits
from nnstretch.devices.opencl.routines.data_movement import Reorder

__all__ = ["OpenCLRoutine", "Reorder", "Traits", "routines"]

_MODULES = (
    depthwise,
    planar,
    winograd,
    strassen,
    winograd_gemm,
    implicit_gemm,
    direct,
    dense,
    matmul,
    pool,
    elementwise,
    normalization,
    reduce,
    data_movement,
)
"""In the order in which routines of the same layer are listed: most promising first."""
_ROUTINES: tuple[type[OpenCLRoutine], ...] = tuple(routine for module in _MODULES for routine in module.ROUTINES)


def routines(traits: Traits, dtypes: Sequence[str] = (DTYPE,)) -> tuple[OpenCLRoutine, ...]:
    """The routines of a device with `traits` for storage types `dtypes`, in order of expected speed."""
    found = [routine(traits) for routine in _ROUTINES] if DTYPE in dtypes else []
    if HALF in dtypes:
        found += [routine(traits, HALF) for routine in _ROUTINES if routine.stores_half]
    return tuple(found)
