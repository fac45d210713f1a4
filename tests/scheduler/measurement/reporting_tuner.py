"""`nnstretch tune --resume` that reports what is finished, and may take made-up times: LOG TIMES ARGUMENTS….

Every line of LOG is a key of the profile store: "+" one whose measurement was finished when the line was written, "-" one that
was going to be dropped then. With TIMES "made-up" all runs happen, but count as long as a digest of what ran says, so that the
same plan is the best whenever it is asked for.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from nnstretch.cli.main import main
from nnstretch.devices.base.routine import Parameters
from nnstretch.scheduler.measurement import integrated
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.runner import LoadedLayer, Runner, TimedRun
from nnstretch.scheduler.measurement.store.rows import Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import PlanStep

_put_all, _remove, _time = ProfileStore.put_all, ProfileStore.remove, Runner.time


def report_to(log: int) -> None:
    """Reports every write to a profile store after it is done, and every removal before."""

    def report(sign: str, keys: Iterable[tuple[str, str, str, Parameters]]) -> None:
        lines = [json.dumps([sign, *names, dict(parameters)]) for *names, parameters in keys]
        os.write(log, "".join(f"{line}\n" for line in lines).encode())

    def put_all(store: ProfileStore, rows: Iterable[Row]) -> None:
        rows = list(rows)
        _put_all(store, rows)
        report("+", ((r.processor, r.workload, r.routine, r.parameters) for r in rows))

    def remove(store: ProfileStore, keys: Iterable[tuple[str, str, str, Parameters]]) -> None:
        keys = list(keys)
        report("-", keys)
        _remove(store, keys)

    setattr(ProfileStore, "put_all", put_all)  # noqa: B010 - a method in place of a method
    setattr(ProfileStore, "remove", remove)  # noqa: B010


def made_up(step: PlanStep) -> float:
    """Seconds of a step: between one and two milliseconds, by what it computes and how."""
    return 1e-3 * (1 + zlib.crc32(repr((step.op, step.routine, step.kernel, step.arguments)).encode()) / 2**32)


def make_up_times() -> None:
    """Has runs of candidates and of whole networks take made-up times, and the clock be steady."""

    def time(self: Runner, candidates: Sequence[LoadedLayer], state: object) -> list[TimedRun | None]:
        found = _time(self, candidates, state)  # type: ignore[arg-type]
        made = [sum(map(made_up, layer.single.plan.steps)) for layer in candidates]
        return [None if real is None else TimedRun(seconds, None) for real, seconds in zip(found, made, strict=True)]

    def step_samples(compiled: Compiled) -> np.ndarray:
        return np.array([[made_up(step)] * 5 for step in compiled.plan.steps])

    setattr(Runner, "time", time)  # noqa: B010
    setattr(integrated, "_step_samples", step_samples)  # noqa: B010
    setattr(Profiler, "is_slowed", lambda *_: False)  # noqa: B010


if __name__ == "__main__":
    report_to(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    if sys.argv[2] == "made-up":
        make_up_times()
    sys.exit(main(["tune", "--resume", *sys.argv[3:]]))
