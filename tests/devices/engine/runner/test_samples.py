"""Statistics of durations against numpy's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from tests.kits.c_libraries import c_library

PERCENTS = np.array([0, 10, 50, 90, 99, 100], float)
MOST = 1 << 17


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    folder = ENGINE_FOLDER / "runner" / "timing"
    made = c_library(Path(__file__).with_name("samples.c"), includes=(folder / "samples.c", folder / "samples.h"))
    loaded = ctypes.CDLL(str(made))
    loaded.summarise.restype = ctypes.c_int64
    return loaded


def summary(library: ctypes.CDLL, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Percentiles, kept durations, sum and minimum."""
    values, kept = np.empty(len(PERCENTS)), np.empty(MOST, np.float32)
    total, least = ctypes.c_double(), ctypes.c_double()
    count = library.summarise(
        *(durations.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(durations))),
        *(PERCENTS.ctypes.data_as(ctypes.c_void_p), values.ctypes.data_as(ctypes.c_void_p), len(PERCENTS)),
        *(kept.ctypes.data_as(ctypes.c_void_p), ctypes.byref(total), ctypes.byref(least)),
    )
    assert 0 <= count <= MOST
    return values, kept[:count], total.value, least.value


@given(st.lists(st.floats(2**-14, 1e6, width=32), min_size=1, max_size=40))
def test_percentiles_are_numpys(library: ctypes.CDLL, durations: list[float]) -> None:
    array = np.array(durations)
    values, kept, total, least = summary(library, array)
    assert np.array_equal(kept, array.astype(np.float32))
    assert values == pytest.approx(np.percentile(kept.astype(float), PERCENTS))
    assert (total, least) == pytest.approx((array.sum(), array.min()))


def test_no_durations_have_no_percentiles(library: ctypes.CDLL) -> None:
    values, kept, total, _ = summary(library, np.empty(0))
    assert np.isnan(values).all()
    assert (len(kept), total) == (0, 0)


@pytest.mark.parametrize("count", [MOST - 1, MOST, MOST + 1, 3 * MOST, 4 * MOST + 5])
def test_long_runs_are_thinned_out_evenly(library: ctypes.CDLL, count: int) -> None:
    durations = np.arange(1, count + 1, dtype=float)
    values, kept, total, least = summary(library, durations)
    stride = max(1, 2 ** int(np.ceil(np.log2(count / MOST))))
    assert np.array_equal(kept, durations[::stride].astype(np.float32))
    assert values == pytest.approx(np.percentile(kept.astype(float), PERCENTS))
    assert (total, least) == (durations.sum(), 1)
