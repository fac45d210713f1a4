"""Throughput of a branched network beside that of its alternatives: images per second with several inputs in flight.

Copies of a network without branches, one on each processor, keep all processors busy and never wait for each other. A branched
network is ahead of them only where an input has a latency limit that such a copy misses, or where processors are good at
different layers. The alternatives are all arrangements of the original, of the equal-MACs control, and of the branched network
itself with whole copies on single processors, and ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.bench.ablation.result import BRANCHED
from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.bench.rates import Feeds, Rate, RateCandidate, onnxruntime_candidates, streaming
from nnstretch.bench.timing import MeasurementOptions, disturbance, interleave, significant, widest
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.compiler.several_plans import arrangements
from nnstretch.devices.base.spec import all_cores
from nnstretch.graph.reference import largest_error
from nnstretch.scheduler.runtime.arrangement import Arrangement
from nnstretch.scheduler.runtime.stream_session import StreamSession
from nnstretch.support.other_programs import CoreWatch, OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.settings import core_speeds


@dataclass(frozen=True)
class ThroughputGoal:
    """Images per second with inputs in flight, under an optional latency limit.

    Attributes:
        streams: maximum number of inputs in flight.
        limit_ms: maximum latency of an input, from when a stream begins it to its answer; None: any.
    """

    streams: int
    limit_ms: float | None = None

    def is_met(self, latency_ms: float | None) -> bool:
        """Whether a latency is within the limit; an unknown one is if there is no limit."""
        return self.limit_ms is None or (latency_ms is not None and latency_ms <= self.limit_ms)

    def best(self, ways: Iterable[StreamedWay]) -> StreamedWay | None:
        """The way within the limit with the most images per second; None if all miss it."""
        within = (way for way in ways if self.is_met(way.rate.latency_ms))
        return max(within, key=lambda way: way.rate.per_second, default=None)

    def predicted_best(self, ways: Iterable[StreamedWay]) -> StreamedWay | None:
        """The way that is predicted to be the best; None if none is predicted to be within the limit."""
        within = (way for way in ways if way.predicted_rate is not None and self.is_met(way.predicted_ms))
        return max(within, key=lambda way: way.predicted_rate or 0.0, default=None)


@dataclass(frozen=True)
class StreamedWay:
    """A measured way to run one of the networks.

    Attributes:
        network: original, control or branched.
        rate: its rate.
    """

    network: str
    rate: Rate

    @property
    def is_branched(self) -> bool:
        """Whether branches run on several processors; whole copies of the branched network do not use its branches."""
        return self.network == BRANCHED and self.rate.arrangement is not None and _meets(self.rate.arrangement)

    @property
    def predicted_rate(self) -> float | None:
        """Predicted runs per second; None if nothing was measured before."""
        return None if self.rate.arrangement is None else self.rate.arrangement.rate

    @property
    def predicted_ms(self) -> float | None:
        """Predicted latency of an input."""
        seconds = None if self.rate.arrangement is None else self.rate.arrangement.duration
        return None if seconds is None else 1e3 * seconds

    def named(self) -> dict[str, str]:
        """What tells it from other ways, as JSON."""
        return {"network": self.network, "how": self.rate.how}


@dataclass(frozen=True)
class DesignThroughput:
    """Rates of a branched network and its alternatives.

    Attributes:
        model: name of the original.
        batch: images per run.
        goal: what ranks the ways.
        ways: all that were measured.
        failure: the reason why ONNX Runtime failed, or "".
        max_rel_error: largest error of all outputs against ONNX Runtime's, relative to the output's range.
        other_programs: what they used meanwhile; None if that is not known.
    """

    model: str
    batch: int
    goal: ThroughputGoal
    ways: tuple[StreamedWay, ...]
    failure: str
    max_rel_error: float
    other_programs: OtherPrograms | None = None

    @property
    def best(self) -> StreamedWay | None:
        """The best way of all; None if all miss the limit."""
        return self.goal.best(self.ways)

    @property
    def best_branched(self) -> StreamedWay | None:
        """The best way to run the branches; None if all miss the limit."""
        return self.goal.best(way for way in self.ways if way.is_branched)

    @property
    def best_alternative(self) -> StreamedWay | None:
        """The best way without branches; None if all miss the limit."""
        return self.goal.best(way for way in self.ways if not way.is_branched)

    @property
    def predicted_best(self) -> StreamedWay | None:
        """The way of our engine that was predicted to be the best; None without predictions, or if all miss the limit."""
        return self.goal.predicted_best(self.ways)

    @property
    def gain(self) -> float | None:
        """Images per second of the branches over those of the best alternative; None if either misses the limit."""
        ours, other = self.best_branched, self.best_alternative
        return None if ours is None or other is None else ours.rate.per_second / other.rate.per_second

    @property
    def widest_interval(self) -> float | None:
        """The largest half width of the rates' intervals, as a share of their middles."""
        return widest(way.rate.interval for way in self.ways)

    def to_json(self) -> dict[str, Any]:
        """The object that `bench --design --streams --json` prints."""
        ways = {
            "best": self.best,
            "best_branched": self.best_branched,
            "best_alternative": self.best_alternative,
            "predicted_best": self.predicted_best,
        }
        return {
            "model": self.model,
            "batch": self.batch,
            "streams": self.goal.streams,
            "limit_ms": self.goal.limit_ms,
            "over_best_alternative": None if self.gain is None else significant(self.gain),
            **{name: None if way is None else way.named() for name, way in ways.items()},
            "results": [
                {
                    "network": way.network,
                    **way.rate.to_json(self.batch),
                    "meets_limit": self.goal.is_met(way.rate.latency_ms),
                }
                for way in self.ways
            ],
            "onnxruntime_error": self.failure or None,
            "max_rel_error": significant(self.max_rel_error, 3),
            **disturbance(self.widest_interval, self.other_programs),
        }


