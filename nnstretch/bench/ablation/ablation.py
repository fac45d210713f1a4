"""The equal-MACs comparison: separates the gain of branching from the gain of a smaller network.

NN-Stretch compares a branched network with the original. The **equal-MACs control** is the original scaled in width to the
branched network's multiply-accumulates and not branched. The alternatives to the branched network are both of these on every
processor alone, on all CPU cores, and on the branches' processors with layers placed and split by the scheduler, and ONNX
Runtime. Where branching does not pay, a network without branches takes the place of the branched one, and runs where the
search predicts it to be fastest. The bound is the perfect (ideal) split 1 / Σ (1 / tᵢ), where tᵢ is the control's latency on
the i-th processor alone: the latency if the work were divided without loss.

All latencies are interleaved (`nnstretch.bench.timing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from nnstretch.bench.ablation.breakdown import BranchTime, Breakdown, break_down, causes
from nnstretch.bench.ablation.result import (
    ALONE,
    BOUND,
    BRANCHED,
    CONCURRENT,
    SERIAL,
    Ablation,
    AblationRow,
    how_placed,
    with_predictions,
)
from nnstretch.bench.comparison.client import onnxruntime_process
from nnstretch.bench.comparison.subject import count_parameters, random_feeds, reference_outputs
from nnstretch.bench.timing import (
    DEFAULT_OPTIONS,
    MIN_ROUNDS,
    Interval,
    Latency,
    MeasurementOptions,
    Timed,
    interleave,
    interval,
    latency,
    perfect_split,
    resampled,
    timed,
)
from nnstretch.devices.base.spec import default_cores, parse_processors, pool_name
from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.errors import UsageError
from nnstretch.graph.reference import largest_error
from nnstretch.passes import optimize
from nnstretch.scheduler.measurement.runner.runner import SharedRunner
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.measures import TOP1, Measure
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress, silent
from nnstretch.support.settings import core_speeds
from nnstretch.support.worker_process import WorkerError

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design

ALL_CORES = "all CPU cores"
"""`how` of a row that ran on one processor made of all cores."""

_PER_PROCESSOR = ("original_ms", "control_ms")
"""Figures that several rows have, one per processor; all others have one row."""

_RUNS = 3
_FEWEST_TRACED, _MOST_TRACED = 6, 100  # runs in a turn
_TRACED_TURNS = 4


@dataclass(frozen=True)
class _Candidate:
    """One timed way to run a network; becomes a row of the table.

    Attributes:
        network, how, processors: of the row.
        run: times it.
        figures: fields of `Ablation` that its latency belongs to.
    """

    network: str
    how: str
    processors: str
    run: Timed
    figures: tuple[str, ...]


@dataclass
class _Bench:
    """Models, inputs and open sessions of one comparison.

    Attributes:
        branched_on: processors of the branched network.
        failure: why ONNX Runtime could not run.
    """

    models: Mapping[str, ir.Model]
    feeds: Mapping[str, np.ndarray]
    options: MeasurementOptions
    progress: Progress
    stack: ExitStack
    runner: SharedRunner
    branched_on: str
    sessions: dict[tuple[str, str], PlanSession] = field(default_factory=dict)
    failure: str = ""
    _fused: dict[str, ir.Model] = field(default_factory=dict)  # by network; what is fused already takes no time again

    def session(self, network: str, processors: str) -> PlanSession:
        """The session of a network on processors, compiled on first use."""
        key = (network, processors)
        if key not in self.sessions:
            self.progress(len(self.sessions), 0, f"compiling the {network} for {processors}")
            if network not in self._fused:
                self._fused[network] = optimize(self.models[network])
            made = self.options.session(self._fused[network], processors, self.progress, self.runner)
            self.sessions[key] = self.stack.enter_context(made)
        return self.sessions[key]

    def feeds_of(self, session: PlanSession) -> dict[str, np.ndarray]:
        """The inputs by the names of this session's network."""
        return dict(zip([i.name for i in session.get_inputs()], self.feeds.values(), strict=True))

    def candidate(self, session: PlanSession, network: str, how: str, processors: str, *figures: str) -> _Candidate:
        """A session of our engine as a candidate."""
        return _Candidate(network, how, processors, timed(session, self.feeds_of(session)), figures)

    def native(self, network: str, how: str, processors: str, *figures: str) -> _Candidate:
        """A network on processors."""
        return self.candidate(self.session(network, processors), network, how, processors, *figures)

    def split(self, network: str, processors: str, figure: str) -> _Candidate:
        """A network without branches, with layers placed and split by the scheduler."""
        session = self.session(network, processors)
        return self.candidate(session, network, how_placed(session.compiled.placement), processors, figure)

    def branched(self) -> PlanSession:
        """The session of the branched network."""
        return self.session(BRANCHED, self.branched_on)

    def serial(self) -> PlanSession:
        """The session of the branched network's plan without overlap: its steps run one after another."""
        from nnstretch.scheduler.plan.compiled import serial

        key = (BRANCHED, f"{self.branched_on} serial")
        if key not in self.sessions:
            self.sessions[key] = self.stack.enter_context(PlanSession(serial(self.branched().compiled)))
        return self.sessions[key]


