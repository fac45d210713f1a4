"""Measured runs of designs, for measurement-guided refinement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from torch import Tensor

from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import MeasuredDesign
from nnstretch.branching.transform.network import BranchedNetwork, export_branched
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.errors import ModelError
from nnstretch.graph.metadata import branch_of
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
from nnstretch.scheduler.measurement.local_site import LocalSite
from nnstretch.scheduler.measurement.runner.runner import SharedRunner
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.simulation.costs import SimulatedPredictor

_RUNS = 25  # smallest number of runs
_SPAN = 0.5  # smallest total time, seconds; most disturbances are shorter
_KEPT = 2  # graphs

_Answer = TypeVar("_Answer")
_Run = tuple[float, list[float], list[list[float]]]
"""Normalised seconds of a run, each processor's pace, and normalised seconds of every segment's branches."""


@dataclass(frozen=True)
class DesignRunner:
    """Compiles and runs branched networks.

    Attributes:
        processors: each runs one branch.
        example_input: input of the networks.
        costs: costs by which layers are predicted, and by which untuned networks are planned.
        pace: current frequency of a processor over its reference frequency.
        runner: measures single layers where networks are tuned.
    """

    processors: Processors
    example_input: Tensor
    costs: CostModel
    pace: Callable[[Processor], float]
    runner: SharedRunner | None = None
    _exported: dict[str, ir.Model] = field(default_factory=dict, init=False)  # by design, of the last ones

    def __call__(self, network: BranchedNetwork, *, tuned: bool) -> MeasuredDesign:
        """Medians over several runs, normalised to the reference frequency."""
        model = self._export(network)
        named, host = self.processors.named, self.processors.host
        compiled = self.tuned(model) if tuned else make_plan(optimize(model), named, host, self.costs)
        with PlanSession(compiled) as session:
            runs = self._runs(session, network.design)
        whole, relative_speeds, branches = zip(*runs, strict=True)
        per_branch = [_medians(some) for some in zip(*branches, strict=True)]
        return MeasuredDesign(float(np.median(whole)), tuple(per_branch), _medians(relative_speeds))

    def tuned(self, model: ir.Model, processors: Processors | None = None) -> Compiled:
        """The plan of a network with the fastest settings of the routines' short lists.

        `tune` and `compile` also search parameters beyond these lists. That takes longer than all other measurements, and
        accelerates networks with and without branches alike, by one or two percent.

        Args:
            model: an unoptimised graph.
            processors: those to run on; those of the designs by default.
        """
        return plan_model(
            model,
            processors or self.processors,
            runner=self.runner,
            coordinate_descent=False,
            quick=True,
            copies=self.costs,
        )

    def _runs(self, session: PlanSession, design: Design) -> list[_Run]:
        return _enough(lambda: self._run(session, design))

    def _run(self, session: PlanSession, design: Design) -> _Run:
        timeline, relative_speeds, seconds = self.timed(session)
        busy = _branch_times(timeline)
        branches = [
            [busy.get((number, i), 0.0) * relative_speeds[branch.processor] for i, branch in enumerate(some)]
            for number, some in enumerate(design.branches)
        ]
        return seconds, relative_speeds, branches

    def timed(self, session: PlanSession) -> tuple[Timeline, list[float], float]:
        """One run: its timeline, each processor's pace, and its normalised seconds."""
        relative_speeds = [self.pace(processor) for processor in self.processors.named]
        timeline = session.profile(runs=1)
        return timeline, relative_speeds, timeline.total * 1e-9 * float(np.mean(relative_speeds))

    def _export(self, network: BranchedNetwork) -> ir.Model:
        """The network's graph, cached because a network often runs a second time, tuned."""
        design = network.design.id
        known = self._exported
        known[design] = known.pop(design) if design in known else export_branched(network, self.example_input)
        while len(self._exported) > _KEPT:
            del self._exported[next(iter(self._exported))]
        return self._exported[design]


@dataclass(frozen=True)
class UnbranchedRunner:
    """Compiles and runs a network without branches, as its designs run.

    Attributes:
        designs: runs the designs.
        export: the network's graph, which is not optimised.
    """

    designs: DesignRunner
    export: Callable[[], ir.Model]

    def __call__(self, processor: int | None, pool: str) -> float:
        """Median seconds of several runs; arguments and answer are those of `PlanRunner`."""
        try:
            model = self.export()
        except ModelError:
            return math.inf
        usable = self.designs.processors
        if pool or processor is not None:
            name = pool if processor is None else usable.named[processor].name
            usable = build_processors(replace(usable.options, processors=name, threads=None))
        with PlanSession(self.designs.tuned(model, usable)) as session:
            return float(np.median(_enough(lambda: self.designs.timed(session)[2])))


def design_runner(
    processors: Processors, example_input: Tensor, predictor: ProfilePredictor | SimulatedPredictor
) -> DesignRunner | None:
    """A runner of designs on the predictor's processors; None for simulated ones and those of other machines."""
    if isinstance(predictor, ProfilePredictor) and processors.site is None:
        site = predictor.profiler.site
        runner = site.runner if isinstance(site, LocalSite) else None
        shared = runner if isinstance(runner, SharedRunner) else None
        return DesignRunner(processors, example_input, predictor.costs, predictor.pace, shared)
    return None


def _enough(run: Callable[[], _Answer]) -> list[_Answer]:
    """The answers of enough runs for stable medians."""
    answers: list[_Answer] = []
    end = time.monotonic() + _SPAN
    while len(answers) < _RUNS or time.monotonic() < end:
        answers.append(run())
    return answers


def _medians(runs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Median over the runs of each value."""
    return tuple(map(float, np.median(runs, axis=0)))


def _branch_times(timeline: Timeline) -> dict[tuple[int, int], float]:
    """(segment, branch) -> seconds that the branch occupied its queue in a run.

    Includes the time between consecutive steps, as between kernels of a device, but not waits.
    """
    times: dict[tuple[int, int], float] = {}
    last: dict[int, tuple[tuple[int, int] | None, int]] = {}  # queue -> branch and end of its last event
    for event in timeline.events:
        branch = branch_of(event.name) if event.kind == "step" else None
        before, end = last.get(event.queue, (None, 0))
        if branch is not None:
            begin = end if before == branch else event.begin
            times[branch] = times.get(branch, 0.0) + (event.end - begin) * 1e-9
        last[event.queue] = (branch, event.end)
    return times