def measure_design_throughput(
    model: str,
    graphs: Mapping[str, ir.Model],
    processors: str,
    goal: ThroughputGoal,
    options: MeasurementOptions,
    progress: Progress,
) -> DesignThroughput:
    """Times the arrangements of all networks with inputs in flight, and ONNX Runtime on the same cores, interleaved.

    Args:
        model: name of the original.
        graphs: original, control and branched network by name; not fused, with the same inputs.
        processors: one branch runs on each.
        goal: inputs in flight, and the limit. With a limit, arrangements with fewer inputs in flight are timed, too.
        options: how to measure.
        progress: reports progress.

    Raises:
        UsageError: the processors are simulated.
        NNStretchError: a processor is not there, or cannot run the networks.
    """
    usable = build_processors(replace(options.compiling, processors=processors, streams=None))
    values = random_feeds(graphs["original"], options.seed).values()
    with ExitStack() as stack:
        found: list[tuple[str, RateCandidate]] = []
        errors: list[float] = []
        failure = ""
        for network, graph in graphs.items():
            feeds = dict(zip([str(one.name) for one in graph.graph.inputs], values, strict=True))
            wanted = reference_outputs(graph, feeds)
            for way in _ways(graph, usable, goal, options, progress):
                session = stack.enter_context(StreamSession(way))
                errors.append(_error(session, feeds, wanted))
                found.append((network, RateCandidate(way.name, streaming(session, feeds), way)))
            if network != BRANCHED:
                ran, why = _onnxruntime(stack, graph, usable, goal.streams, feeds, progress)
                failure = failure or why
                found += [(network, one) for one in ran]
        batch = next(iter(values)).shape[0]
        watch = CoreWatch()
        turns = interleave([one.per_image(batch) for _, one in found], options.timing, progress)
        ways = [StreamedWay(network, one.rate(own)) for (network, one), own in zip(found, turns, strict=True)]
        return DesignThroughput(model, batch, goal, tuple(ways), failure, max(errors), watch.others())


def _ways(
    graph: ir.Model, usable: Processors, goal: ThroughputGoal, options: MeasurementOptions, progress: Progress
) -> list[Arrangement]:
    """The arrangements of a network that may be the best for a goal."""
    found = arrangements(graph, usable, goal.streams, tune=options.compiling.tune, progress=progress)
    return found if goal.limit_ms is None else list(with_fewer_streams(found))


def with_fewer_streams(found: Sequence[Arrangement]) -> Iterator[Arrangement]:
    """Arrangements, each also with one input per group and with its fastest group alone, without repetitions.

    With fewer inputs in flight, each has a shorter latency.
    """
    known = set()
    for way in found:
        single = [replace(group, streams=1) for group in way.groups]
        fastest = min(single, key=lambda group: group.latency or math.inf)
        fewer = [
            way,
            Arrangement(f"{way.name}, one each" if len(single) > 1 else f"{way.name}, one at a time", tuple(single)),
            Arrangement(f"{way.name}, only the fastest", (replace(fastest, contention_factor=1.0),)),
        ]
        for one in fewer if len(single) > 1 else fewer[:2]:
            key = tuple((group.processors, group.streams) for group in one.groups)
            if key not in known:
                known.add(key)
                yield one


def _meets(way: Arrangement) -> bool:
    """Whether several processors compute an input."""
    return any(len(group.processors) > 1 for group in way.groups)


def _onnxruntime(
    stack: ExitStack, graph: ir.Model, usable: Processors, streams: int, feeds: Feeds, progress: Progress
) -> tuple[list[RateCandidate], str]:
    """ONNX Runtime on the processors' cores; none if our engine alone makes cores slow."""
    if core_speeds():
        return [], "not compared: NNSTRETCH_CORE_SPEEDS does not slow its threads"
    return onnxruntime_candidates(stack, graph, all_cores(p.spec for p in usable.named), streams, feeds, progress)


def _error(session: StreamSession, feeds: Feeds, wanted: Mapping[str, np.ndarray]) -> float:
    """The largest relative error of what all streams compute."""
    names = [output.name for output in session.get_outputs()]
    answers = session.run_many([feeds] * (3 * session.streams))
    return max(largest_error(dict(zip(names, answer, strict=True)), wanted) for answer in answers)
