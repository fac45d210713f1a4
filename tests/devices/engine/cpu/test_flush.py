"""Flushing memory from the caches keeps its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from nnstretch.devices.engine.binding.library import engine


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 1), (63, 65), (5, 100_003), (0, 1 << 20)])
def test_flushed_memory_keeps_its_bytes(begin: int, end: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    before = memory.copy()
    memory[begin:end] ^= 0xFF
    engine().flush(memory[begin:end])
    memory[begin:end] ^= 0xFF
    assert np.array_equal(memory, before)
