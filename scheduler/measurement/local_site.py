"""Measurements on this machine: single layers run in a worker process, plans in this one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.opencl.backend import OPENCL
from nnstretch.errors import FeedError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.measurement.caches import CacheSizes, cache_sizes
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.compare import OpenCandidates, compare
from nnstretch.scheduler.measurement.interference import round_trip
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest
from nnstretch.scheduler.measurement.runner.runner import Runner
from nnstretch.scheduler.measurement.site import MeasurementSite, ReferenceFrequency
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.progress import Progress

_BUDGET = 0.4
"""Seconds to run a plan in for the times of its steps, within `_FEWEST_RUNS` and `_MOST_RUNS`."""
_FEWEST_RUNS, _MOST_RUNS = 5, 15


class LocalSite(MeasurementSite):
    """The machine that this process runs on.

    Attributes:
        runner: runs single layers.
    """

    def __init__(self, host: Processor, runner: Runner | None = None, *, quick: bool = False) -> None:
        """Starts no process yet.

        Args:
            host: CPU that copies a device's results out for the check.
            runner: runs single layers; a process of its own if None.
            quick: candidates of a layer run half as often, for searches that compare sums over many layers.
        """
        self.runner = runner or Runner()
        self._host = host
        self._quick = quick
        self._open = OpenCandidates(self.runner)

    @property
    def caches(self) -> CacheSizes:
        return cache_sizes()

    def compare(
        self, candidates: CandidateSet, test: LayerUnderTest, reference: ReferenceFrequency
    ) -> dict[int, Measurement]:
        return compare(candidates, test, self._open, self._host, reference, quick=self._quick)

    def prepare(
        self, processor: Processor, layers: Sequence[Layer], progress: Progress, *, branched: bool = False
    ) -> None:
        """Compiles the programs of an OpenCL device on all cores."""
        if processor.backend is not OPENCL:
            return
        from nnstretch.devices.opencl.processor import OpenCLProcessor
        from nnstretch.scheduler.measurement.programs.builds import build_programs

        assert isinstance(processor, OpenCLProcessor)
        build_programs(layers, processor, self._host, progress, branched=branched)

    def seconds(self, compiled: Compiled) -> Sequence[float]:
        with PlanSession(compiled) as session:
            return [float(seconds) for seconds in session.time()]

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        with PlanSession(compiled) as session:
            (once,) = session.time(warmup=1, runs=1)
            runs = int(min(_MOST_RUNS, max(_FEWEST_RUNS, _BUDGET / once)))
            return session.step_seconds(runs)

    def round_trip(self, host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
        return round_trip(host, device, tensor)

    def frequency(self, processor: Processor) -> float | None:
        core = next(iter(processor.spec.cores), None)
        try:
            return None if core is None else engine().clock_gflops(core)
        except FeedError:
            return None

    def close(self) -> None:
        """Ends the worker process."""
        self.runner.close()
