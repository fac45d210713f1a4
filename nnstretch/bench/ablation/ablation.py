"""The equal-MACs comparison: separates the gain of branching from the gain of a smaller network.

NN-Stretch compares a branched network with the original. The **equal-MACs control** is the original scaled in width to the
branched network's multiply-accumulates and not branched. The bound is the perfect (ideal) split 1 / Σ (1 / tᵢ), where tᵢ is
the control's latency on the i-th processor alone: the latency if the work were divided without loss.

All latencies are interleaved (`nnstretch.bench.timing.interleaving`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from nnstretch.bench.ablation.breakdown import BranchTime, Breakdown, break_down, causes
from nnstretch.bench.ablation.result import Ablation, AblationRow, MeasuredBranch
from nnstretch.bench.comparison.client import EngineProcess
from nnstretch.bench.comparison.parameters import count_parameters
from nnstretch.bench.comparison.reference import reference_outputs
from nnstretch.bench.comparison.subject import random_feeds
from nnstretch.bench.engines import ENGINES, Job
from nnstretch.bench.timing.interleaving import DEFAULT_OPTIONS, MeasurementOptions, Timed, interleave, timed
from nnstretch.bench.timing.statistics import Interval, Latency, interval, latency, perfect_split, resampled
from nnstretch.devices.engine.binding.program import RunTrace
from nnstretch.errors import UsageError
from nnstretch.graph.reference import largest_error
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.progress import Progress, silent
from nnstretch.support.worker_process import WorkerError

if TYPE_CHECKING:
    from nnstretch.branching.design.design import Design

ALONE = "alone"
"""`how` of a row that ran on one processor."""

_RUNS = 3
_FEWEST_TRACED, _MOST_TRACED = 6, 100  # runs in a turn
_TRACED_TURNS = 4


@dataclass(frozen=True)
class _Candidate:
    """One timed way to run a network; becomes a row of the table."""

    network: str
    how: str
    processors: str
    run: Timed


@dataclass
class _Bench:
    """Models, inputs and open sessions of one comparison."""

    models: Mapping[str, ir.Model]
    feeds: Mapping[str, np.ndarray]
    options: MeasurementOptions
    progress: Progress
    stack: ExitStack
    sessions: dict[tuple[str, str], PlanSession] = field(default_factory=dict)
    failure: str = ""

    def session(self, network: str, processors: str) -> PlanSession:
        """The session of a network on processors, compiled on first use."""
        from nnstretch.compiler.compile import compile_model
        from nnstretch.compiler.processors import build_processors

        key = (network, processors)
        if key not in self.sessions:
            model = self.models[network].clone()
            self.progress(len(self.sessions), 0, f"compiling the {network} for {processors}")
            made = compile_model(
                model,
                build_processors(processors, tolerance=self.options.tolerance),
                tune=self.options.tune,
                progress=self.progress,
            )
            self.sessions[key] = self.stack.enter_context(made)
        return self.sessions[key]

    def feeds_of(self, session: PlanSession) -> dict[str, np.ndarray]:
        """The inputs by the names of this session's network."""
        return dict(zip([i.name for i in session.get_inputs()], self.feeds.values(), strict=True))

    def native(self, network: str, how: str, processors: str) -> _Candidate:
        """Our engine on processors."""
        return self.timed(network, how, processors, self.session(network, processors))

    def timed(self, network: str, how: str, processors: str, session: PlanSession) -> _Candidate:
        """A session as a candidate."""
        return _Candidate(network, how, processors, timed(session, self.feeds_of(session)))

    def serial(self, network: str, processors: str) -> PlanSession:
        """The session of the same plan without overlap: its steps run one after another."""
        from nnstretch.scheduler.plan.serial import serial

        key = (network, f"{processors} serial")
        if key not in self.sessions:
            made = PlanSession.from_compiled(serial(self.session(network, processors).compiled))
            self.sessions[key] = self.stack.enter_context(made)
        return self.sessions[key]


