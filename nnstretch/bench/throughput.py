"""Throughput in images per second: one input at a time, and several inputs in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.bench.comparison.client import onnxruntime_process
from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.bench.timing import (
    Interval,
    MeasurementOptions,
    Timed,
    disturbance,
    interleave,
    latency,
    significant,
    widest,
)
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.several_plans import arrangements
from nnstretch.devices.base.spec import all_cores
from nnstretch.graph.reference import largest_error
from nnstretch.scheduler.runtime.arrangement import Arrangement, choose
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.worker_process import WorkerError

_FEWEST = 12
"""Least number of inputs per turn and stream, so that the begin and end of a turn are negligible."""

Feeds = Mapping[str, np.ndarray]


def arrangement_json(found: Arrangement) -> dict[str, Any]:
    """Groups and memory of an arrangement, as JSON."""
    groups = [{"processors": list(group.processors), "streams": group.streams} for group in found.groups]
    return {"replica_groups": groups, "weight_bytes": found.weight_bytes, "stream_bytes": found.stream_bytes}


@dataclass(frozen=True)
class Rate:
    """Images per second over several turns.

    Attributes:
        how: description of the run.
        per_second: median of the turns.
        spread: distance between the turns' quartiles as a share of the median.
        arrangement: arrangement of our engine's streams.
        interval: confidence interval of the median; None with fewer than three turns.
    """

    how: str
    per_second: float
    spread: float
    arrangement: Arrangement | None = None
    interval: Interval | None = None

    def to_json(self, batch: int) -> dict[str, Any]:
        """One of the "results" of `bench --streams --json`."""
        answer: dict[str, Any] = {
            "how": self.how,
            "images_per_s": significant(self.per_second),
            "spread": significant(self.spread, 3),
            "interval_per_s": None if self.interval is None else [significant(rate) for rate in self.interval],
        }
        if (found := self.arrangement) is not None:
            answer["predicted_per_s"] = None if found.rate is None else significant(found.rate * batch)
            answer |= arrangement_json(found)
        return answer


@dataclass(frozen=True)
class Throughput:
    """Rates of a network on processors.

    Attributes:
        model: as the user wrote it.
        batch: images per run.
        streams: requested number of inputs in flight.
        alone: our engine with one input at a time.
        rates: of all arrangements.
        chosen: name of the arrangement predicted to be fastest, the choice of `nns.compile(streams=…)`.
        baselines: of ONNX Runtime on the same cores.
        failure: the reason why ONNX Runtime failed, or "".
        max_rel_error: largest error of all outputs against ONNX Runtime's, relative to the output's range.
        other_programs: what they used meanwhile; None if that is not known.
    """

    model: str
    batch: int
    streams: int
    alone: Rate
    rates: tuple[Rate, ...]
    chosen: str
    baselines: tuple[Rate, ...]
    failure: str
    max_rel_error: float
    other_programs: OtherPrograms | None = None

    @property
    def best(self) -> Rate:
        """The rate of the chosen arrangement."""
        return next(rate for rate in self.rates if rate.how == self.chosen)

    @property
    def widest_interval(self) -> float | None:
        """The largest half width of the rates' intervals, as a share of their middles."""
        return widest(rate.interval for rate in (self.alone, *self.rates, *self.baselines))

    def to_json(self) -> dict[str, Any]:
        """The object that `bench --streams --json` prints."""
        baseline = max((rate.per_second for rate in self.baselines), default=None)
        return {
            "model": self.model,
            "batch": self.batch,
            "streams": self.streams,
            "chosen": self.chosen,
            "results": [rate.to_json(self.batch) for rate in (self.alone, *self.rates, *self.baselines)],
            "over_one_at_a_time": significant(self.best.per_second / self.alone.per_second),
            "over_onnxruntime": None if baseline is None else significant(self.best.per_second / baseline),
            "onnxruntime_error": self.failure or None,
            "max_rel_error": significant(self.max_rel_error, 3),
            **disturbance(self.widest_interval, self.other_programs),
        }


@dataclass(frozen=True)
class _Candidate:
    """A timed way to run: runs for a number of seconds and returns the number of inputs and the seconds they took."""

    how: str
    run: Callable[[float], tuple[int, float]]
    arrangement: Arrangement | None = None

    def per_image(self, batch: int) -> Timed:
        """Seconds per image, one value per turn."""

        def run(budget: float) -> np.ndarray:
            done, seconds = self.run(budget)
            return np.array([seconds / (done * batch)])

        return run


