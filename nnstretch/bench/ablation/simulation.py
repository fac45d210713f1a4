"""The equal-MACs comparison on processors of a profile: the plans of `nnstretch.bench.ablation.ablation` in simulated time.

Original, equal-MACs control and branched network are planned for every processor alone and for all together by the scheduler
that plans for processors which are here, and the plans run in simulated time. A profile has no group of all CPU cores, and
nothing is computed, so there are no rows for all cores and for ONNX Runtime, and no errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.bench.ablation.breakdown import break_down, causes
from nnstretch.bench.ablation.result import (
    ALONE,
    BOUND,
    BRANCHED,
    CONCURRENT,
    SERIAL,
    Ablation,
    AblationRow,
    SimulatedSource,
    how_placed,
    with_predictions,
)
from nnstretch.bench.comparison.subject import count_parameters
from nnstretch.bench.timing import perfect_split
from nnstretch.compiler.compile import plan_model, simulated_run
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.errors import UsageError
from nnstretch.passes import optimize
from nnstretch.scheduler.plan.compiled import Compiled, serial
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.simulation.costs import check_computable, one_soc
from nnstretch.support.measures import TOP1, Measure
from nnstretch.support.progress import Progress, silent

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design

_ORIGINAL, _CONTROL = "original", "control"


def simulated_source(processors: str) -> SimulatedSource | None:
    """The profile of simulated processors; None if all processors are real.

    Args:
        processors: as `--processors` takes them.

    Raises:
        UsageError: some are simulated and some real, they are of different profiles, or not understood.
        DeviceError: the profile does not exist, is damaged, or has no such processor.
        FileError: the profile's file cannot be read.
    """
    specs = parse_processors(processors)
    if all(spec.kind != "sim" for spec in specs):
        return None
    soc = one_soc(build_processors(processors).named)
    assert soc is not None
    return SimulatedSource(specs[0].profile, soc.identity, soc.description)


@dataclass(frozen=True)
class _Run:
    """A plan in simulated time, and its row of the table."""

    row: AblationRow
    compiled: Compiled
    timeline: Timeline

    @property
    def ms(self) -> float:
        """Milliseconds of the run."""
        return self.row.p50_ms

    @property
    def trace(self) -> RunTrace:
        """The run as a traced run has it, without the times of waits."""
        plan = self.compiled.plan
        steps = {
            queue: iter([(e.begin, e.end) for e in self.timeline.events if e.queue == queue and e.kind == "step"])
            for queue in range(len(plan.queues))
        }
        times = np.array([next(steps[subgraph.queue]) for subgraph in plan.subgraphs for _ in range(subgraph.count)])
        return RunTrace(times, np.zeros((len(plan.subgraphs), 2), np.int64), 0, self.timeline.total)


@dataclass
class _Bench:
    """The networks of a comparison, and what was simulated of them.

    Attributes:
        models: graphs that are not fused, by network.
        scores: of the networks in percent, by name, where known.
        options: how networks are compiled; the processors are named by each run.
        progress: reports progress.
        runs: in the order of the table.
    """

    models: Mapping[str, ir.Model]
    scores: Mapping[str, float]
    options: CompileOptions
    progress: Progress
    runs: list[_Run] = field(default_factory=list)
    _fused: dict[str, ir.Model] = field(default_factory=dict)  # by network; what is fused already takes no time again

    def check(self, names: Sequence[str]) -> None:
        """Looks whether every processor can compute the original by itself.

        Raises:
            DeviceError: one has no rate for a layer.
        """
        for name in names:
            check_computable(self._graph(_ORIGINAL), build_processors(name).named)

    def run(self, network: str, how: str | None, processors: str) -> _Run:
        """A network on processors; `how` is None where the scheduler places its layers."""
        self.progress(len(self.runs), 0, f"simulating the {network} network on {processors}")
        opened = build_processors(replace(self.options, processors=processors))
        compiled = plan_model(self._graph(network), opened)
        return self._added(network, how or how_placed(compiled.placement), processors, compiled)

    def serial(self, run: _Run) -> _Run:
        """The same plan without overlap: its steps run one after another."""
        return self._added(run.row.network, SERIAL, run.row.processors, serial(run.compiled))

    def _added(self, network: str, how: str, processors: str, compiled: Compiled) -> _Run:
        timeline = simulated_run(compiled, build_processors(replace(self.options, processors=processors)))
        parameters = count_parameters(self.models[network])
        about = (compiled.plan.macs, parameters, self.scores.get(network))
        row = AblationRow(network, how, processors, *about, latency=None, computed_ms=timeline.total * 1e-6)
        self.runs.append(_Run(row, compiled, timeline))
        return self.runs[-1]

    def _graph(self, network: str) -> ir.Model:
        if network not in self._fused:
            self._fused[network] = optimize(self.models[network])
        return self._fused[network]


def simulate_ablation(
    original: ir.Model,
    control: ir.Model,
    branched: ir.Model,
    processors: str,
    *,
    scores: Mapping[str, float] | None = None,
    measure: Measure = TOP1,
    design: Design | None = None,
    unbranched_on: str | None = None,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> Ablation:
    """Simulates original, control and branched network on processors of one profile.

    Args:
        original: a graph that is not fused.
        control: the original scaled in width to the branched network's multiply-accumulates.
        branched: the branched network.
        processors: one branch runs on each, in this order, as in `sim:phone/cpu,sim:phone/gpu`.
        scores: the measure of "original", "control", "branched" in percent, where known.
        measure: of the scores.
        design: the branched network's design; its predictions are compared with the simulated times.
        unbranched_on: the processors on which `branched` runs if it has no branches (`place_without_branches`); None: it has.
        options: how networks are compiled.
        progress: reports progress.

    Raises:
        UsageError: the processors are not simulated, not of one profile, or fewer than two.
        DeviceError: the profile does not exist, has no such processor, or has no rate for a layer on one of them.
    """
    source, names = simulated_source(processors), tuple(str(spec) for spec in parse_processors(processors))
    if source is None or len(names) < 2:
        raise UsageError(f"{processors} are not two or more simulated processors; name them as in {_EXAMPLE}")
    models = {_ORIGINAL: original, _CONTROL: control, BRANCHED: branched}
    bench = _Bench(models, scores or {}, options or CompileOptions(), progress or silent)
    bench.check(names)
    originals, original_split = _alternatives(bench, _ORIGINAL, names)
    concurrent, one_by_one = _branched(bench, ",".join(names), unbranched_on)
    controls, control_split = _alternatives(bench, _CONTROL, names)
    bound = perfect_split([run.ms for run in controls])
    of_bound = replace(controls[0].row, how=BOUND, processors=",".join(names), score=None, computed_ms=bound)
    breakdown, branches = break_down(
        concurrent.compiled.plan, [concurrent.trace], [one_by_one.trace], concurrent.ms, one_by_one.ms
    )
    found = causes(breakdown, bound, concurrent.ms)
    return Ablation(
        processors=names,
        rows=(*(run.row for run in bench.runs), of_bound),
        original_ms={run.row.processors: run.ms for run in originals},
        original_all_cores_ms=None,
        original_split_ms=original_split.ms,
        onnxruntime_ms=None,
        onnxruntime_error="",
        branched_ms=concurrent.ms,
        branched_serial_ms=one_by_one.ms,
        control_ms={run.row.processors: run.ms for run in controls},
        control_all_cores_ms=None,
        control_split_ms=control_split.ms,
        control_onnxruntime_ms=None,
        max_rel_error=None,
        timeline=concurrent.timeline,
        serial_timeline=one_by_one.timeline,
        predicted_ms=design.predicted_ms if design else None,
        branches=with_predictions(branches, design),
        causes={cause: round(ms, _DIGITS) + 0.0 for cause, ms in found.items() if cause not in _OF_MEASUREMENTS},
        idle=tuple(dict.fromkeys(name for run in bench.runs for name in run.compiled.plan.idle_processors)),
        simulated=source,
        measure=measure,
    )


_EXAMPLE = "sim:phone/cpu,sim:phone/gpu"
_OF_MEASUREMENTS = ("tracing",)
"""Causes that simulated runs do not have."""
_DIGITS = 5
"""Of milliseconds by cause: simulated runs round begins and ends of steps to nanoseconds."""


def _alternatives(bench: _Bench, network: str, names: Sequence[str]) -> tuple[list[_Run], _Run]:
    """A network without branches on each processor alone, and on all with layers placed and split by the scheduler."""
    return [bench.run(network, ALONE, name) for name in names], bench.run(network, None, ",".join(names))


def _branched(bench: _Bench, processors: str, unbranched_on: str | None) -> tuple[_Run, _Run]:
    """The branched network, or the one without branches in its place, with overlap and without.

    On one processor, both are the same run.
    """
    if unbranched_on is None:
        run = bench.run(BRANCHED, CONCURRENT, processors)
        return run, bench.serial(run)
    is_alone = len(parse_processors(unbranched_on)) == 1
    run = bench.run(BRANCHED, ALONE if is_alone else None, unbranched_on)
    return run, run if is_alone else bench.serial(run)
