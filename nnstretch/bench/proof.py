"""The proof of a branching: a network is faster because it is branched, and not only because it is smaller.

NN-Stretch compares a branched network with the original. Here the **control** stands beside it: the original scaled in width
to the branched network's multiply-accumulates, not branched. The bound is the perfect split: if the control's work could be
divided among the processors without any loss, one run would take 1 / Σ (1 / tᵢ), where tᵢ is the control's latency on the
i-th processor alone.

All latencies are taken in turns of a fraction of a second, one candidate after another, for several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.bench.client import EngineError, EngineProcess
from nnstretch.bench.comparison import largest_error
from nnstretch.bench.counting import count_parameters
from nnstretch.bench.engines import ENGINES, Job
from nnstretch.bench.reference import reference_outputs
from nnstretch.bench.statistics import Latency, latency, significant
from nnstretch.bench.subject import random_feeds
from nnstretch.errors import UsageError
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.timeline import Timeline

Progress = Callable[[int, int, str], None]

ALONE = "alone"
"""How a row ran that had one processor to itself."""

_PAUSE = 0.02
_RUNS = 3
_WARMUP = 2
_TRACED_RUNS = 25


@dataclass(frozen=True)
class ProofRow:
    """One line of the table.

    Attributes:
        network: "original", "branched" or "control".
        how: where and how it ran, for people.
        processors: as written, commas between.
        macs, parameters: exact.
        top1: of the network in percent, if it is known.
        latency: None in the row of the bound.
        bound_ms: the perfect split, in that row only.
    """

    network: str
    how: str
    processors: str
    macs: int
    parameters: int
    top1: float | None
    latency: Latency | None
    bound_ms: float | None = None


@dataclass(frozen=True)
class Proof:
    """The rows and what follows from them. Latencies are medians in milliseconds; speedups are ratios of them.

    Attributes:
        processors: one branch ran on each.
        rows: in the order in which they are shown.
        original_ms, control_ms: latency of original and control, per processor alone.
        original_all_cores_ms: the original on all cores of the CPU.
        onnxruntime_ms: ONNX Runtime on the same cores; None if it could not run, for the reason in onnxruntime_error.
        branched_ms, branched_serial_ms: branches at the same time, and one after another.
        max_rel_error: of all our outputs against ONNX Runtime's, relative to the output's range.
        timeline, serial_timeline: traced runs of the branched network.
    """

    processors: tuple[str, ...]
    rows: tuple[ProofRow, ...]
    original_ms: Mapping[str, float]
    original_all_cores_ms: float
    onnxruntime_ms: float | None
    onnxruntime_error: str
    branched_ms: float
    branched_serial_ms: float
    control_ms: Mapping[str, float]
    max_rel_error: float
    timeline: Timeline
    serial_timeline: Timeline

    @property
    def perfect_split_ms(self) -> float:
        """1 / Σ (1 / tᵢ) over the processors' control latencies."""
        return perfect_split(list(self.control_ms.values()))

    @property
    def speedup(self) -> float:
        """The original on the fastest single processor against the branched network."""
        return min(self.original_ms.values()) / self.branched_ms

    @property
    def speedup_equal_macs(self) -> float:
        """The control on the fastest single processor against the branched network."""
        return min(self.control_ms.values()) / self.branched_ms

    @property
    def split_share(self) -> float:
        """How much of the perfect split is reached."""
        return self.perfect_split_ms / self.branched_ms

    def to_json(self) -> dict[str, Any]:
        """What `bench --design FILE --json` prints."""
        one = significant
        return {
            "original_ms": {name: one(ms) for name, ms in self.original_ms.items()},
            "original_all_cores_ms": one(self.original_all_cores_ms),
            "onnxruntime_ms": None if self.onnxruntime_ms is None else one(self.onnxruntime_ms),
            "branched_ms": one(self.branched_ms),
            "branched_serial_ms": one(self.branched_serial_ms),
            "control_ms": {name: one(ms) for name, ms in self.control_ms.items()},
            "perfect_split_ms": one(self.perfect_split_ms),
            "speedup": one(self.speedup),
            "speedup_equal_macs": one(self.speedup_equal_macs),
            "split_share": one(self.split_share),
            "max_rel_error": one(self.max_rel_error),
            "rows": [_row_json(row) for row in self.rows],
        }