def ablate(
    original: ir.Model,
    control: ir.Model,
    branched: ir.Model,
    processors: str,
    *,
    scores: Mapping[str, float] | None = None,
    measure: Measure = TOP1,
    design: Design | None = None,
    unbranched_on: str | None = None,
    options: MeasurementOptions = DEFAULT_OPTIONS,
    progress: Progress | None = None,
    keep: Callable[[PlanSession], None] | None = None,
) -> Ablation:
    """Measures original, control and branched network on the same processors and with the same inputs.

    Args:
        original: a graph that is not fused.
        control: the original scaled in width to the branched network's multiply-accumulates.
        branched: the branched network; all three take the same inputs.
        processors: one branch ran on each, in this order, as in `cpu:0,opencl:0@1`.
        scores: the measure of "original", "control", "branched" in percent, where known.
        measure: of the scores.
        design: the branched network's design; its predictions are compared with the measurements.
        unbranched_on: the processors on which `branched` runs if it has no branches (`place_without_branches`); None: it has.
        options: how to measure.
        progress: reports progress.
        keep: called after the measurement with the session of the branched network, which is closed afterwards.

    Raises:
        UsageError: fewer than two processors.
        NNStretchError: a processor does not work.
    """
    names = tuple(str(spec) for spec in parse_processors(processors))
    if len(names) < 2:
        raise UsageError(
            f"the equal-MACs comparison compares one processor with several; {processors!r} names {len(names)}"
        )
    models = {"original": original, "control": control, BRANCHED: branched}
    with ExitStack() as stack:
        feeds = random_feeds(models["original"], options.seed)
        runner = options.shared_runner(stack)
        bench = _Bench(models, feeds, options, progress or silent, stack, runner, unbranched_on or ",".join(names))
        candidates = _candidates(bench, names, has_branches=unbranched_on is None)
        bench.runner.end()
        watch = CoreWatch()
        times = interleave([one.run for one in candidates], bench.options.timing, bench.progress)
        found = _ablation(bench, names, candidates, times, scores or {}, design, watch.others())
        if keep is not None:
            keep(bench.branched())
        return replace(found, measure=measure)


def _candidates(bench: _Bench, names: tuple[str, ...], *, has_branches: bool) -> list[_Candidate]:
    branched = _branched(bench) if has_branches else _unbranched(bench, names)
    return [*_alternatives(bench, "original", names), *branched, *_alternatives(bench, "control", names)]


def _branched(bench: _Bench) -> list[_Candidate]:
    """The branched network with its branches at the same time, and one after another."""
    return [bench.native(BRANCHED, CONCURRENT, bench.branched_on, "branched_ms"), _serial(bench)]


def _unbranched(bench: _Bench, names: tuple[str, ...]) -> list[_Candidate]:
    """The network without branches where it is predicted to be fastest; on one processor nothing runs at the same time."""
    place = bench.branched_on
    if len(parse_processors(place)) > 1:
        return [bench.split(BRANCHED, place, "branched_ms"), _serial(bench)]
    how = ALL_CORES if place == _all_cores() and place not in names else ALONE
    return [bench.native(BRANCHED, how, place, "branched_ms", "branched_serial_ms")]


