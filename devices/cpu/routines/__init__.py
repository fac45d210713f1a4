"""All routines of the CPU.

A module's `ROUTINES` are called with the instruction set of an engine and return its routines, most promising first.
"""

from __future__ import annotations

from collections.abc import Collection

from nnstretch.devices.base.routine import USUAL_THREADS, Routine
from nnstretch.devices.cpu.routines import (
    attention,
    cast,
    data_movement,
    eltwise,
    matmul,
    normalization,
    pool,
    recurrence,
    reduce,
)
from nnstretch.devices.cpu.routines.bfloat16 import attention as bfloat16_attention
from nnstretch.devices.cpu.routines.bfloat16 import convolution as bfloat16_convolution
from nnstretch.devices.cpu.routines.bfloat16 import dense as bfloat16_dense
from nnstretch.devices.cpu.routines.bfloat16 import pair as bfloat16_pair
from nnstretch.devices.cpu.routines.convolution import (
    dense,
    depthwise,
    direct,
    inverted_residual,
    pair,
    patches,
    planar,
    strassen,
    winograd,
)
from nnstretch.devices.cpu.routines.float16 import convolution as float16_convolution
from nnstretch.devices.cpu.routines.float16 import dense as float16_dense
from nnstretch.devices.cpu.routines.int8 import arithmetic as int8_arithmetic
from nnstretch.devices.cpu.routines.int8 import concat as int8_concat
from nnstretch.devices.cpu.routines.int8 import converted as int8_converted
from nnstretch.devices.cpu.routines.int8 import convolution as int8_convolution
from nnstretch.devices.cpu.routines.int8 import dense as int8_dense
from nnstretch.devices.cpu.routines.int8 import floating as int8_floating
from nnstretch.devices.cpu.routines.int8 import pool as int8_pool
from nnstretch.devices.cpu.routines.int8 import quantize as int8_quantize
from nnstretch.devices.cpu.routines.int8 import summed as int8_summed
from nnstretch.devices.engine.build.instruction_sets import Isa

_MODULES = (
    depthwise,
    planar,
    patches,
    bfloat16_convolution,
    float16_convolution,
    direct,
    bfloat16_pair,
    inverted_residual,
    pair,
    strassen,
    winograd,
    bfloat16_dense,
    float16_dense,
    bfloat16_attention,
    dense,
    attention,
    matmul,
    recurrence,
    pool,
    reduce,
    eltwise,
    normalization,
    data_movement,
    cast,
    int8_convolution,
    int8_converted,
    int8_summed,
    int8_dense,
    int8_quantize,
    int8_arithmetic,
    int8_pool,
    int8_concat,
    int8_floating,
)
"""In the order in which routines of the same layer are listed: most promising first."""


def native_routines(
    isa: Isa, threads: int = USUAL_THREADS, features: Collection[str] = (), products: Collection[str] = ()
) -> tuple[Routine, ...]:
    """All routines of engines built for an instruction set.

    Args:
        isa: the instruction set.
        threads: the least number among which they divide work.
        features: of the CPU, as /proc/cpuinfo names them; some routines support more layers where they are known.
        products: types to which routines may round float32 before they multiply, such as "bfloat16".
    """
    made = (routine(isa) for module in _MODULES for routine in module.ROUTINES)
    routines = tuple(one for one in made if one.rounds_to is None or one.rounds_to in products)
    for one in routines:
        one.threads, one.features = max(threads, USUAL_THREADS), frozenset(features)
    return routines


REORDER_ROUTINE: Routine = data_movement.ReorderRoutine()
"""The routine that converts layouts."""
