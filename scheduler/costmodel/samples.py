"""What the profile store knows, as samples to learn from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nnstretch.devices.base.routine import Parameters
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement
from nnstretch.scheduler.measurement.store.store import ProfileStore

_INSIDE = re.compile(r" in [0-9a-f]{16}$")
"""Ends the workload of a layer that was timed inside a whole network."""
_WIDEST = 0.5
"""What a measurement's interval may be of its seconds: a wider one says that it was disturbed."""


@dataclass(frozen=True)
class Sample:
    """Seconds that a routine took for a workload with some parameters, its weights lying where `state` says."""

    workload: str
    routine: str
    parameters: Parameters
    seconds: float
    state: CacheState = "warm"


def stored_samples(store: ProfileStore, fingerprint: str) -> list[Sample]:
    """What can be learned from the measurements of the processor with this fingerprint, in the order of their keys.

    Failures cannot, nor what was timed inside a network, nor what is known to no better than half of it.

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