def ablate(
    original: ir.Model | str | Path,
    control: ir.Model | str | Path,
    branched: ir.Model | str | Path,
    processors: str,
    *,
    top1: Mapping[str, float] | None = None,
    design: Design | None = None,
    options: MeasurementOptions = DEFAULT_OPTIONS,
    progress: Progress | None = None,
) -> Ablation:
    """Measures original, control and branched network on the same processors and with the same inputs.

    Args:
        original: a graph that is not fused, or an ONNX file.
        control: the original scaled in width to the branched network's multiply-accumulates.
        branched: the branched network; all three take the same inputs.
        processors: one branch ran on each, in this order, as in `cpu:0,opencl:0@1`.
        top1: top-1 accuracy in percent of "original", "control", "branched", where known.
        design: the branched network's design; its predictions are compared with the measurements.
        options: how to measure.
        progress: reports progress.

    Raises:
        UsageError: fewer than two processors.
        NNStretchError: a model cannot be read, or a processor does not work.
    """
    from nnstretch.devices.base.spec import parse_processors

    names = tuple(str(spec) for spec in parse_processors(processors))
    if len(names) < 2:
        raise UsageError(
            f"the equal-MACs comparison compares one processor with several; {processors!r} names {len(names)}"
        )
    models = {"original": _graph(original), "control": _graph(control), "branched": _graph(branched)}
    with ExitStack() as stack:
        feeds = random_feeds(models["original"], options.seed)
        bench = _Bench(models, feeds, options, progress or silent, stack)
        candidates = _candidates(bench, names)
        times = interleave([one.run for one in candidates], bench.options.timing, bench.progress)
        return _ablation(bench, names, candidates, times, top1 or {}, design)


def _candidates(bench: _Bench, names: tuple[str, ...]) -> list[_Candidate]:
    from nnstretch.devices.base.spec import default_cores, format_cores

    everything = ",".join(names)
    cores = f"cpu:{format_cores(default_cores())}"
    candidates = [bench.native("original", ALONE, name) for name in names]
    candidates.append(bench.native("original", "all CPU cores", cores))
    candidates += _onnxruntime(bench, default_cores(), cores)
    candidates.append(bench.native("branched", "concurrent", everything))
    candidates.append(bench.timed("branched", "one after another", everything, bench.serial("branched", everything)))
    candidates += [bench.native("control", ALONE, name) for name in names]
    return candidates


def _onnxruntime(bench: _Bench, cores: tuple[int, ...], processors: str) -> list[_Candidate]:
    """ONNX Runtime in a process pinned to the same cores; empty if it cannot run, with the reason in `bench.failure`."""
    from nnstretch.frontends.onnx_file import save

    entry = next(e for e in ENGINES if e.name == "onnxruntime")
    folder = Path(bench.stack.enter_context(TemporaryDirectory(prefix="nnstretch-ablation-")))
    save(bench.models["original"], folder / "original.onnx")
    job = Job("original", str(folder / "original.onnx"), cores)
    try:
        process = bench.stack.enter_context(EngineProcess(entry, job, bench.feeds, bench.progress))
    except WorkerError as failure:
        bench.failure = str(failure)
        return []
    return [_Candidate("original", "ONNX Runtime", processors, lambda budget: process.time(budget, _RUNS))]


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
    top1: Mapping[str, float],
    design: Design | None,
) -> Ablation:
    samples = resampled(times)
    rows = _rows(bench, names, candidates, times, samples, top1)
    alone = {(r.network, r.processors): r.latency.p50_ms for r in rows if r.latency and r.how == ALONE}
    by_how = {r.how: r.latency.p50_ms for r in rows if r.latency}
    control_ms = {name: alone["control", name] for name in names}
    timelines, breakdown, branches = _traced(bench, ",".join(names), by_how["concurrent"], by_how["one after another"])
    return Ablation(
        processors=names,
        rows=rows,
        original_ms={name: alone["original", name] for name in names},
        original_all_cores_ms=by_how["all CPU cores"],
        onnxruntime_ms=by_how.get("ONNX Runtime"),
        onnxruntime_error=bench.failure,
        branched_ms=by_how["concurrent"],
        branched_serial_ms=by_how["one after another"],
        control_ms=control_ms,
        max_rel_error=_largest_error(bench),
        timeline=timelines[0],
        serial_timeline=timelines[1],
        intervals=_intervals(candidates, samples),
        predicted_ms=design.predicted_ms if design else None,
        branches=_measured_branches(branches, design),
        causes=causes(breakdown, perfect_split(list(control_ms.values())), by_how["concurrent"]),
    )


