"""Interleaved timing, its statistics, and a description of the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.targets.workers import open_target
from nnstretch.scheduler.measurement.runner.runner import Runner, SharedRunner
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import WorkerError

Timed = Callable[[float], np.ndarray]
"""Runs a candidate for a number of seconds and returns the seconds of every run."""

CONFIDENCE = 0.95
"""Confidence level of the intervals."""
_RESAMPLES = 2000

Interval = tuple[float, float]
"""Lower and upper end."""

WIDE = 0.05
"""Half the width of a confidence interval, as a share of its middle, beyond which the machine counts as disturbed.

On a quiet machine, ten rounds have intervals of up to ±4 %.
"""

_PAUSE = 0.02  # seconds between turns, in which the machine comes to rest
_WARMUP = 2
_MAX_RUNS = 100_000
MIN_ROUNDS = 3
"""A median of fewer rounds says little, and has no interval."""
_LEAST_PRECISE_ROUNDS = 5
"""Rounds before an early end: the interval of fewer ones may be narrow by chance."""


@dataclass(frozen=True)
class TimingOptions:
    """The length of a measurement.

    Attributes:
        rounds: each candidate has one turn per round.
        turn: seconds of a turn.
        budget: seconds per candidate after which no further round begins, once there were three; None for no limit.
        precision: largest half width of all candidates' confidence intervals, as a share of their middles, at which no further
            round begins, once there were five; None for all rounds.
    """

    rounds: int = 10
    turn: float = 0.15
    budget: float | None = None
    precision: float | None = None


@dataclass(frozen=True)
class MeasurementOptions:
    """The measurement of one network in several ways.

    Attributes:
        timing: rounds, turns and budget.
        seed: of the inputs.
        compiling: how networks are compiled; the processors are named by each measurement.
        coordinate_descent: search routine parameters beyond the routines' short lists.
    """

    timing: TimingOptions = field(default_factory=TimingOptions)
    seed: int = 0
    compiling: CompileOptions = field(default_factory=CompileOptions)
    coordinate_descent: bool = True

    def session(
        self, graph: ir.Model, processors: str, progress: Progress, runner: Runner | None = None
    ) -> PlanSession:
        """A session of a graph, which is not changed.

        Args:
            graph: the network.
            processors: those to run on.
            progress: called while routines are measured.
            runner: measures single layers (`shared_runner`); one of the session's own if None.
        """
        usable = build_processors(replace(self.compiling, processors=processors))
        return compile_model(
            graph,
            usable,
            tune=self.compiling.tune,
            coordinate_descent=self.coordinate_descent,
            progress=progress,
            runner=runner,
        )

    def shared_runner(self, stack: ExitStack) -> SharedRunner:
        """A runner for all sessions of a measurement, which `stack` ends."""
        made = SharedRunner(start=open_target(self.compiling.target).start)
        stack.callback(made.end)
        return made


DEFAULT_OPTIONS = MeasurementOptions()


def timed(session: PlanSession, feeds: Mapping[str, np.ndarray]) -> Timed:
    """A session as a candidate."""
    return lambda budget: session.time(feeds, warmup=_WARMUP, runs=_MAX_RUNS, budget=budget)


def recording_failure(candidate: Timed, name: str, errors: dict[str, str]) -> Timed:
    """A candidate in another process. A failure ends its turns, which have no runs from then on.

    Args:
        candidate: raises WorkerError if it fails.
        name: its key in `errors`.
        errors: gets the reason of a failure; a candidate that has one is not run.
    """

    def run(budget: float) -> np.ndarray:
        if name not in errors:
            try:
                return candidate(budget)
            except WorkerError as failure:
                errors[name] = str(failure)
        return np.empty(0)

    return run


def interleave(candidates: Sequence[Timed], options: TimingOptions, progress: Progress) -> list[list[np.ndarray]]:
    """Times candidates in turns; the order rotates from round to round.

    Args:
        candidates: those to time.
        options: rounds, turns and budget.
        progress: called before each round and at the end; what it raises ends the measurement.

    Returns:
        Per candidate and round, the seconds of the runs.
    """
    slices: list[list[np.ndarray]] = [[] for _ in candidates]
    limit = float("inf") if options.budget is None else options.budget * len(candidates)
    begin = time.perf_counter()
    for number in range(options.rounds):
        if number >= MIN_ROUNDS and time.perf_counter() - begin > limit:
            break
        if options.precision is not None and _is_precise(slices, options.precision):
            break
        progress(number, options.rounds, f"measuring, round {number + 1} of {options.rounds}")
        for place in range(len(candidates)):
            turn = (place + number) % len(candidates)
            time.sleep(_PAUSE)
            slices[turn].append(candidates[turn](options.turn))
    progress(options.rounds, options.rounds, "measured")
    return slices


def _is_precise(slices: Sequence[Sequence[np.ndarray]], precision: float) -> bool:
    """Whether the rounds suffice for a precision as in `TimingOptions`."""
    if min(map(len, slices), default=0) < _LEAST_PRECISE_ROUNDS:
        return False
    width = widest(map(interval, resampled(slices)))
    return width is not None and width <= precision


@dataclass(frozen=True)
class Latency:
    """Median, 90th percentile and minimum of a run's duration, in milliseconds.

    `spread` is the interquartile range of the rounds' medians divided by their median, and `interval_ms` the confidence
    interval of the median; None with fewer than three rounds.
    """

    p50_ms: float
    p90_ms: float
    min_ms: float
    spread: float = 0.0
    interval_ms: Interval | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that are known, to five significant digits."""
        answer: dict[str, Any] = {
            name: significant(getattr(self, name)) for name in ("p50_ms", "p90_ms", "min_ms", "spread")
        }
        if self.interval_ms is not None:
            answer["interval_ms"] = [significant(ms) for ms in self.interval_ms]
        return answer


