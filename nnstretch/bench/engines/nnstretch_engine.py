"""Our own engine, through the front door that users take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import nnstretch
from nnstretch.bench.engines.interface import Engine, Job, Report
from nnstretch.bench.layers import layer_table
from nnstretch.devices.engine.binding import engine
from nnstretch.devices.spec import format_cores
from nnstretch.scheduler.session import Session


class NNStretchEngine(Engine):
    """A tuned plan on a CPU processor of the process's cores; a package runs as it was compiled.

    Options: "tune" (True), "layers" (False: the time of every layer among the facts).
    """

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Report) -> None:
        self._job = job
        self._session: Session = nnstretch.compile(
            job.onnx or job.model,
            processors=f"cpu:{format_cores(job.cores)}",
            tune=bool(job.options.get("tune", True)),
            progress=report,
        )
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
            "macs": plan.macs,
            "fallback_layers": list(plan.fallback_layers),
            "peak_gflops_per_core": engine().peak_gflops(self._job.cores[0]),
        }
        if self._job.options.get("layers"):
            facts["layers"] = layer_table(self._session.profile(self._feeds))
        return facts


def load(job: Job, feeds: Mapping[str, np.ndarray], report: Report) -> Engine:
    """The compiled model."""
    return NNStretchEngine(job, feeds, report)
