"""Training samples from the profile store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nnstretch.devices.base.routine import Parameters
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore

_INSIDE = re.compile(r" in [0-9a-f]{16}$")
"""End of the workload of a layer that was timed inside a network."""
_WIDEST = 0.5
"""Largest width of a measurement's interval over its seconds; a wider one shows a disturbance."""


@dataclass(frozen=True)
class Sample:
    """Seconds of a routine with some parameters on a workload, in a cache state."""

    workload: str
    routine: str
    parameters: Parameters
    seconds: float
    state: CacheState = "warm"


def stored_samples(store: ProfileStore, fingerprint: str) -> list[Sample]:
    """Samples from a processor's measurements, in the order of their keys.

    Excludes failures, times inside networks, and measurements with wide confidence intervals.

    Raises:
        FileError: the store cannot be read.
    """
    return list(_samples(store, fingerprint))


def stored_count(store: ProfileStore, fingerprint: str) -> int:
    """Number of `stored_samples`."""
    return sum(1 for _ in _samples(store, fingerprint))


def _samples(store: ProfileStore, fingerprint: str) -> Iterator[Sample]:
    for row in store.rows(fingerprint):
        found = row.measurement
        if found.seconds and _is_sure(found) and not _INSIDE.search(row.workload):
            yield Sample(row.workload, row.routine, row.parameters, found.seconds, found.state)


def _is_sure(found: Measurement) -> bool:
    low, high = found.interval or (0.0, 0.0)
    return high - low <= _WIDEST * (found.seconds or 0.0)
