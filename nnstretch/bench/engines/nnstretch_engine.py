"""Our engine, through its public API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import nnstretch
from nnstretch.api.options import CompileOptions
from nnstretch.bench.engines import Engine, Job
from nnstretch.devices.base.spec import format_cores
from nnstretch.devices.engine.build.instruction_sets import local_features
from nnstretch.devices.engine.peaks import peak_ratio, routine_peak_ratio
from nnstretch.graph.dtypes import BFLOAT16, DEFAULT_DTYPE, FLOAT16
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.support.progress import Progress

_TRACED_RUNS = 15


class NNStretchEngine(Engine):
    """A package with a tuned plan on a CPU processor of the process's cores.

    Options: "compile" (fields of `CompileOptions` by name), and "layers" (False; True adds the time of every layer to the
    facts).
    """

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
        self._job = job
        self._session = PlanSession.load(job.file or job.model, trusted_sources=_compiling(job).trusted_sources)
        names = [i.name for i in self._session.get_inputs()]
        self._feeds = dict(zip(names, feeds.values(), strict=True))
        self._binding = self._session.bind(self._feeds)

    def run(self) -> None:
        self._binding.run()

    def outputs(self) -> dict[str, np.ndarray]:
        return dict(self._binding.outputs)

    def facts(self) -> dict[str, Any]:
        plan = self._session.plan
        facts: dict[str, Any] = {
            "version": nnstretch.__version__,
            "dtype": computed_dtype(plan),
            "peak_ratio": peak_ratio(computed_dtype(plan), local_features()),
            "macs": plan.macs,
            "product_macs": plan.product_macs,
            "plan_bytes": self._session.compiled.memory_bytes,
            "fallback_layers": list(plan.fallback_layers),
        }
        if self._job.options.get("layers"):
            runs = [self._session.profile(self._feeds, runs=1) for _ in range(_TRACED_RUNS)]
            facts["layers"] = layer_table(plan, runs)
        return facts


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """A package of the model, tuned for the job's cores; a package is returned unchanged."""
    if not job.onnx:
        return Path(job.model)
    path = folder / f"{len(job.cores)}.nns"
    with nnstretch.compile(job.onnx, options=replace(_compiling(job), progress=report)) as session:
        session.save(path)
    return path


def computed_dtype(plan: Plan) -> str:
    """The least precise type in which the layers that multiply compute; of all layers, if none multiplies."""
    computing = [step.routine for step in plan.steps if step.macs] or [step.routine for step in plan.steps]
    marks = {"int8": ":int8/", BFLOAT16: f":{BFLOAT16}/", FLOAT16: f"cpu:{FLOAT16}/"}  # OpenCL computes in float32
    return next((dtype for dtype, mark in marks.items() if any(mark in one for one in computing)), DEFAULT_DTYPE)


def _compiling(job: Job) -> CompileOptions:
    return CompileOptions(f"cpu:{format_cores(job.cores)}", **job.options.get("compile", {}))


load = NNStretchEngine


def layer_table(plan: Plan, timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """One record per step, in the order of the first run; times are medians over the runs.

    Fields: name, op, routine, parameters, processor, ms, share (of the time of all steps), macs, GFLOP/s (of the layer's
    nominal multiply-adds: Winograd may exceed the peak) and peak_ratio (the peak of the routine's data type over that of
    float32).
    """
    features = local_features()
    parameters = {(step.layer, step.op, step.routine): dict(step.parameters) for step in plan.steps}
    runs = [_steps(timeline) for timeline in timelines]
    times = {key: median(run[key].end - run[key].begin for run in runs if key in run) for key in runs[0]}
    total = sum(times.values())
    return [
        {
            "name": step.name,
            "op": step.op,
            "routine": step.routine,
            "parameters": parameters.get((step.name, step.op, step.routine), {}),
            "processor": timelines[0].queues[step.queue],
            "ms": times[key] / 1e6,
            "share": times[key] / max(1, total),
            "macs": step.macs,
            "gflops": 2 * step.macs / max(1, times[key]),
            "peak_ratio": routine_peak_ratio(step.routine, features),
        }
        for key, step in runs[0].items()
    ]


def _steps(timeline: Timeline) -> dict[tuple[str, str, str, int], Event]:
    """The steps of a run in the order of their begin; the number in the key distinguishes steps with equal names."""
    seen: Counter[tuple[str, str, str]] = Counter()
    found: dict[tuple[str, str, str, int], Event] = {}
    for event in sorted((e for e in timeline.events if e.kind == "step"), key=lambda e: e.begin):
        name = event.name, event.op, event.routine
        found[*name, seen[name]] = event
        seen[name] += 1
    return found
