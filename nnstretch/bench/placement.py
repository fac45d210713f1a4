"""Latency of an automatically placed network on all processors and on each alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.bench.timing import (
    Latency,
    MeasurementOptions,
    disturbance,
    interleave,
    latency,
    significant,
    timed,
    widest,
)
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import largest_error
from nnstretch.scheduler.plan.compiled import serial
from nnstretch.scheduler.runtime.critical_path import critical_path_seconds
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress

_TRACED = 25  # runs for the critical path


@dataclass(frozen=True)
class Together:
    """Latencies of a network on processors.

    Attributes:
        model: as the user wrote it.
        together: on all processors.
        serial: the same plan with nothing overlapping.
        alone: on one processor, by its name.
        critical_path_ms: longest path through data dependencies and processor order, with step times of a traced run;
            median run.
        over_critical_path: duration of a traced run / its critical path: the cost of joins and starts; median run.
        predicted_ms: predicted latency of the plan.
        bound_ms: predicted lower bound of all placements of whole layers; None where a design places them.
        pays: whether the layers are placed on several processors; otherwise all run on the fastest.
        max_rel_error: against ONNX Runtime, relative to the output's range.
        idle: processors on which nothing was computed, although they were the only one.
        other_programs: what they used meanwhile; None if that is not known.
    """

    model: str
    together: Latency
    serial: Latency
    alone: Mapping[str, Latency]
    critical_path_ms: float
    over_critical_path: float
    predicted_ms: float
    bound_ms: float | None
    pays: bool
    max_rel_error: float
    idle: tuple[str, ...] = ()
    other_programs: OtherPrograms | None = None

    @property
    def speedup(self) -> float:
        """Latency on the fastest single processor / latency on all."""
        return min(times.p50_ms for times in self.alone.values()) / self.together.p50_ms

    @property
    def widest_interval(self) -> float | None:
        """The largest half width of the latencies' intervals, as a share of their middles."""
        return widest(times.interval_ms for times in (self.together, self.serial, *self.alone.values()))

    def to_json(self) -> dict[str, Any]:
        """The object that `bench --processors --json` prints."""
        return {
            "model": self.model,
            "placed": self.pays,
            "together": self.together.to_json(),
            "serial": self.serial.to_json(),
            "alone": {name: times.to_json() for name, times in self.alone.items()},
            "speedup": significant(self.speedup),
            "critical_path_ms": significant(self.critical_path_ms),
            "over_critical_path": significant(self.over_critical_path),
            "predicted_ms": significant(self.predicted_ms),
            "bound_ms": None if self.bound_ms is None else significant(self.bound_ms),
            "max_rel_error": significant(self.max_rel_error, 3),
            **disturbance(self.widest_interval, self.other_programs),
        }


def measure_together(
    model: str, graph: ir.Model, processors: Sequence[str], options: MeasurementOptions, progress: Progress
) -> Together:
    """Times a network on all processors and on each, interleaved.

    Args:
        model: its name.
        graph: of the network. Where a design places its layers, they run on each processor alone as well.
        processors: two or more.
        options: how to measure.
        progress: reports progress.

    Raises:
        NNStretchError: a processor is not there, or cannot run the network.
    """
    feeds = random_feeds(graph, options.seed)
    with ExitStack() as stack:
        runner = options.shared_runner(stack)
        all_of_them = stack.enter_context(options.session(graph, ",".join(processors), progress, runner))
        one_by_one = stack.enter_context(PlanSession(serial(all_of_them.compiled)))
        unplaced = without_placements(graph)
        alone = {name: stack.enter_context(options.session(unplaced, name, progress, runner)) for name in processors}
        candidates = [timed(one, feeds) for one in (all_of_them, one_by_one, *alone.values())]
        watch = CoreWatch()
        times = [latency(slices) for slices in interleave(candidates, options.timing, progress)]
        others = watch.others()
        outputs = dict(zip([o.name for o in all_of_them.get_outputs()], all_of_them.run(None, feeds), strict=True))
        report = all_of_them.compiled.placement
        predicted = all_of_them.plan.predicted_ms or 0.0
        path_ms, over_path = _critical_path(all_of_them, feeds)
        return Together(
            model=model,
            together=times[0],
            serial=times[1],
            alone=dict(zip(alone, times[2:], strict=True)),
            critical_path_ms=path_ms,
            over_critical_path=over_path,
            predicted_ms=predicted if report is None else report.seconds * 1e3,
            bound_ms=None if report is None else report.bound * 1e3,
            pays=report is None or report.pays,
            max_rel_error=largest_error(outputs, reference_outputs(graph, feeds)),
            idle=tuple(name for one in alone.values() for name in one.plan.idle_processors),
            other_programs=others,
        )


def without_placements(graph: ir.Model) -> ir.Model:
    """The network with layers that may run on any processor."""
    made = graph.clone()
    for node in made.graph.all_nodes():
        node.metadata_props.pop(PLACEMENT_KEY, None)
    return made


def _critical_path(session: PlanSession, feeds: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Milliseconds of the critical path, and duration of the run / critical path: medians of traced runs."""
    traces = session.traces(feeds, runs=_TRACED)
    seconds = [((trace.steps[:, 1] - trace.steps[:, 0]) * 1e-9).tolist() for trace in traces]
    paths = np.array([critical_path_seconds(session.plan, found) for found in seconds])
    totals = np.array([trace.end - trace.begin for trace in traces]) * 1e-9
    return float(np.median(paths)) * 1e3, float(np.median(totals / paths))
