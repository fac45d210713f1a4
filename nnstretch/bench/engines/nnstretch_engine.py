"""Our engine, through its public API."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nnstretch
from nnstretch.api.options import TOLERANCE
from nnstretch.bench.comparison.layers import layer_table
from nnstretch.bench.engines.interface import Engine, Job
from nnstretch.devices.base.spec import format_cores
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress

_TRACED_RUNS = 15


class NNStretchEngine(Engine):
    """A package with a tuned plan on a CPU processor of the process's cores.

    Options: "tune" (True), "tolerance", "plan" (file of a plan, or None), and "layers" (False; True adds the time of every
    layer to the facts).
    """

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray]) -> None:
        self._job = job
        self._session = PlanSession.load(job.file or job.model)
        names = [i.name for i in self._session.get_inputs()]
        self._feeds = dict(zip(names, feeds.values(), strict=True))
        self._found: list[np.ndarray] = []

    def run(self) -> None:
        self._found = self._session.run(None, self._feeds)

    def outputs(self) -> dict[str, np.ndarray]:
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._found, strict=True))

    def facts(self) -> dict[str, Any]:
        plan = self._session.plan
        facts: dict[str, Any] = {
            "version": nnstretch.__version__,
            "dtype": "int8" if any(":int8/" in step.routine for step in plan.steps) else "float32",
            "macs": plan.macs,
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
    with nnstretch.compile(
        job.onnx,
        processors=f"cpu:{format_cores(job.cores)}",
        tune=bool(job.options.get("tune", True)),
        tolerance=float(job.options.get("tolerance", TOLERANCE)),
        plan=job.options.get("plan"),
        progress=report,
    ) as session:
        session.save(path)
    return path


def load(job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> Engine:
    """The package, ready to run."""
    return NNStretchEngine(job, feeds)
