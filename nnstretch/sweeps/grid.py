"""Latencies of models over batch sizes, threads, image sizes and processors, for capacity planning."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nnstretch.errors import NNStretchError, first_line
from nnstretch.scheduler.runtime.base_session import Session
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
        image_size: side of the images in pixels.
        batch: images per run.
    """

    model: str
    processors: str
    threads: int | None
    image_size: int | None
    batch: int | None


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
        return {**asdict(self.point), **values}


OpenSession = Callable[[GridPoint], Session]
"""Opens a session for a point."""


def grid(
    models: Sequence[str],
    processors: Sequence[str],
    threads: Sequence[int | None],
    image_sizes: Sequence[int | None],
    batches: Sequence[int | None],
) -> list[GridPoint]:
    """All combinations, those of one model together."""
    return list(itertools.starmap(GridPoint, itertools.product(models, processors, threads, image_sizes, batches)))


def measured(
    points: Sequence[GridPoint], open_session: OpenSession, seconds: float, progress: Progress
) -> Iterator[GridResult]:
    """Measures points one after the other; one that cannot be run has its reason.

    Args:
        points: what to run.
        open_session: makes a session, which is closed after its runs.
        seconds: of timed runs per point.
        progress: called before every point.
    """
    for number, point in enumerate(points):
        progress(number, len(points), f"{point.model}, batch {point.batch or 1}")
        try:
            yield _measured(point, open_session, seconds)
        except NNStretchError as error:
            yield GridResult(point, error=first_line(error))
    progress(len(points), len(points), "measured")


def _measured(point: GridPoint, open_session: OpenSession, seconds: float) -> GridResult:
    with open_session(point) as session:
        times = session.time(warmup=_WARMUP, runs=_MAX_RUNS, budget=seconds)
    median, high = (float(value) for value in np.percentile(times, [50, 90]))
    rate = (point.batch or 1) / median
    return GridResult(point, _rounded(1e3 * median), _rounded(1e3 * high), _rounded(rate), len(times))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
