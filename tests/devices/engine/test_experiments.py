"""Slow cores and delayed transfers, which the engine makes up for experiments."""

from __future__ import annotations

import time

import numpy as np
import pytest

from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import (
    Buffer,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.program import Program, aligned_array
from tests.kits.engine_programs import CORES, add, call_program


def test_transfers_between_queues_are_delayed_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    delay_us = 30_000
    calls: list[CallFunction] = [lambda _r, _w: None] * 3
    for text, least in ((str(delay_us), delay_us), ("0", 0), ("-5", 0), ("nonsense", 0)):
        monkeypatch.setenv("NNSTRETCH_TRANSFER_DELAY_US", text)
        with call_program(*calls, waits=[(), (0,), (1,)]) as program:
            trace = program.run_traced()
        passed = np.diff(trace.steps[:, 0]) / 1000
        assert (passed >= least).all()
        assert trace.waits[0, 0] == trace.waits[0, 1]
        if not least:
            assert (passed < delay_us).all()


def least_ns(cores: tuple[int, ...], steps: int) -> int:
    """The shortest of several runs of additions on a pool, in nanoseconds."""
    size = 4 * 60000
    memory = [aligned_array(size) for _ in range(3)]
    regions = [Region(RegionKind.FIXED, size, memory=m) for m in memory]
    additions = [add((0, 1), 2, size // 4)] * steps
    buffers = [Buffer(i, 0, size) for i in range(3)]
    with Program([Queue(QueueKind.HOST, cores)], regions, buffers, additions, [SubGraph(0, steps)]) as program:
        return int(min(program.time(warmup=1, runs=30, budget_ms=300)))


def test_slow_cores_take_as_much_longer_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a hundredth of the speed; the shortest of many runs on one core is hardly disturbed by other programs."""
    alone, together = CORES[:1], CORES[:2]
    fast = least_ns(alone, 20)
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", ",".join(f"{core}:0.01" for core in together))
    assert least_ns(alone, 20) > 30 * fast
    assert least_ns(together, 20) > 15 * fast
    for text in ("x", f"{alone[0]}", f"{alone[0]}:0.001", f"{alone[0]}:7", f"{max(CORES) + 1}:0.01,"):
        monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", text)
        assert least_ns(alone, 20) < 30 * fast, text


def test_calls_take_the_mean_speed_of_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = CORES[:2]
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", f"9999:0.5,{cores[0]}:0.2")
    mean = (0.2 + len(cores) - 1) / len(cores)
    with call_program(lambda _r, _w: time.sleep(0.02), queues=[Queue(QueueKind.HOST, cores)]) as program:
        ((begin, end),) = program.run_traced().steps
    assert end - begin >= 20_000_000 / mean