def _serial(bench: _Bench) -> _Candidate:
    return bench.candidate(bench.serial(), BRANCHED, SERIAL, bench.branched_on, "branched_serial_ms")


def _alternatives(bench: _Bench, network: str, names: tuple[str, ...]) -> list[_Candidate]:
    """A network without branches on each processor, on all CPU cores, split, and by ONNX Runtime.

    If one of the processors has all CPU cores, its row is also that of all cores.
    """
    cores, figure = _all_cores(), f"{network}_all_cores_ms"
    candidates = [
        bench.native(network, ALONE, name, f"{network}_ms", *([figure] if name == cores else [])) for name in names
    ]
    if cores not in names:
        candidates.append(bench.native(network, ALL_CORES, cores, figure))
    split = bench.split(network, ",".join(names), f"{network}_split_ms")
    return [*candidates, split, *_onnxruntime(bench, network)]


def _all_cores() -> str:
    return pool_name(default_cores())


def _onnxruntime(bench: _Bench, network: str) -> list[_Candidate]:
    """ONNX Runtime in a process pinned to all CPU cores.

    Empty if it cannot run, or if our engine alone makes cores slow, with the reason in `bench.failure`.
    """
    if core_speeds():
        bench.failure = "not compared: NNSTRETCH_CORE_SPEEDS does not slow its threads"
        return []
    model, cores = bench.models[network], default_cores()
    try:
        process = onnxruntime_process(bench.stack, model, cores, bench.feeds, bench.progress)
    except WorkerError as failure:
        bench.failure = str(failure)
        return []
    figures = ("onnxruntime_ms",) if network == "original" else ("control_onnxruntime_ms",)
    return [_Candidate(network, "ONNX Runtime", _all_cores(), lambda budget: process.time(budget, _RUNS), figures)]


def _largest_error(bench: _Bench) -> float:
    """The largest relative error of all sessions against ONNX Runtime."""
    expected = {network: reference_outputs(model, bench.feeds) for network, model in bench.models.items()}
    errors: list[float] = []
    for (network, _), session in bench.sessions.items():
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(None, bench.feeds_of(session)), strict=True))
        errors.append(largest_error(found, expected[network]))
    return max(errors)


def _ablation(
    bench: _Bench,
    names: tuple[str, ...],
    candidates: Sequence[_Candidate],
    times: Sequence[Sequence[np.ndarray]],
    scores: Mapping[str, float],
    design: Design | None,
    others: OtherPrograms | None,
) -> Ablation:
    samples = resampled(times)
    rows = _rows(bench, names, candidates, times, samples, scores)
    original_ms, control_ms = (_by_processor(candidates, rows, figure) for figure in _PER_PROCESSOR)
    one = {figure: row.p50_ms for c, row in zip(candidates, rows, strict=False) for figure in c.figures}
    timelines, breakdown, branches = _traced(bench, one["branched_ms"], one["branched_serial_ms"])
    return Ablation(
        processors=names,
        rows=rows,
        original_ms=original_ms,
        original_all_cores_ms=one["original_all_cores_ms"],
        original_split_ms=one["original_split_ms"],
        onnxruntime_ms=one.get("onnxruntime_ms"),
        onnxruntime_error=bench.failure,
        branched_ms=one["branched_ms"],
        branched_serial_ms=one["branched_serial_ms"],
        control_ms=control_ms,
        control_all_cores_ms=one["control_all_cores_ms"],
        control_split_ms=one["control_split_ms"],
        control_onnxruntime_ms=one.get("control_onnxruntime_ms"),
        max_rel_error=_largest_error(bench),
        idle=tuple(dict.fromkeys(name for session in bench.sessions.values() for name in session.plan.idle_processors)),
        timeline=timelines[0],
        serial_timeline=timelines[1],
        other_programs=others,
        intervals=_intervals(candidates, samples) if _have_intervals(times) else {},
        predicted_ms=design.predicted_ms if design else None,
        branches=with_predictions(branches, design),
        causes=causes(breakdown, perfect_split(list(control_ms.values())), one["branched_ms"]),
    )