def measure_throughput(
    model: str, graph: ir.Model, processors: str, streams: int, options: MeasurementOptions, progress: Progress
) -> Throughput:
    """Times a network with one input and with several inputs in flight, and ONNX Runtime on the same cores, interleaved.

    ONNX Runtime runs in two ways: one input at a time on all cores, and `streams` threads that share one session, which has the
    cores divided by their number.

    Args:
        model: its name.
        graph: not fused.
        processors: as the user wrote them.
        streams: inputs in flight.
        options: how to measure.
        progress: reports progress.

    Raises:
        NNStretchError: a processor is not there, or cannot run the network.
    """
    feeds = random_feeds(graph, options.seed)
    batch = next(iter(feeds.values())).shape[0]
    usable = build_processors(replace(options.compiling, processors=processors))
    with ExitStack() as stack:
        tune = options.compiling.tune
        single = stack.enter_context(compile_model(graph.clone(), usable, tune=tune, progress=progress))
        ways = arrangements(graph, usable, streams, tune=tune, progress=progress)
        sessions = [stack.enter_context(StreamSession(way)) for way in ways]
        baselines, failure = _onnxruntime(
            stack, graph, all_cores(p.spec for p in usable.named), streams, feeds, progress
        )
        ours = [_Candidate("one at a time", _one_by_one(single, feeds))]
        ours += [_Candidate(way.name, _streaming(one, feeds), way) for way, one in zip(ways, sessions, strict=True)]
        candidates = [*ours, *baselines]
        watch = CoreWatch()
        turns = interleave([candidate.per_image(batch) for candidate in candidates], options.timing, progress)
        others = watch.others()
        rates = [_rate(candidate, slices) for candidate, slices in zip(candidates, turns, strict=True)]
        wanted = reference_outputs(graph, feeds)
        answers = [answer for one in sessions for answer in one.run_many([feeds] * (3 * one.streams))]
        names = [output.name for output in single.get_outputs()]
        errors = [largest_error(dict(zip(names, answer, strict=True)), wanted) for answer in answers]
        return Throughput(
            model=model,
            batch=batch,
            streams=streams,
            alone=rates[0],
            rates=tuple(rates[1 : len(ours)]),
            chosen=choose(ways).name,
            baselines=tuple(rates[len(ours) :]),
            failure=failure,
            max_rel_error=max(errors),
            other_programs=others,
        )


def _one_by_one(session: PlanSession, feeds: Feeds) -> Callable[[float], tuple[int, float]]:
    def run(budget: float) -> tuple[int, float]:
        done, begin = 0, time.perf_counter()
        while done < _FEWEST or time.perf_counter() - begin < budget:
            session.run(None, feeds)
            done += 1
        return done, time.perf_counter() - begin

    return run


def _streaming(session: StreamSession, feeds: Feeds) -> Callable[[float], tuple[int, float]]:
    def run(budget: float) -> tuple[int, float]:
        begin = time.perf_counter()

        def inputs() -> Any:
            given = 0
            while given < _FEWEST * session.streams or time.perf_counter() - begin < budget:
                yield feeds
                given += 1

        done = sum(1 for _ in session.stream(inputs()))
        return done, time.perf_counter() - begin

    return run


def _onnxruntime(
    stack: ExitStack, graph: ir.Model, cores: tuple[int, ...], streams: int, feeds: Feeds, progress: Progress
) -> tuple[list[_Candidate], str]:
    """ONNX Runtime in processes pinned to the cores, and the reason if one of them failed."""
    found: list[_Candidate] = []
    for how, count in (("ONNX Runtime, one at a time", 1), (f"ONNX Runtime, {streams} at a time", streams)):
        try:
            process = onnxruntime_process(stack, graph, cores, feeds, progress, streams=count)
        except WorkerError as failure:
            return found, str(failure)
        found.append(_Candidate(how, process.rate))
    return found, ""


def _rate(candidate: _Candidate, slices: Sequence[np.ndarray]) -> Rate:
    low, middle, high = np.percentile(1 / np.concatenate(slices), (25, 50, 75))
    limits = latency(slices).interval_ms
    between = None if limits is None else (1e3 / limits[1], 1e3 / limits[0])
    return Rate(candidate.how, float(middle), float((high - low) / middle), candidate.arrangement, between)
