"""Sessions: a plan bound to memory, kernels and queues of this process, ready to run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.errors import BuildError, DeviceError, MissingExtraError
from nnstretch.package import read_package, write_package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import check_trusted, packaged, unpackaged
from nnstretch.scheduler.plan.tuned_on import warn_of_package
from nnstretch.scheduler.plan.validate import validate
from nnstretch.scheduler.runtime.arguments import Arguments, check_deadline, checked_budget, is_empty
from nnstretch.scheduler.runtime.base_session import Feeds, Outputs, Session
from nnstretch.scheduler.runtime.loading import Loaded, load_program
from nnstretch.scheduler.runtime.timeline import Timeline, median_timeline, plan_timeline

UNUSABLE = (BuildError, DeviceError, MissingExtraError, MemoryError)
"""Errors of a plan that cannot run here, or not now, where another one may."""

log = logging.getLogger(__name__)


class PlanSession(Session):
    """A session for one plan. Thread-safe: concurrent runs take turns."""

    def __init__(self, compiled: Compiled, sources: Mapping[str, str] | None = None) -> None:
        """Binds a plan to this machine.

        Args:
            compiled: the plan with its constants and models of external engines.
            sources: OpenCL sources to build instead of the installed ones (from a package).

        Raises:
            PackageError: the plan is inconsistent, or made for another block size or engine.
            DeviceError: a processor of the plan does not exist here.
        """
        validate(compiled.plan)
        self._bind(compiled, sources, load_program(compiled, sources))

    def _bind(self, compiled: Compiled, sources: Mapping[str, str] | None, loaded: Loaded) -> None:
        self._compiled = compiled
        self._sources = sources
        self._loaded = loaded
        self._arguments = Arguments(compiled.plan.inputs, compiled.plan.outputs)
        self._beside: tuple[Loaded, ...] = ()

    def replica(self) -> PlanSession:
        """Another session for the same plan, with shared weights and an own arena.

        Replicas pipeline their runs: while one waits for a processor, another one uses it.

        Raises:
            DeviceError: there is not enough memory.
        """
        made = object.__new__(type(self))
        made._bind(self._compiled, self._sources, load_program(self._compiled, self._sources, replica=self._loaded))
        return made

    def run_beside(self, others: Sequence[PlanSession]) -> None:
        """Lets this session's OpenCL devices on the CPU also use the cores of the other sessions' while it runs."""
        self._beside = tuple(other._loaded for other in others)

    @classmethod
    def load(cls, path: str | Path, *, trusted_sources: bool = False) -> Self:
        """A session for a package file; its weights are mapped, not copied.

        Of several plans it runs the first whose processors exist here (`AdaptiveSession` switches between them).

        Args:
            path: the package.
            trusted_sources: refuse OpenCL sources that differ from the installed ones, and libraries of delegates.

        Raises:
            FileError: the file cannot be read.
            PackageError: the package is damaged or too new, or has sources that are not trusted.
            DeviceError, BuildError, MissingExtraError: no plan can run here; the error is the first plan's.
        """
        package = read_package(Path(path))
        if trusted_sources:
            check_trusted(package, path)
        warn_of_package(path, package.metadata)
        failures: list[Exception] = []
        for name, compiled in unpackaged(package).items():
            try:
                session = cls(compiled, package.sources)
            except UNUSABLE as error:
                failures.append(error)
                continue
            if failures:
                log.warning("%s runs plan %s: %s", path, name, failures[0])
            return session
        raise failures[0]

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> None:
        write_package(packaged({"plan": self._compiled}, self.used_sources, metadata or {}), Path(path))

    @property
    def used_sources(self) -> Mapping[str, str]:
        """The OpenCL sources that the plan's kernels are built from."""
        return self._loaded.sources

    @property
    def sources(self) -> Mapping[str, str] | None:
        """OpenCL sources given with the plan."""
        return self._sources

    @property
    def compiled(self) -> Compiled:
        return self._compiled

    @property
    def busy(self) -> bool:
        return self._loaded.program.busy

    def run(self, output_names: Sequence[str] | None, feeds: Feeds, *, deadline: float | None = None) -> Outputs:
        if deadline is not None:
            check_deadline(deadline)
        outputs = self._arguments.new_outputs()
        chosen = self._arguments.chosen(output_names, outputs)
        inputs = self._arguments.arrays(feeds)
        self._loaded.activate(self._beside)
        try:
            self._loaded.program.run(inputs, outputs, deadline=deadline)
        except DeviceError:
            self._loaded.distrust()
            raise
        return chosen

    def _bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        program = self._loaded.program.bound(inputs, outputs)

        def run() -> None:
            self._loaded.activate(self._beside)
            try:
                program()
            except DeviceError:
                self._loaded.distrust()
                raise

        return run

    def run_traced(self, output_names: Sequence[str] | None, feeds: Feeds) -> tuple[Outputs, RunTrace]:
        """As `run`, with the times of every step, at a small cost."""
        outputs = self._arguments.new_outputs()
        chosen = self._arguments.chosen(output_names, outputs)
        inputs = self._arguments.arrays(feeds)
        self._loaded.activate(self._beside)
        try:
            trace = self._loaded.program.run_traced(inputs, outputs)
        except DeviceError:
            self._loaded.distrust()
            raise
        return chosen, trace

    def busy_seconds(self, trace: RunTrace) -> dict[str, float]:
        """Processor -> seconds in its steps. Processors without steps, and helper queues, which have none, are left out."""
        seconds = (trace.steps[:, 1] - trace.steps[:, 0]) * 1e-9
        found: dict[str, float] = {}
        for subgraph in self.plan.subgraphs:
            name = self.plan.queues[subgraph.queue].processor
            if name and subgraph.count:
                busy = float(seconds[subgraph.first : subgraph.first + subgraph.count].sum())
                found[name] = found.get(name, 0.0) + busy
        return found

    def check_feeds(self, output_names: Sequence[str] | None, feeds: Feeds) -> None:
        """Checks the arguments of `run`.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
        """
        self._arguments.check_names(output_names)
        self._arguments.arrays(feeds)

    def profile(self, feeds: Feeds | None = None, runs: int = 9) -> Timeline:
        return self.timeline(self.traces(feeds, runs))

    def timeline(self, traces: Sequence[RunTrace]) -> Timeline:
        """The timeline of the run of median duration."""
        return median_timeline([self._timeline(trace) for trace in traces])

    def traces(self, feeds: Feeds | None = None, runs: int = 9) -> list[RunTrace]:
        """Traces of `runs` runs, at least one, after a warm-up run. Without `feeds`, the inputs are zeros."""
        inputs, outputs = self._inputs_or_zeros(feeds), self._arguments.new_outputs()
        self._loaded.activate(self._beside)
        self._loaded.program.run_traced(inputs, outputs)
        return [self._loaded.program.run_traced(inputs, outputs) for _ in range(max(1, runs))]

    def time(self, feeds: Feeds | None = None, *, warmup: int = 10, runs: int = 100, budget: float = 2.0) -> np.ndarray:
        budget_ms = checked_budget(warmup, runs, budget) * 1e3
        inputs, outputs = self._inputs_or_zeros(feeds), self._arguments.new_outputs()
        self._loaded.activate(self._beside)
        nanoseconds = self._loaded.program.time(inputs, outputs, warmup=warmup, runs=runs, budget_ms=budget_ms)
        return np.asarray(nanoseconds, dtype=np.float64) * 1e-9

    def step_seconds(self, runs: int) -> np.ndarray:
        """Seconds of every step (rows) in each of `runs` runs (columns) on zeros, after a warm-up run.

        What a trace itself takes does not count.
        """
        return self.untraced_seconds(self.traces(runs=runs))

    def untraced_seconds(self, traces: Sequence[RunTrace]) -> np.ndarray:
        """Seconds of every step (rows) in traced runs (columns), without what a trace itself takes."""
        seconds = np.stack([trace.steps[:, 1] - trace.steps[:, 0] for trace in traces], axis=1) * 1e-9
        for subgraph in self.plan.subgraphs:
            if self.plan.queues[subgraph.queue].backend.own_memory:
                steps = slice(subgraph.first, subgraph.first + subgraph.count)
                seconds[steps] = self._loaded.untraced(seconds[steps])
        return seconds

    def close(self) -> None:
        """Frees memory, kernels and threads; the session cannot run afterwards.

        Resources of a run that missed its deadline are freed when it ends.
        """
        self._loaded.close()

    def _inputs_or_zeros(self, feeds: Feeds | None) -> Outputs:
        return self._arguments.arrays(self.zeros() if feeds is None or is_empty(feeds) else feeds)

    def _timeline(self, trace: RunTrace) -> Timeline:
        # The trace's waits are those of the host thread, also for a device's sub-graphs.
        times = [(int(begin), int(end)) for begin, end in trace.steps - trace.begin]
        waits = [bool(subgraph.waits) for subgraph in self.plan.subgraphs]
        return plan_timeline(self.plan, times, waits, trace.end - trace.begin)
