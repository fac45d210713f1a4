"""Routines of the OpenCL processor: one class per kernel, for float32 and mostly also for float16 storage."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.opencl.routines import (
    conv,
    data_movement,
    elementwise,
    implicit_gemm,
    matmul,
    normalization,
    pool,
    reduce,
    strassen,
    winograd,
)
from nnstretch.devices.opencl.routines.base import DTYPE, HALF, OpenCLRoutine, Traits
from nnstretch.devices.opencl.routines.data_movement import Reorder

__all__ = ["OpenCLRoutine", "Reorder", "Traits", "routines"]

_ROUTINES: tuple[type[OpenCLRoutine], ...] = (
    conv.Depthwise,
    conv.Planar,
    winograd.Winograd,
    strassen.Strassen,
    implicit_gemm.PlanarGemm,
    implicit_gemm.ImplicitGemm,
    conv.Direct,
    conv.Dense,
    matmul.MatMul,
    matmul.Attention,
    pool.Pool,
    pool.GlobalPool,
    elementwise.Map,
    elementwise.BinarySame,
    elementwise.BinaryChannel,
    elementwise.BinaryBroadcast,
    elementwise.Affine,
    elementwise.PRelu,
    data_movement.ConcatBlocked,
    data_movement.ConcatPlain,
    elementwise.Softmax,
    normalization.BlockedLayerNorm,
    normalization.LayerNorm,
    normalization.GroupNorm,
    reduce.Reduce,
    reduce.Pad,
    pool.Resize,
    data_movement.ChannelsLast,
    data_movement.MoveBlocks,
    data_movement.Strided,
    data_movement.Reshape,
)
"""In the order in which routines of the same layer are listed: most promising first."""


def routines(traits: Traits, dtypes: Sequence[str] = (DTYPE,)) -> tuple[OpenCLRoutine, ...]:
    """The routines of a device with `traits` for storage types `dtypes`, in order of expected speed."""
    found = [routine(traits) for routine in _ROUTINES] if DTYPE in dtypes else []
    if HALF in dtypes:
        found += [routine(traits, HALF) for routine in _ROUTINES if routine.stores_half]
    return tuple(found)
