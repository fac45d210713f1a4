"""Compares engines on the same model, inputs and cores, interleaved."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.api.options import CompileOptions
from nnstretch.bench.comparison.client import EngineProcess, Workspace
from nnstretch.bench.comparison.subject import Subject
from nnstretch.bench.engines import ENGINES, EngineEntry, Job, Start, engine_entry
from nnstretch.bench.timing import (
    Latency,
    TimingOptions,
    interleave,
    latency,
    paired_ratio,
    recording_failure,
    significant,
)
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.targets.workers import LocalTarget, Target
from nnstretch.errors import MissingExtraError, UsageError
from nnstretch.graph.reference import largest_error
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import WorkerError

OURS = "nnstretch"
REFERENCE = "onnxruntime"
_WRONG = {"float32": 0.01, "float16": 0.15, "bfloat16": 0.15, "int8": 0.15}
"""Largest error against ONNX Runtime, relative to the output's range, of a valid engine. Layers round, and in deep networks
the order of computation shows."""


@dataclass(frozen=True)
class ComparisonOptions:
    """The measurement of a comparison.

    Attributes:
        cores: every engine's process is pinned to these.
        timing: rounds, turns and budget.
        runs: the least number of runs per turn.
        starts: fresh processes in which the time to the first result is measured.
        layers: whether the time of each of our layers is measured.
        compiling: how our engine compiles the model, on the process's cores.
        target: the machine that the engines run on.
    """

    cores: tuple[int, ...]
    timing: TimingOptions = field(default_factory=lambda: TimingOptions(turn=0.25, budget=10.0))
    runs: int = 3
    starts: int = 1
    layers: bool = False
    compiling: CompileOptions = field(default_factory=CompileOptions)
    target: Target = field(default_factory=LocalTarget)


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        model, threads: the compared model and number of threads.
        latencies: engine -> latency, if it ran.
        ratios: other engine -> its latency over ours (`paired_ratio`), if both ran.
        errors: engine -> reason of its failure.
        facts: engine -> version, data type and other facts that it reports.
        rel_errors: engine -> largest error against ONNX Runtime, relative to the output's range.
        starts: engine -> cost of its start.
        peak_gflops: FMA peak of one core, the larger of before and after the rounds.
        other_programs: what they used during the rounds; None if that is not known.
    """

    model: str
    threads: int
    latencies: Mapping[str, Latency]
    ratios: Mapping[str, float]
    errors: Mapping[str, str]
    facts: Mapping[str, Mapping[str, Any]]
    rel_errors: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, Start] = field(default_factory=dict)
    peak_gflops: float | None = None
    other_programs: OtherPrograms | None = None

    @property
    def dtype(self) -> str:
        """int8 if a layer of our plan computes in int8, else float32."""
        return str(self.facts.get(OURS, {}).get("dtype", "float32"))

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of convolutions and dense layers in one run, from our plan."""
        macs = self.facts.get(OURS, {}).get("macs")
        return None if macs is None else int(macs)

    @property
    def max_rel_error(self) -> float | None:
        """Our largest error against ONNX Runtime; None if one of the two did not run."""
        return self.rel_errors.get(OURS)

    @property
    def best_peer(self) -> str | None:
        """The fastest engine other than ours."""
        ratios = self.ratios or {name: times.p50_ms for name, times in self.latencies.items() if name != OURS}
        return min(ratios, key=ratios.__getitem__, default=None)

    @property
    def speedup(self) -> float | None:
        """Latency of the fastest other engine / ours."""
        return min(self.ratios.values(), default=None)

    @property
    def peak_share(self) -> float | None:
        """Our rate of multiply-adds / the cores' peak in our data type; above 1 only with algorithms that need fewer of them.

        Those of products of matrices that are computed at run time count as well.
        """
        if not self.peak_gflops or self.macs is None or OURS not in self.latencies:
            return None
        work = self.macs + int(self.facts[OURS].get("product_macs", 0))
        return 2 * work / (self.latencies[OURS].p50_ms * 1e6) / (self.peak_gflops * self.peak_ratio * self.threads)

    @property
    def peak_ratio(self) -> float:
        """The peak of the type that we compute in over that of float32, which is measured (`devices.engine.peaks`)."""
        return float(self.facts.get(OURS, {}).get("peak_ratio", 1.0))

    @property
    def _layers(self) -> list[dict[str, Any]]:
        """The layers of our plan, if they were measured, each with its share of the peak of its data type."""
        peak = (self.peak_gflops or math.inf) * self.threads
        layers = self.facts.get(OURS, {}).get("layers", ())
        return [{**one, "peak_share": one["gflops"] / (peak * one["peak_ratio"])} for one in layers]

    def _engine_json(self, name: str) -> dict[str, Any]:
        about, start = self.facts.get(name, {}), self.starts.get(name)
        answer: dict[str, Any] = dict(self.latencies[name].to_json())
        answer |= {key: about[key] for key in ("version", "variant", "dtype", "plan_bytes") if key in about}
        if name in self.rel_errors:
            answer["max_rel_error"] = significant(self.rel_errors[name], 3)
        if start is not None:
            answer |= {key: significant(value, 4) for key, value in vars(start).items()}
        return answer

    def to_json(self) -> dict[str, Any]:
        """One entry of the "results" of `bench --json`."""
        facts = self.facts.get(OURS, {})
        engines = {name: self._engine_json(name) for name in self.latencies}
        engines |= {name: {"error": reason} for name, reason in self.errors.items()}
        result = {
            "model": self.model,
            "threads": self.threads,
            "dtype": self.dtype,
            "macs": self.macs,
            "engines": engines,
            "best_peer": self.best_peer,
            "speedup": _rounded(self.speedup),
            "peak_gflops_per_core": _rounded(self.peak_gflops),
            "peak_ratio": self.peak_ratio,
            "peak_share": _rounded(self.peak_share),
            "max_rel_error": _rounded(self.max_rel_error),
            "fallback_layers": list(facts.get("fallback_layers", ())),
            "other_programs": None if self.other_programs is None else self.other_programs.to_json(),
        }
        return result | ({"layers": self._layers} if "layers" in facts else {})


def parse_engines(text: str) -> tuple[EngineEntry, ...]:
    """Engines as `--against` takes them, separated by commas; ours is always among them, and first.

    Raises:
        UsageError: an unknown engine, or an empty name beside others.
        MissingExtraError: an engine's packages are not installed.
    """
    known = {name: entry for entry in ENGINES for name in (entry.key, entry.name)}
    keys = [part.strip() for part in text.split(",")] if text.strip() else []
    baselines = ", ".join(e.key for e in ENGINES if e.name != OURS)
    for key in keys:
        if not key:
            raise UsageError(
                f"--against {text!r} has an empty name; write some of {baselines} with single commas between"
            )
        if key not in known:
            raise UsageError(f"unknown engine {key!r} in --against; there are {baselines}")
        missing = [package for package in known[key].packages if find_spec(package) is None]
        if missing:
            raise MissingExtraError(
                f"{key} needs the package {missing[0]}, which is not installed; "
                f"install it with pip install 'nnstretch[{known[key].extra}]', or leave {key} out of --against"
            )
    return tuple(dict.fromkeys(known[key] for key in (OURS, *keys)))


_OF_EACH_PROCESS = ("processors", "shapes", "batch", "target", "progress")
"""Options with values of its own in our engine's process: it runs on the target, has its cores, and a file of static shapes."""


