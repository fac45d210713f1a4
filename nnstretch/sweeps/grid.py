"""Latencies of models over batch sizes, threads, image sizes and processors, for capacity planning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nnstretch.devices.targets.base import TransientTargetError
from nnstretch.errors import NNStretchError, StoppedError, first_line
from nnstretch.scheduler.runtime.base_session import Session
from nnstretch.support.image_size import ImageSize, json_size
from nnstretch.support.progress import Progress

_WARMUP = 3
_MAX_RUNS = 100_000
_DIGITS = 6


@dataclass(frozen=True)
class GridPoint:
    """One way to run a model; None leaves a setting to the model or the machine.

    Attributes:
        model: as the user named it.
        processors: as the user wrote them.
        threads: cores of the first CPU.
        image_size: of the images.
        batch: images per run.
        target: machine that runs it; None: this one.
    """

    model: str
    processors: str
    threads: int | None
    image_size: ImageSize | None
    batch: int | None
    target: str | None = None


@dataclass(frozen=True)
class GridResult:
    """Measured runs of a point.

    Attributes:
        point: what was run.
        p50_ms: median of the runs.
        p90_ms: their 90th percentile.
        images_per_s: at the median.
        runs: their number.
        error: why there is no measurement; "" if there is one.
    """

    point: GridPoint
    p50_ms: float | None = None
    p90_ms: float | None = None
    images_per_s: float | None = None
    runs: int = 0
    error: str = ""

    def row(self) -> dict[str, Any]:
        """The fields of the point and of the measurement, for CSV and JSON."""
        values = {name: value for name, value in asdict(self).items() if name != "point"}
        return {**asdict(self.point), "image_size": json_size(self.point.image_size), **values}


@dataclass(frozen=True)
class RunTimes:
    """Timed runs.

    Attributes:
        p50, p90: median and 90th percentile in seconds.
        runs: their number.
    """

    p50: float
    p90: float
    runs: int


TimeRuns = Callable[[GridPoint], RunTimes]
"""Runs a model as a point says."""


def grid(
    models: Sequence[str],
    processors: Sequence[str],
    threads: Sequence[int | None],
    image_sizes: Sequence[ImageSize | None],
    batches: Sequence[int | None],
    target: str | None = None,
) -> list[GridPoint]:
    """All combinations, those of one model together."""
    combinations = itertools.product(models, processors, threads, image_sizes, batches)
    return [GridPoint(*one, target) for one in combinations]


def measured(points: Sequence[GridPoint], time_runs: TimeRuns, progress: Progress) -> Iterator[GridResult]:
    """Measures points one after the other; one that cannot be run has its reason.

    Points after the loss of a target have the same reason: nothing more is asked of it.

    Args:
        points: what to run.
        time_runs: runs one.
        progress: called before every point.
    """
    lost = ""
    for number, point in enumerate(points):
        progress(number, len(points), f"{point.model}, batch {point.batch or 1}")
        if lost:
            yield GridResult(point, error=lost)
            continue
        try:
            yield _result(point, time_runs(point))
        except StoppedError:
            raise
        except NNStretchError as error:
            lost = first_line(error) if isinstance(error, TransientTargetError) else ""
            yield GridResult(point, error=first_line(error))
    progress(len(points), len(points), "measured")


def session_times(session: Session, seconds: float) -> RunTimes:
    """Timed runs of a session.

    Args:
        session: to run.
        seconds: that the runs take together.
    """
    times = session.time(warmup=_WARMUP, runs=_MAX_RUNS, budget=seconds)
    median, high = (float(value) for value in np.percentile(times, [50, 90]))
    return RunTimes(median, high, len(times))


def _result(point: GridPoint, times: RunTimes) -> GridResult:
    rate = (point.batch or 1) / times.p50
    return GridResult(point, _rounded(1e3 * times.p50), _rounded(1e3 * times.p90), _rounded(rate), times.runs)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