def _rows(
    bench: _Bench,
    names: tuple[str, ...],
    candidates: Sequence[_Candidate],
    times: Sequence[Sequence[np.ndarray]],
    samples: np.ndarray,
    top1: Mapping[str, float],
) -> tuple[AblationRow, ...]:
    """A row per candidate, and the row of the perfect split."""
    macs = {network: _macs(bench, network) for network in bench.models}
    parameters = {network: count_parameters(model) for network, model in bench.models.items()}

    def row(one: _Candidate, found: Latency | None, drawn: np.ndarray, bound: float | None = None) -> AblationRow:
        network, limits = one.network, interval(drawn)
        about = (macs[network], parameters[network], top1.get(network))
        return AblationRow(network, one.how, one.processors, *about, found, bound, limits)

    rows = [row(c, latency(t), drawn) for c, t, drawn in zip(candidates, times, samples, strict=True)]
    controls = [i for i, c in enumerate(candidates) if c.network == "control"]
    bound = perfect_split([r.latency.p50_ms for i in controls if (r := rows[i]).latency])
    everywhere = _Candidate("control", "perfect split, a bound", ",".join(names), lambda _: np.empty(0))
    return (*rows, row(everywhere, None, 1 / (1 / samples[controls]).sum(axis=0), bound))


def _intervals(candidates: Sequence[_Candidate], samples: np.ndarray) -> dict[str, Interval]:
    """Confidence intervals of the derived figures, all from the same resampled rounds."""

    def of(network: str, how: str) -> np.ndarray:
        return samples[[i for i, c in enumerate(candidates) if (c.network, c.how) == (network, how)]]

    control, branched = of("control", ALONE), of("branched", "concurrent")[0]
    split = 1 / (1 / control).sum(axis=0)
    derived = {
        "branched_ms": branched,
        "branched_serial_ms": of("branched", "one after another")[0],
        "original_all_cores_ms": of("original", "all CPU cores")[0],
        "perfect_split_ms": split,
        "speedup": of("original", ALONE).min(axis=0) / branched,
        "speedup_equal_macs": control.min(axis=0) / branched,
        "split_share": split / branched,
    }
    return {name: interval(drawn) for name, drawn in derived.items()}


def _measured_branches(branches: Sequence[BranchTime], design: Design | None) -> tuple[MeasuredBranch, ...]:
    """Measured branches with the predictions of the design."""
    predicted: dict[tuple[int, int], float | None] = {}
    for number, segment in enumerate(design.segments if design else ()):
        predicted.update({(number, i): branch.predicted_ms for i, branch in enumerate(segment.branches)})
    return tuple(MeasuredBranch(time, predicted.get((time.segment, time.branch))) for time in branches)


def _traced(
    bench: _Bench, everything: str, together_ms: float, serial_ms: float
) -> tuple[tuple[Timeline, Timeline], Breakdown, list[BranchTime]]:
    """Timelines of the concurrent and the serial run, traced in turns, and the breakdown of the concurrent run's time."""
    together, serial = bench.session("branched", everything), bench.serial("branched", everything)
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


def _graph(model: ir.Model | str | Path) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    from nnstretch.frontends.resolve import load_model

    return load_model(str(model))
