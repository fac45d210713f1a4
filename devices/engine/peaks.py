"""Peaks of multiply-adds by data type: that of float32 is measured (`Engine.peak_gflops`), others follow from it.

An instruction multiplies more numbers of fewer bytes than of float32. How many more, where both kinds of instructions run at
the same rate, is a constant of the instruction set; so is AMX's rate beside that of AVX-512.
"""

from __future__ import annotations

from collections.abc import Collection

_RATIOS = (
    ("int8", "amx_int8", 32.0),  # 16 x 16 x 64 products in 16 cycles; AVX-512: 2 x 16 in one
    ("int8", "avx512_vnni", 4.0),  # four bytes in place of each float
    ("int8", "avx_vnni", 4.0),
    ("int8", "i8mm", 8.0),  # 2 x 2 x 8 products; FMLA: 4
    ("int8", "asimddp", 4.0),
    ("bfloat16", "amx_bf16", 16.0),
    ("bfloat16", "avx512_bf16", 2.0),
    ("bfloat16", "bf16", 4.0),  # BFMMLA: 2 x 2 x 4 products
    ("float16", "asimdhp", 2.0),
)
"""A data type, the CPU feature that multiplies it, and its multiply-adds over those of float32 in the same time; best first."""
_INT8_PAIRS = 2.0
"""The ratio of int8 on x86-64 without such a feature: pairs of int16 (PMADDWD)."""
_INT8_LONG = 4.0 / 3.0
"""The same on ARM: two long products and a sum of pairs (SMULL, SMLAL, SADALP) multiply 16 numbers, three FMLA 12."""


def peak_ratio(dtype: str, features: Collection[str]) -> float:
    """Multiply-adds of a data type over those of float32 in the same time, at the peaks of one core.

    Args:
        dtype: what a routine computes in; 1 is the answer for float32 and types that are computed in it.
        features: of the CPU, as /proc/cpuinfo names them.
    """
    for name, feature, ratio in _RATIOS:
        if name == dtype and feature in features:
            return ratio
    if dtype != "int8":
        return 1.0
    return _INT8_LONG if "asimd" in features or "neon" in features else _INT8_PAIRS


def routine_peak_ratio(routine: str, features: Collection[str]) -> float:
    """`peak_ratio` of the data type in a routine's descriptor, such as "cpu:int8/direct"."""
    processor, _, rest = routine.partition(":")
    return peak_ratio(rest.partition("/")[0], features) if processor == "cpu" else 1.0