def compiling_of_process(options: CompileOptions) -> dict[str, Any]:
    """The options by name that our engine's process gets, JSON-serialisable."""
    sent = {name: value for name, value in vars(options).items() if name not in _OF_EACH_PROCESS}
    return {name: str(value) if isinstance(value, Path) else value for name, value in sent.items()}


def compare(
    subject: Subject, engines: Sequence[EngineEntry], options: ComparisonOptions, workspace: Workspace, report: Progress
) -> Comparison:
    """Loads the model into every engine and times them interleaved; the failure of an engine becomes a result.

    Args:
        subject: the model.
        engines: in the order of the first round.
        options: how to measure.
        workspace: holds the converted files of this model, shared by several comparisons.
        report: reports progress.
    """
    ours = {"compile": compiling_of_process(options.compiling), "layers": options.layers}
    job = Job(subject.model, subject.onnx, options.cores, ours)
    errors: dict[str, str] = {}
    report(0, options.timing.rounds, "preparing the native engine")
    engine()  # built here, where that is announced, and not in the process that is timed
    with ExitStack() as stack:
        processes: dict[str, EngineProcess] = {}
        starts: dict[str, list[Start]] = {}
        for entry in engines:
            report(0, options.timing.rounds, f"loading {entry.name}")
            try:
                own = replace(job, file=workspace.file_for(entry, job, report))
                starts[entry.name] = _further_starts(entry, own, subject, options, report)
                processes[entry.name] = stack.enter_context(
                    EngineProcess(entry, own, subject.feeds, report, options.target.start)
                )
            except WorkerError as failure:
                errors[entry.name] = str(failure)
            else:
                starts[entry.name].append(processes[entry.name].start)
        found_errors = _errors_of_all(processes, job, subject, report)
        _exclude_wrong(found_errors, errors, _WRONG[_precision(processes)])
        peaks = [engine().peak_gflops(options.cores[0])]
        candidates = [
            recording_failure(partial(process.time, runs=options.runs), name, errors)
            for name, process in processes.items()
        ]
        watch = CoreWatch()
        slices = dict(zip(processes, interleave(candidates, options.timing, report), strict=True))
        others = watch.others()
        peaks.append(engine().peak_gflops(options.cores[0]))
        compared = {e.name for e in engines if e.from_file}
        ran = {name: times for name, times in slices.items() if name not in errors}
        return Comparison(
            model=subject.model,
            threads=len(options.cores),
            latencies={name: latency(times) for name, times in ran.items()},
            ratios={
                name: paired_ratio(times, ran[OURS]) for name, times in ran.items() if OURS in ran and name != OURS
            },
            errors=errors,
            facts={name: process.facts for name, process in processes.items() if name not in errors},
            rel_errors={name: error for name, error in found_errors.items() if name not in errors},
            starts={n: _typical(found) for n, found in starts.items() if found and n in compared - errors.keys()},
            peak_gflops=max(peaks),
            other_programs=others,
        )