def _rows(
    bench: _Bench,
    names: tuple[str, ...],
    candidates: Sequence[_Candidate],
    times: Sequence[Sequence[np.ndarray]],
    samples: np.ndarray,
    scores: Mapping[str, float],
) -> tuple[AblationRow, ...]:
    """A row per candidate, and the row of the perfect split."""
    macs = {network: _macs(bench, network) for network in bench.models}
    parameters = {network: count_parameters(model) for network, model in bench.models.items()}

    def row(one: _Candidate, found: Latency | None, drawn: np.ndarray, bound: float | None = None) -> AblationRow:
        network, limits = one.network, interval(drawn) if _have_intervals(times) else None
        about = (macs[network], parameters[network], scores.get(network))
        return AblationRow(network, one.how, one.processors, *about, found, bound, limits)

    rows = [row(c, latency(t), drawn) for c, t, drawn in zip(candidates, times, samples, strict=True)]
    controls = _of(candidates, "control_ms")
    bound = perfect_split([rows[i].p50_ms for i in controls])
    everywhere = _Candidate("control", BOUND, ",".join(names), lambda _: np.empty(0), ())
    return (*rows, row(everywhere, None, 1 / (1 / samples[controls]).sum(axis=0), bound))


def _have_intervals(times: Sequence[Sequence[np.ndarray]]) -> bool:
    """Whether the candidates had rounds enough."""
    return min(map(len, times)) >= MIN_ROUNDS


def _of(candidates: Sequence[_Candidate], figure: str) -> list[int]:
    """Indices of the candidates whose latency belongs to a figure."""
    return [i for i, candidate in enumerate(candidates) if figure in candidate.figures]


def _by_processor(candidates: Sequence[_Candidate], rows: Sequence[AblationRow], figure: str) -> dict[str, float]:
    return {rows[i].processors: rows[i].p50_ms for i in _of(candidates, figure)}


def _intervals(candidates: Sequence[_Candidate], samples: np.ndarray) -> dict[str, Interval]:
    """Confidence intervals of the figures, all from the same resampled rounds."""

    def of(figure: str) -> np.ndarray:
        return samples[_of(candidates, figure)]

    control, branched = of("control_ms"), of("branched_ms")[0]
    alternatives = samples[[i for i, c in enumerate(candidates) if c.network != BRANCHED]]
    split = 1 / (1 / control).sum(axis=0)
    derived = {
        **{
            figure: samples[i] for i, c in enumerate(candidates) for figure in c.figures if figure not in _PER_PROCESSOR
        },
        "perfect_split_ms": split,
        "speedup_best_alternative": alternatives.min(axis=0) / branched,
        "speedup": of("original_ms").min(axis=0) / branched,
        "speedup_equal_macs": control.min(axis=0) / branched,
        "split_share": split / branched,
    }
    return {name: interval(drawn) for name, drawn in derived.items()}


def _traced(
    bench: _Bench, together_ms: float, serial_ms: float
) -> tuple[tuple[Timeline, Timeline], Breakdown, list[BranchTime]]:
    """Timelines of the concurrent and the serial run, traced in turns, and the breakdown of the concurrent run's time."""
    together, serial = bench.branched(), bench.serial()
    traces: tuple[list[RunTrace], list[RunTrace]] = ([], [])
    count = min(max(int(1e3 * bench.options.timing.turn / together_ms), _FEWEST_TRACED), _MOST_TRACED)
    for number in range(_TRACED_TURNS):
        bench.progress(number, _TRACED_TURNS, "tracing the branched network")
        for session, found in zip((together, serial), traces, strict=True):
            found += session.traces(bench.feeds_of(session), count)
    timelines = (together.timeline(traces[0]), serial.timeline(traces[1]))
    return timelines, *break_down(together.plan, *traces, together_ms, serial_ms)


def _macs(bench: _Bench, network: str) -> int:
    return next(session.plan.macs for (name, _), session in bench.sessions.items() if name == network)
