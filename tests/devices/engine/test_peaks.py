"""Peaks of multiply-adds by data type."""

from __future__ import annotations

import pytest

from nnstretch.devices.engine.build.instruction_sets import cpu_features
from nnstretch.devices.engine.peaks import _RATIOS, peak_ratio, routine_peak_ratio


@pytest.mark.parametrize(
    ("dtype", "features", "ratio"),
    [
        ("float32", ("avx512_vnni", "amx_int8"), 1.0),
        ("int8", ("fma", "avx512_vnni"), 4.0),
        ("int8", ("fma", "avx512_vnni", "amx_int8", "amx_tile"), 32.0),
        ("int8", ("fma", "avx2"), 2.0),
        ("int8", ("asimd", "asimddp", "i8mm"), 8.0),
        ("int8", ("asimd",), 4 / 3),
        ("bfloat16", ("avx512_bf16",), 2.0),
        ("bfloat16", ("fma",), 1.0),
    ],
)
def test_the_best_instruction_of_a_cpu_counts(dtype: str, features: tuple[str, ...], ratio: float) -> None:
    assert peak_ratio(dtype, features) == ratio


def test_a_routine_computes_in_the_type_of_its_descriptor() -> None:
    assert routine_peak_ratio("cpu:int8/rows", ("avx_vnni",)) == 4.0
    assert routine_peak_ratio("cpu:float32/winograd", ("avx_vnni",)) == 1.0
    assert routine_peak_ratio("opencl:float32/direct", ("avx_vnni",)) == 1.0


def test_the_engine_knows_the_features() -> None:
    assert {feature for _, feature, _ in _RATIOS} <= cpu_features().keys()