@dataclass(frozen=True)
class Settings:
    """How a proof is measured: rounds, seconds of a turn (above 0), whether plans are tuned, seed of the inputs."""

    rounds: int = 10
    turn: float = 0.15
    tune: bool = True
    seed: int = 0


@dataclass(frozen=True)
class _Candidate:
    """Something that is timed: a row of the table to come."""

    network: str
    how: str
    processors: str
    run: Callable[[float], np.ndarray]  # seconds of all runs within a budget


@dataclass
class _Bench:
    """Everything that is opened for a proof."""

    models: Mapping[str, ir.Model]
    feeds: Mapping[str, np.ndarray]
    settings: Settings
    progress: Progress
    stack: ExitStack
    sessions: dict[tuple[str, str], Session] = field(default_factory=dict)
    failure: str = ""

    def session(self, network: str, processors: str) -> Session:
        """A session for a network on processors; made once."""
        from nnstretch.compiler import build_processors, compile_model

        key = (network, processors)
        if key not in self.sessions:
            model = self.models[network].clone()
            self.progress(len(self.sessions), 0, f"compiling the {network} for {processors}")
            made = compile_model(model, build_processors(processors), tune=self.settings.tune, progress=self.progress)
            self.sessions[key] = self.stack.enter_context(made)
        return self.sessions[key]

    def feeds_of(self, session: Session) -> dict[str, np.ndarray]:
        """The inputs under the names that this network has for them."""
        return dict(zip([i.name for i in session.get_inputs()], self.feeds.values(), strict=True))

    def native(self, network: str, how: str, processors: str) -> _Candidate:
        """Our engine on processors."""
        return self.timed(network, how, processors, self.session(network, processors))

    def timed(self, network: str, how: str, processors: str, session: Session) -> _Candidate:
        """A session as a candidate."""
        feeds = self.feeds_of(session)

        def run(budget: float) -> np.ndarray:
            return session.time(feeds, warmup=_WARMUP, runs=100_000, budget=budget)

        return _Candidate(network, how, processors, run)

    def serial(self, network: str, processors: str) -> Session:
        """The serial twin of a session."""
        from nnstretch.scheduler.serial import serial

        key = (network, f"{processors} serial")
        if key not in self.sessions:
            twin = Session.from_compiled(serial(self.session(network, processors).compiled))
            self.sessions[key] = self.stack.enter_context(twin)
        return self.sessions[key]


def prove(
    original: ir.Model | str | Path,
    control: ir.Model | str | Path,
    branched: ir.Model | str | Path,
    processors: str,
    *,
    top1: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Proof:
    """Measures original, control and branched network on the same processors and with the same inputs.

    Args:
        original: a graph that is not fused, or an ONNX file.
        control: the original scaled in width to the branched network's multiply-accumulates.
        branched: the branched network; all three take the same inputs.
        processors: one branch ran on each, in this order, as in `cpu:0,opencl:0@1`.
        top1: of the networks that it is known of, in percent: "original", "control", "branched".
        settings: how long is measured.
        progress: told (done, total, what); the total is 0 where it is not known.

    Raises:
        UsageError: fewer than two processors.
        NNStretchError: a model cannot be read, or a processor does not work.
    """
    from nnstretch.devices.spec import parse_processors

    names = tuple(str(spec) for spec in parse_processors(processors))
    if len(names) < 2:
        raise UsageError(f"a proof compares one processor with several; {processors!r} names {len(names)}")
    models = {"original": _graph(original), "control": _graph(control), "branched": _graph(branched)}
    settings = settings or Settings()
    with ExitStack() as stack:
        feeds = random_feeds(models["original"], settings.seed)
        bench = _Bench(models, feeds, settings, progress or _silent, stack)
        candidates = _candidates(bench, names)
        times = _take_turns(bench, candidates)
        latencies = [latency(slices) for slices in times]
        return _proof(bench, names, candidates, latencies, top1 or {})


def perfect_split(latencies: Sequence[float]) -> float:
    """1 / Σ (1 / tᵢ): what work takes on several processors together that takes tᵢ on each of them alone."""
    return 1.0 / sum(1.0 / t for t in latencies)


def _candidates(bench: _Bench, names: tuple[str, ...]) -> list[_Candidate]:
    from nnstretch.devices.spec import default_cores, format_cores

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
    """ONNX Runtime in a process of its own, pinned to the same cores; nothing, and the reason kept, if it cannot run."""
    from nnstretch.frontends.onnx_file import save

    entry = next(e for e in ENGINES if e.name == "onnxruntime")
    folder = Path(bench.stack.enter_context(TemporaryDirectory(prefix="nnstretch-proof-")))
    save(bench.models["original"], folder / "original.onnx")
    job = Job("original", str(folder / "original.onnx"), cores)
    try:
        process = bench.stack.enter_context(EngineProcess(entry, job, bench.feeds, bench.progress))
    except EngineError as failure:
        bench.failure = str(failure)
        return []
    return [_Candidate("original", "ONNX Runtime", processors, lambda budget: process.time(budget, _RUNS))]


def _take_turns(bench: _Bench, candidates: Sequence[_Candidate]) -> list[list[np.ndarray]]:
    """Seconds of all runs, per candidate and round; the order shifts from round to round."""
    slices: list[list[np.ndarray]] = [[] for _ in candidates]
    rounds = bench.settings.rounds
    for number in range(rounds):
        bench.progress(number, rounds, f"measuring, round {number + 1} of {rounds}")
        for i in range(len(candidates)):
            turn = (i + number) % len(candidates)
            time.sleep(_PAUSE)
            slices[turn].append(candidates[turn].run(bench.settings.turn))
    bench.progress(rounds, rounds, "measured")
    return slices


def _largest_error(bench: _Bench) -> float:
    """Over all sessions: outputs against those of ONNX Runtime for the same network."""
    expected = {network: reference_outputs(model, bench.feeds) for network, model in bench.models.items()}
    errors: list[float] = []
    for (network, _), session in bench.sessions.items():
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(None, bench.feeds_of(session)), strict=True))
        errors.append(largest_error(found, expected[network]))
    return max(errors)


