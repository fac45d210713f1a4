"""Throughput in images per second: one input at a time, and several inputs in flight."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.bench.rates import Rate, RateCandidate, one_by_one, onnxruntime_candidates, streaming
from nnstretch.bench.timing import (
    MeasurementOptions,
    disturbance,
    interleave,
    significant,
    widest,
)
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.several_plans import arrangements
from nnstretch.devices.base.spec import all_cores
from nnstretch.graph.reference import largest_error
from nnstretch.scheduler.runtime.arrangement import choose
from nnstretch.scheduler.runtime.stream_session import StreamSession
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress


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


def measure_throughput(
    model: str, graph: ir.Model, processors: str, streams: int, options: MeasurementOptions, progress: Progress
) -> Throughput:
    """Times a network with one input and with several inputs in flight, and ONNX Runtime on the same cores, interleaved.

    ONNX Runtime runs as in `onnxruntime_candidates`.

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
        baselines, failure = onnxruntime_candidates(
            stack, graph, all_cores(p.spec for p in usable.named), streams, feeds, progress
        )
        ours = [RateCandidate("one at a time", one_by_one(single, feeds))]
        ours += [RateCandidate(way.name, streaming(one, feeds), way) for way, one in zip(ways, sessions, strict=True)]
        candidates = [*ours, *baselines]
        watch = CoreWatch()
        turns = interleave([candidate.per_image(batch) for candidate in candidates], options.timing, progress)
        others = watch.others()
        rates = [candidate.rate(slices) for candidate, slices in zip(candidates, turns, strict=True)]
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
