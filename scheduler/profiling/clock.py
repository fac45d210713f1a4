"""The clock of a core, watched: it drifts with heat and with what else the machine does, and measurements with it."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from nnstretch.devices.processor import Processor

_STEADY = 0.95
"""A core is slow while it shows less than this share of what it usually does."""


class CoreClock:
    """How fast a processor's first core runs, watched so that a drift of its frequency is noticed."""

    def __init__(self, processor: Processor) -> None:
        self._core = next(iter(processor.spec.cores), None)
        self._readings: list[float] = []

    def read(self, gflops: Callable[[int], float | None]) -> float | None:
        """GFLOP/s of this moment: the better of two short measurements, as one may be interrupted; None if unknown."""
        if self._core is None:
            return None
        readings = [gflops(self._core) for _ in range(2)]
        found = max((r for r in readings if r is not None), default=None)
        if found is not None:
            self._readings.append(found)
        return found

    def slow(self, reading: float | None) -> bool:
        """Whether a reading is far below what the core usually shows.

        Not below the most that it has ever shown: a core that shares its execution units with a neighbour's shows that rarely.
        """
        return reading is not None and reading < _STEADY * statistics.median(self._readings)
