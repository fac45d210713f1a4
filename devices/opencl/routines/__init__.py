"""Routines of the OpenCL processor: one class per kernel, for float32 and mostly also for float16 storage."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.opencl.routines.base import DTYPE, HALF, OpenCLRoutine, Traits
from nnstretch.devices.opencl.routines.conv import Depthwise, Direct, Planar
from nnstretch.devices.opencl.routines.data import ConcatBlocked, ConcatPlain, Reorder, Softmax
from nnstretch.devices.opencl.routines.dense import Dense
from nnstretch.devices.opencl.routines.elementwise import (
    Affine,
    BinaryBroadcast,
    BinaryChannel,
    BinarySame,
    Map,
    Reshape,
)
from nnstretch.devices.opencl.routines.pool import GlobalPool, Pool, Resize
from nnstretch.devices.opencl.routines.strassen import Strassen
from nnstretch.devices.opencl.routines.strided import ChannelsLast, SliceBlocked, Strided
from nnstretch.devices.opencl.routines.winograd import Winograd

__all__ = ["OpenCLRoutine", "Reorder", "Traits", "routines"]

_ROUTINES: tuple[type[OpenCLRoutine], ...] = (
    Depthwise,
    Planar,
    Winograd,
    Strassen,
    Direct,
    Dense,
    Pool,
    GlobalPool,
    Map,
    BinarySame,
    BinaryChannel,
    BinaryBroadcast,
    Affine,
    ConcatBlocked,
    ConcatPlain,
    Softmax,
    Resize,
    ChannelsLast,
    SliceBlocked,
    Strided,
    Reshape,
)


def routines(traits: Traits, dtypes: Sequence[str] = (DTYPE,)) -> tuple[OpenCLRoutine, ...]:
    """The routines of a device with `traits` for storage types `dtypes`, in order of expected speed."""
    found = [routine(traits) for routine in _ROUTINES] if DTYPE in dtypes else []
    if HALF in dtypes:
        found += [routine(traits, HALF) for routine in _ROUTINES if routine.stores_half]
    return tuple(found)