def _further_starts(
    entry: EngineEntry, job: Job, subject: Subject, options: ComparisonOptions, report: Progress
) -> list[Start]:
    """Additional starts, beside that of the timed process."""
    found: list[Start] = []
    for number in range(options.starts - 1):
        report(number, options.starts, f"starting {entry.name}")
        with EngineProcess(entry, job, subject.feeds, report, options.target.start) as process:
            found.append(process.start)
    return found


def _typical(starts: Sequence[Start]) -> Start:
    """The median of every figure."""
    return Start(*(float(np.median([getattr(s, name) for s in starts])) for name in vars(starts[0])))


def _errors_of_all(
    processes: Mapping[str, EngineProcess], job: Job, subject: Subject, report: Progress
) -> dict[str, float]:
    """Error of every engine against ONNX Runtime, which is started for this if it is not compared."""
    if not job.onnx:
        return {}
    try:
        if REFERENCE in processes:
            expected = processes[REFERENCE].outputs()
        else:
            entry = engine_entry(REFERENCE)
            with EngineProcess(entry, job, subject.feeds, report) as reference:
                expected = reference.outputs()
    except WorkerError:
        return {}
    found: dict[str, float] = {}
    for name, process in processes.items():
        if name != REFERENCE:
            with contextlib.suppress(WorkerError):  # its reason is recorded when it is timed
                found[name] = largest_error(process.outputs(), expected)
    return found


def _precision(processes: Mapping[str, EngineProcess]) -> str:
    """The least precise type that an engine reports, else float32."""
    found = {process.facts.get("dtype") for process in processes.values()}
    return next((dtype for dtype in ("int8", "bfloat16", "float16") if dtype in found), "float32")


def _exclude_wrong(found: Mapping[str, float], errors: dict[str, str], limit: float) -> None:
    """Excludes baselines with wrong outputs; ours remains, with its error."""
    for name, error in found.items():
        if name != OURS and not error <= limit:
            how_far = f"{error:.0%} of the range away from" if np.isfinite(error) else "not comparable with"
            errors[name] = f"its answer is {how_far} ONNX Runtime's"


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value)
