"""All cores of several processors as one."""

from __future__ import annotations

import os

import pytest

from nnstretch.compiler.pool import pool_of
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import format_cores

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize(
    ("other", "shares"),
    [
        (f"cpu:{CORES[-1]}", {0: 0.5, 1: 0.5}),
        pytest.param(f"opencl:0@{CORES[-1]}", {0: 0.5}, marks=pytest.mark.opencl),
    ],
    ids=["two cpus", "opencl"],
)
def test_processors_on_cores_of_the_cpu_make_a_pool(other: str, shares: dict[int, float]) -> None:
    pool = pool_of(build_processors(f"cpu:{CORES[0]},{other}"), learned=False)
    assert pool is not None
    assert pool.name == f"cpu:{format_cores((CORES[0], CORES[-1]))}"
    assert pool.shares == shares


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_cores_of_unlike_speed_divide_the_work_of_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CORE_SPEEDS", f"{CORES[1]}:0.25")
    pool = pool_of(build_processors(f"cpu:{CORES[0]},cpu:{CORES[1]}"), learned=False)
    assert pool is not None
    assert pool.name == f"cpu:{format_cores((CORES[0], CORES[1]))}*4:1"
    assert pool.shares == pytest.approx({0: 0.8, 1: 0.2})


@pytest.mark.parametrize("processors", [f"cpu:{CORES[0]}", "sim:phone/cpu,sim:phone/gpu"])
def test_others_make_none(processors: str) -> None:
    assert pool_of(build_processors(processors)) is None
