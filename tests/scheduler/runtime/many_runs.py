"""Ten thousand runs of a session with some failures: `python -m tests.scheduler.runtime.many_runs opencl|calls`.

Fails if they leak memory, files or threads.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.external.onnxruntime import OnnxRuntimeModel
from nnstretch.errors import DeviceError
from nnstretch.scheduler.runtime import loading
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.opencl.opencl_faults import Faults
from tests.scheduler.runtime.test_session_faults import CPU_AND_CALLS, CPU_AND_OPENCL, PATIENCE, Checked, compiled

WARMUP, RUNS, HALVES, SECONDS = 500, 10_000, 2, 8.0
GROWTH = 1 << 18
"""Bytes: a leak of fifty in every run would show."""


def resources() -> tuple[int, int, int]:
    """Bytes of resident memory, open files and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, threads = (len(list(Path(f"/proc/self/{name}").iterdir())) for name in ("fd", "task"))
    return pages * os.sysconf("SC_PAGE_SIZE"), files, threads


def stays_flat(step: Callable[[int], None]) -> None:
    """Ten thousand runs, or as many as there is time for, take no more memory, files or threads than the first ones.

    Half of them may take some: libraries grow once in a while, leaks at every run.
    """
    for i in range(WARMUP):
        step(i)
    found = [resources()]
    for _ in range(HALVES):
        end = time.monotonic() + SECONDS / HALVES
        runs = 0
        while runs < RUNS / HALVES and (runs < WARMUP or time.monotonic() < end):
            step(runs)
            runs += 1
        found.append(resources())
    growths = [after[0] - before[0] for before, after in itertools.pairwise(found)]
    assert len({some[1:] for some in found}) == 1, f"files and threads: {[some[1:] for some in found]}"
    assert min(growths) <= GROWTH, f"halves of {RUNS} runs or fewer took {growths} bytes"


def opencl_runs(faults: Faults) -> None:
    """Some are traced, some have a deadline, and some fail."""
    with PlanSession(compiled(CPU_AND_OPENCL)) as session:
        checked = Checked(session)

        def step(i: int) -> None:
            if i % 20 == 5:
                faults.set(("clEnqueueNDRangeKernel", "clFlush")[i // 20 % 2])
                with pytest.raises(DeviceError, match="failed with OpenCL error"):
                    checked.run()
            elif i % 20 == 15:
                session.traces(runs=1)
            else:
                checked.run(PATIENCE if i % 4 == 0 else None)

        stays_flat(step)
        assert faults.live_events == 0


def call_runs(broken: list[bool]) -> None:
    """Some have a deadline, and some fail, while `broken` holds something."""
    with PlanSession(compiled(CPU_AND_CALLS)) as session:
        checked = Checked(session)

        def step(i: int) -> None:
            if i % 20 == 5:
                broken.append(True)
                with pytest.raises(DeviceError, match="the delegate is gone"):
                    checked.run()
                broken.clear()
            else:
                checked.run(PATIENCE if i % 4 == 0 else None)

        stays_flat(step)


def main() -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "opencl":
            faults = Faults(Path(folder))
            patch.setattr(loading, "engine", lambda: faults.engine)
            opencl_runs(faults)
        else:
            broken: list[bool] = []
            run = OnnxRuntimeModel.run

            def fails_at_times(self: OnnxRuntimeModel, *arguments: list[np.ndarray]) -> None:
                if broken:
                    raise DeviceError("the delegate is gone")
                run(self, *arguments)

            patch.setattr(OnnxRuntimeModel, "run", fails_at_times)
            call_runs(broken)


if __name__ == "__main__":
    main()
