"""Engines side by side: the same model and inputs, the same cores, short turns one after another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnstretch.bench.client import EngineError, EngineProcess
from nnstretch.bench.engines import ENGINES, EngineEntry, Job, Report
from nnstretch.bench.statistics import Latency, latency, significant
from nnstretch.bench.subject import Subject
from nnstretch.errors import UsageError

OURS = "nnstretch"
REFERENCE = "onnxruntime"
_PAUSE = 0.02  # seconds between turns, in which the last engine's threads stop to spin


@dataclass(frozen=True)
class Settings:
    """How a comparison is measured.

    Attributes:
        cores: every engine's process is pinned to these.
        rounds: each engine has one turn in each.
        turn: seconds of a turn.
        runs: at least so many runs in a turn.
        tune: whether our plan is tuned.
        layers: whether the time of each of our layers is wanted.
    """

    cores: tuple[int, ...]
    rounds: int = 10
    turn: float = 0.25
    runs: int = 3
    tune: bool = True
    layers: bool = False


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        model, threads: of what.
        latencies: engine -> its latency, for those that ran.
        errors: engine -> why it did not.
        facts: engine -> what it told of itself.
        max_rel_error: our largest error against ONNX Runtime relative to the output's range; None if one did not run.
    """

    model: str
    threads: int
    latencies: Mapping[str, Latency]
    errors: Mapping[str, str]
    facts: Mapping[str, Mapping[str, Any]]
    max_rel_error: float | None = None
    dtype: str = field(default="float32")

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of one run, as our plan counts them."""
        macs = self.facts.get(OURS, {}).get("macs")
        return None if macs is None else int(macs)

    @property
    def best_peer(self) -> str | None:
        """The fastest engine but ours."""
        peers = {name: times.p50_ms for name, times in self.latencies.items() if name != OURS}
        return min(peers, key=peers.__getitem__) if peers else None

    @property
    def speedup(self) -> float | None:
        """The fastest peer's median latency over ours; above 1 we are faster."""
        peer = self.best_peer
        return self.latencies[peer].p50_ms / self.latencies[OURS].p50_ms if peer and OURS in self.latencies else None

    @property
    def peak_share(self) -> float | None:
        """Our rate of multiply-adds over what the cores reach at best (above 1 only by algorithms with fewer of them)."""
        peak = self.facts.get(OURS, {}).get("peak_gflops_per_core")
        if not peak or self.macs is None or OURS not in self.latencies:
            return None
        return 2 * self.macs / (self.latencies[OURS].p50_ms * 1e6) / (float(peak) * self.threads)

    def to_json(self) -> dict[str, Any]:
        """One entry of the "results" of `bench --json`."""
        facts = self.facts.get(OURS, {})
        engines: dict[str, Any] = {name: times.to_json() for name, times in self.latencies.items()}
        for name, about in self.facts.items():
            engines[name] |= {key: about[key] for key in ("version", "variant") if key in about}
        engines |= {name: {"error": reason} for name, reason in self.errors.items()}
        result = {
            "model": self.model,
            "threads": self.threads,
            "dtype": self.dtype,
            "macs": self.macs,
            "engines": engines,
            "best_peer": self.best_peer,
            "speedup": _rounded(self.speedup),
            "peak_share": _rounded(self.peak_share),
            "max_rel_error": _rounded(self.max_rel_error),
            "fallback_layers": list(facts.get("fallback_layers", ())),
        }
        return result | ({"layers": facts["layers"]} if "layers" in facts else {})


def parse_engines(text: str) -> tuple[EngineEntry, ...]:
    """Engines as `--against` takes them, separated by commas; ours is always among them, and first.

    Raises:
        UsageError: an unknown engine.
    """
    known = {name: entry for entry in ENGINES for name in (entry.key, entry.name)}
    keys = [part.strip() for part in text.split(",") if part.strip()]
    for key in keys:
        if key not in known:
            peers = ", ".join(e.key for e in ENGINES if e.name != OURS)
            raise UsageError(f"unknown engine {key!r} in --against; there are {peers}")
    return tuple(dict.fromkeys(known[key] for key in (OURS, *keys)))


def compare(subject: Subject, engines: Sequence[EngineEntry], settings: Settings, report: Report) -> Comparison:
    """Loads the model into every engine, then gives them turns; an engine that fails is told of, not raised."""
    job = Job(subject.model, subject.onnx, settings.cores, {"tune": settings.tune, "layers": settings.layers})
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        processes: dict[str, EngineProcess] = {}
        for entry in engines:
            report(0, settings.rounds, f"loading {entry.name}")
            try:
                processes[entry.name] = stack.enter_context(EngineProcess(entry, job, subject.feeds, report))
            except EngineError as failure:
                errors[entry.name] = str(failure)
        error = _error_of_ours(processes, job, subject, report)
        slices = _take_turns(processes, settings, errors, report)
        return Comparison(
            model=subject.model,
            threads=len(settings.cores),
            latencies={name: latency(times) for name, times in slices.items() if name not in errors},
            errors=errors,
            facts={name: process.facts for name, process in processes.items() if name not in errors},
            max_rel_error=error,
        )


def _take_turns(
    processes: Mapping[str, EngineProcess], settings: Settings, errors: dict[str, str], report: Report
) -> dict[str, list[np.ndarray]]:
    """Seconds of all runs, per engine and round. The order shifts from round to round; a failure goes to `errors`."""
    slices: dict[str, list[np.ndarray]] = {name: [] for name in processes}
    names = list(processes)
    for number in range(settings.rounds):
        report(number, settings.rounds, f"round {number + 1} of {settings.rounds}")
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            if name in errors:
                continue
            time.sleep(_PAUSE)
            try:
                slices[name].append(processes[name].time(settings.turn, settings.runs))
            except EngineError as failure:
                errors[name] = str(failure)
    report(settings.rounds, settings.rounds, "done")
    return slices


def _error_of_ours(processes: Mapping[str, EngineProcess], job: Job, subject: Subject, report: Report) -> float | None:
    """Our error against ONNX Runtime, which is started for it if it does not take part."""
    if OURS not in processes or not job.onnx:
        return None
    ours = processes[OURS].outputs()
    if REFERENCE in processes:
        return largest_error(ours, processes[REFERENCE].outputs())
    entry = next(e for e in ENGINES if e.name == REFERENCE)
    try:
        with EngineProcess(entry, job, subject.feeds, report) as reference:
            return largest_error(ours, reference.outputs())
    except EngineError:
        return None


def largest_error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest error of all outputs, each relative to its range; outputs are matched in order."""
    from nnstretch.graph.reference import relative_error

    pairs = zip(found.values(), expected.values(), strict=True)
    return max((relative_error(ours, theirs) for ours, theirs in pairs), default=0.0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value)
