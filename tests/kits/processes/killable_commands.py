"""Commands that report what they have finished, to be killed: they may take made-up times.

With made-up times all runs happen, but count as long as a digest of what ran says, so that the same answer is the best
whenever it is asked for.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nnstretch.branching.latency.prediction import MeasuredDesign
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.cli.main import main
from nnstretch.compiler.design_runs import DesignRunner
from nnstretch.devices.base.routine import Parameters
from nnstretch.scheduler.measurement import interference
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.measurement.runner.runner import LoadedLayer, Runner, TimedRun
from nnstretch.scheduler.measurement.store.rows import Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import PlanStep
from nnstretch.training.loop.checkpoint import Checkpoint

_put_all, _remove, _time = ProfileStore.put_all, ProfileStore.remove, Runner.time
_save, _run_design = Checkpoint.save, DesignRunner.__call__


def run_command(arguments: Sequence[str], environment: Mapping[str, str], log: Path, made_up: bool) -> None:
    """Runs a command in this process, which it ends, without output.

    Args:
        arguments: of `nnstretch`.
        environment: variables to set.
        log: file that gets a JSON array per line. `["+", processor, workload, routine, parameters]` is a measurement that
            was in the profile store when the line was written, "-" one that was going to be dropped, and
            `["checkpoint", epochs, step]` a checkpoint that was on disk.
        made_up: whether measurements take made-up times.
    """
    os.environ.update(environment)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    _report_to(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    if made_up:
        _make_up_times()
    sys.exit(main(list(arguments)))


def _report_to(log: int) -> None:
    """Reports every write to a profile store and of a checkpoint after it is done, and every removal before."""

    def report(lines: Iterable[Sequence[object]]) -> None:
        os.write(log, "".join(f"{json.dumps(line)}\n" for line in lines).encode())

    def put_all(store: ProfileStore, rows: Iterable[Row]) -> None:
        rows = list(rows)
        _put_all(store, rows)
        report(("+", r.processor, r.workload, r.routine, dict(r.parameters)) for r in rows)

    def remove(store: ProfileStore, keys: Iterable[tuple[str, str, str, Parameters]]) -> None:
        keys = list(keys)
        report(("-", *names, dict(parameters)) for *names, parameters in keys)
        _remove(store, keys)

    def save(checkpoint: Checkpoint, path: Path) -> None:
        _save(checkpoint, path)
        report([("checkpoint", len(checkpoint.history), checkpoint.counters.step)])

    _replace(ProfileStore, "put_all", put_all)
    _replace(ProfileStore, "remove", remove)
    _replace(Checkpoint, "save", save)


def _make_up_times() -> None:
    """Has runs of candidates, of whole networks and of designs take made-up times, and the clock be steady."""

    def time(self: Runner, candidates: Sequence[LoadedLayer], state: object) -> list[TimedRun | None]:
        found = _time(self, candidates, state)  # type: ignore[arg-type]
        made = [sum(map(_step_seconds, layer.single.plan.steps)) for layer in candidates]
        return [None if real is None else TimedRun(seconds, None) for real, seconds in zip(found, made, strict=True)]

    def step_seconds(self: LocalSite, compiled: Compiled) -> np.ndarray:
        return np.array([[_step_seconds(step)] * 5 for step in compiled.plan.steps])

    def run_design(self: DesignRunner, network: BranchedNetwork, *, tuned: bool) -> MeasuredDesign:
        real = _run_design(self, network, tuned=tuned)
        seconds = [_seconds((network.design.id, number)) for number in range(1 + sum(map(len, real.branches)))]
        parts = iter(seconds[1:])
        return MeasuredDesign(seconds[0], tuple(tuple(next(parts) for _ in some) for some in real.branches))

    def ratios(processors: object, host: object, group: Sequence[int]) -> list[list[float]]:
        return [[1.1] * 5 for _ in group]

    _replace(Runner, "time", time)
    _replace(DesignRunner, "__call__", run_design)
    _replace(LocalSite, "step_seconds", step_seconds)
    _replace(interference, "_measured_ratios", ratios)
    _replace(LocalSite, "round_trip", lambda *_: (5e-3, (5e-3,) * 5))
    _replace(LocalSite, "frequency", lambda *_: None)
    _replace(Profiler, "is_slowed", lambda *_: False)


def _step_seconds(step: PlanStep) -> float:
    """Made-up seconds of a step, by what it computes and how."""
    return _seconds((step.op, step.routine, step.kernel, step.arguments))


def _seconds(of: object) -> float:
    """Made-up seconds: between one and two milliseconds."""
    return 1e-3 * (1 + zlib.crc32(repr(of).encode()) / 2**32)


def _replace(owner: object, name: str, function: Callable[..., object]) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, function)
