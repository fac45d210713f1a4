"""Rates of ways to run a network with inputs in flight: images per second, and the latency of an input meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from nnstretch.bench.comparison.client import onnxruntime_process
from nnstretch.bench.timing import Interval, Timed, latency, significant
from nnstretch.scheduler.runtime.arrangement import Arrangement
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
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
        latency_ms: median over the turns of an input's milliseconds from begin to end, on the slowest stream; without the time
            in which it waits for a stream.
    """

    how: str
    per_second: float
    spread: float
    arrangement: Arrangement | None = None
    interval: Interval | None = None
    latency_ms: float | None = None

    def to_json(self, batch: int) -> dict[str, Any]:
        """One of the "results" of `bench --streams --json`."""
        answer: dict[str, Any] = {
            "how": self.how,
            "images_per_s": significant(self.per_second),
            "spread": significant(self.spread, 3),
            "interval_per_s": None if self.interval is None else [significant(rate) for rate in self.interval],
            "latency_ms": None if self.latency_ms is None else significant(self.latency_ms),
        }
        if (found := self.arrangement) is not None:
            answer["predicted_per_s"] = None if found.rate is None else significant(found.rate * batch)
            answer["predicted_latency_ms"] = None if found.duration is None else significant(1e3 * found.duration)
            answer |= arrangement_json(found)
        return answer


class Turn(NamedTuple):
    """A turn of a candidate: inputs that were computed, seconds that all of them took, and seconds from begin to end of one.

    The last are the mean of the slowest stream.
    """

    done: int
    seconds: float
    latency: float


@dataclass(frozen=True)
class RateCandidate:
    """A timed way to run.

    Attributes:
        how: description of the run.
        run: runs for a number of seconds.
        arrangement: arrangement of our engine's streams.
        latencies: of the turns so far, in seconds.
    """

    how: str
    run: Callable[[float], Turn]
    arrangement: Arrangement | None = None
    latencies: list[float] = field(default_factory=list)

    def per_image(self, batch: int) -> Timed:
        """Seconds per image, one value per turn."""

        def run(budget: float) -> np.ndarray:
            turn = self.run(budget)
            self.latencies.append(turn.latency)
            return np.array([turn.seconds / (turn.done * batch)])

        return run

    def rate(self, slices: Sequence[np.ndarray]) -> Rate:
        """The rate in all turns, given their seconds per image."""
        low, middle, high = np.percentile(1 / np.concatenate(slices), (25, 50, 75))
        limits = latency(slices).interval_ms
        between = None if limits is None else (1e3 / limits[1], 1e3 / limits[0])
        spread, took = float((high - low) / middle), 1e3 * float(np.median(self.latencies))
        return Rate(self.how, float(middle), spread, self.arrangement, between, took)


def one_by_one(session: PlanSession, feeds: Feeds) -> Callable[[float], Turn]:
    """Turns with one input at a time."""

    def run(budget: float) -> Turn:
        done, begin = 0, time.perf_counter()
        while done < _FEWEST or time.perf_counter() - begin < budget:
            session.run(None, feeds)
            done += 1
        seconds = time.perf_counter() - begin
        return Turn(done, seconds, seconds / done)

    return run


def streaming(session: StreamSession, feeds: Feeds) -> Callable[[float], Turn]:
    """Turns in which all streams of a session have work."""

    def run(budget: float) -> Turn:
        before, begin = session.computed, time.perf_counter()

        def inputs() -> Any:
            given = 0
            while given < _FEWEST * session.streams or time.perf_counter() - begin < budget:
                yield feeds
                given += 1

        done = sum(1 for _ in session.stream(inputs()))
        seconds = time.perf_counter() - begin
        means = [
            (after.seconds - earlier.seconds) / (after.inputs - earlier.inputs)
            for earlier, after in zip(before, session.computed, strict=True)
            if after.inputs > earlier.inputs
        ]
        return Turn(done, seconds, max(means))

    return run


def onnxruntime_candidates(
    stack: ExitStack, graph: ir.Model, cores: tuple[int, ...], streams: int, feeds: Feeds, progress: Progress
) -> tuple[list[RateCandidate], str]:
    """ONNX Runtime in processes pinned to the cores, and the reason if one of them failed.

    It runs in two ways: one input at a time on all cores, and `streams` threads that share one session, which has the cores
    divided by their number.
    """
    found: list[RateCandidate] = []
    for how, count in (("ONNX Runtime, one at a time", 1), (f"ONNX Runtime, {streams} at a time", streams)):
        try:
            process = onnxruntime_process(stack, graph, cores, feeds, progress, streams=count)
        except WorkerError as failure:
            return found, str(failure)

        def run(budget: float, rate: Callable[[float], tuple[int, float]] = process.rate, threads: int = count) -> Turn:
            done, seconds = rate(budget)
            return Turn(done, seconds, threads * seconds / done)

        found.append(RateCandidate(how, run))
    return found, ""
