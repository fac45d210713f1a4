"""Routines of the OpenCL processor: one class per kernel, for float32 and mostly also for float16 storage, and for int8.

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
from nnstretch.devices.opencl.routines.int8 import arithmetic as int8_arithmetic
from nnstretch.devices.opencl.routines.int8 import convolution as int8_convolution
from nnstretch.devices.opencl.routines.int8 import data_movement as int8_data_movement
from nnstretch.devices.opencl.routines.int8 import dense as int8_dense
from nnstretch.devices.opencl.routines.int8 import pool as int8_pool
from nnstretch.devices.opencl.routines.int8 import quantize as int8_quantize
from nnstretch.devices.opencl.routines.int8.base import Int8Routine

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
_INT8_MODULES = (int8_convolution, int8_dense, int8_pool, int8_arithmetic, int8_quantize, int8_data_movement)
"""Those with routines for int8 layers, in the same order."""
_ROUTINES: tuple[type[OpenCLRoutine], ...] = tuple(routine for module in _MODULES for routine in module.ROUTINES)
_INT8_ROUTINES: tuple[type[Int8Routine], ...] = tuple(
    routine for module in _INT8_MODULES for routine in module.ROUTINES
)


def routines(traits: Traits, dtypes: Sequence[str] = (DTYPE,)) -> tuple[OpenCLRoutine, ...]:
    """The routines of a device with `traits`, in order of expected speed.

    Args:
        traits: of the device.
        dtypes: storage types of the routines for float32 layers. int8 layers have routines of their own.
    """
    found = [routine(traits) for routine in _ROUTINES] if DTYPE in dtypes else []
    if HALF in dtypes:
        found += [routine(traits, HALF) for routine in _ROUTINES if routine.stores_half]
    return (*found, *(routine(traits) for routine in _INT8_ROUTINES))
