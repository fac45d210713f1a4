"""The time of a step includes all cores' work on it, even if the calling thread is stopped."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.base.spec import usable_cores
from tests.kits.c_libraries import c_library, runtime_files

CORES = usable_cores()


@pytest.mark.skipif(len(CORES) < 2, reason="two threads need two cores")
def test_steps_that_others_compute_while_the_caller_is_stopped_are_timed() -> None:
    library = ctypes.CDLL(str(c_library(Path(__file__).with_name("pool_times.c"), includes=runtime_files())))
    times = np.zeros((4, 2), np.int64)
    assert library.pool_times((ctypes.c_int32 * 2)(CORES[0], CORES[1]), ctypes.c_void_p(times.ctypes.data)) == 0
    assert (np.diff(times[1:]) >= 2_000_000).all(), "the other thread computed both shares, of a millisecond each"
    assert (times[1:, 0] == times[:-1, 1]).all(), "a step begins where the one before it ends"