def _proof(
    bench: _Bench,
    names: tuple[str, ...],
    candidates: Sequence[_Candidate],
    latencies: Sequence[Latency],
    top1: Mapping[str, float],
) -> Proof:
    everything = ",".join(names)
    macs = {network: _macs(bench, network) for network in bench.models}
    parameters = {network: count_parameters(model) for network, model in bench.models.items()}

    def row(candidate: _Candidate, times: Latency | None, bound: float | None = None) -> ProofRow:
        network = candidate.network
        return ProofRow(
            network,
            candidate.how,
            candidate.processors,
            macs[network],
            parameters[network],
            top1.get(network),
            times,
            bound,
        )

    rows = [row(c, t) for c, t in zip(candidates, latencies, strict=True)]
    alone = {(r.network, r.processors): r.latency.p50_ms for r in rows if r.latency and r.how == ALONE}
    by_how = {r.how: r.latency.p50_ms for r in rows if r.latency}
    control_ms = {name: alone["control", name] for name in names}
    bound = _Candidate("control", "perfect split, a bound", everything, lambda _: np.empty(0))
    return Proof(
        processors=names,
        rows=(*rows, row(bound, None, perfect_split(list(control_ms.values())))),
        original_ms={name: alone["original", name] for name in names},
        original_all_cores_ms=by_how["all CPU cores"],
        onnxruntime_ms=by_how.get("ONNX Runtime"),
        onnxruntime_error=bench.failure,
        branched_ms=by_how["concurrent"],
        branched_serial_ms=by_how["one after another"],
        control_ms=control_ms,
        max_rel_error=_largest_error(bench),
        timeline=_traced(bench, bench.session("branched", everything)),
        serial_timeline=_traced(bench, bench.serial("branched", everything)),
    )


def _traced(bench: _Bench, session: Session) -> Timeline:
    return session.profile(bench.feeds_of(session), runs=_TRACED_RUNS)


def _macs(bench: _Bench, network: str) -> int:
    return next(session.plan.macs for (name, _), session in bench.sessions.items() if name == network)


def _graph(model: ir.Model | str | Path) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    from nnstretch.frontends.resolve import load_model

    return load_model(str(model))


def _row_json(row: ProofRow) -> dict[str, Any]:
    times = {"p50_ms": significant(row.bound_ms)} if row.bound_ms is not None else {}
    return {
        "network": row.network,
        "how": row.how,
        "processors": row.processors,
        "macs": row.macs,
        "parameters": row.parameters,
        "top1": row.top1,
        **(row.latency.to_json() if row.latency else times),
    }


def _silent(done: int, total: int, what: str) -> None:
    """Progress that nobody looks at."""