def latency(slices: Sequence[np.ndarray]) -> Latency:
    """Statistics over rounds, each an array of seconds: the median of the rounds' medians and of their 90th percentiles.

    A disturbed round counts once, whatever its number of runs.
    """
    medians = [float(np.median(s)) for s in slices]
    p50 = float(np.median(medians))
    p90 = float(np.median([np.percentile(s, 90) for s in slices]))
    low, high = (float(np.percentile(medians, q)) for q in (25, 75))
    limits = interval(resampled([slices])[0]) if len(slices) >= MIN_ROUNDS else None
    return Latency(p50 * 1e3, p90 * 1e3, float(min(s.min() for s in slices)) * 1e3, (high - low) / p50, limits)


def paired_ratio(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The latency of a candidate over another one's: the median of the rounds' ratios, of medians.

    A disturbance that lasts for a round slows both alike, whichever rounds are their median ones.

    Args:
        one: seconds of a candidate's runs, per round.
        other: the same of the other one, in the same rounds.
    """
    return float(np.median([np.median(a) / np.median(b) for a, b in zip(one, other, strict=True)]))


def resampled(candidates: Sequence[Sequence[np.ndarray]], seed: int = 0) -> np.ndarray:
    """Medians of the rounds' medians in milliseconds, as in `latency`, of resampled rounds (bootstrap).

    All candidates share the drawn rounds, since a disturbance may affect all turns of a round.

    Args:
        candidates: per candidate one array of seconds per round; equal numbers of rounds.
        seed: of the resampling.

    Returns:
        Candidates × resamples.
    """
    medians = np.array([[np.median(s) for s in slices] for slices in candidates]) * 1e3
    rounds = medians.shape[1]
    drawn = np.random.default_rng(seed).integers(0, rounds, (_RESAMPLES, rounds))
    return np.asarray(np.median(medians[:, drawn], axis=2))


def interval(samples: np.ndarray) -> Interval:
    """The central interval that holds `CONFIDENCE` of the samples."""
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(samples, (tail, 100 - tail))
    return float(low), float(high)


def widest(intervals: Iterable[Sequence[float] | None]) -> float | None:
    """The largest half width of intervals, as a share of their middles; None if there are no intervals."""
    return max(((high - low) / (high + low) for low, high in filter(None, intervals) if high > 0), default=None)


def disturbance(width: float | None, others: OtherPrograms | None) -> dict[str, Any]:
    """What JSON says of how quiet the machine was.

    Args:
        width: the largest half width of the measurement's intervals, as a share of their middles.
        others: what other programs used meanwhile; None if that is not known.
    """
    return {
        "widest_interval": None if width is None else significant(width, 3),
        "disturbed": width is not None and width > WIDE,
        "other_programs": None if others is None else others.to_json(),
    }


def geometric_mean(values: Sequence[float]) -> float | None:
    """The geometric mean of positive numbers, or None if there are none."""
    return float(np.exp(np.mean(np.log(values)))) if values else None


def perfect_split(latencies: Sequence[float]) -> float:
    """1 / Σ (1 / tᵢ): time of work divided without loss among processors that each need tᵢ for all of it.

    tᵢ is infinite for a processor that cannot do the work.
    """
    rate = sum(1.0 / t for t in latencies)
    return 1.0 / rate if rate else math.inf


def significant(value: float, digits: int = 5) -> float:
    """`value` rounded to a number of significant digits."""
    return float(f"{value:.{digits}g}")


def describe_machine(cores: tuple[int, ...], peak_gflops: float | None = None) -> dict[str, Any]:
    """CPU, number of cores in use, and the float32 FMA peak of one core in GFLOP/s, measured now if it is not given.

    Raises:
        BuildError: the engine that measures it cannot be built.
    """
    peak = engine().peak_gflops(cores[0]) if peak_gflops is None else peak_gflops
    return {"cpu": cpu_model(), "cores": len(cores), "peak_gflops_per_core": significant(peak)}
