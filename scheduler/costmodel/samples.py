"""What the profile store knows, as samples to learn from."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from nnstretch.devices.routine import Parameters
from nnstretch.errors import FileError
from nnstretch.scheduler.store import ProfileStore


@dataclass(frozen=True)
class Sample:
    """Seconds that a routine took for a workload with some parameters."""

    workload: str
    routine: str
    parameters: Parameters
    seconds: float


def stored_samples(store: ProfileStore, fingerprint: str) -> list[Sample]:
    """All successful measurements of the processor with this fingerprint, ordered by workload, routine and parameters.

    Raises:
        FileError: the store cannot be read.
    """
    found = [
        Sample(workload, routine, json.loads(parameters), seconds)
        for workload, routine, parameters, seconds in _rows(store, fingerprint)
        if seconds is not None and seconds > 0
    ]
    return sorted(found, key=lambda s: (s.workload, s.routine, sorted(s.parameters.items())))


def stored_best(store: ProfileStore, fingerprint: str) -> dict[tuple[str, str], Parameters]:
    """The fastest parameters of every (workload, routine) that was measured on a processor.

    Raises:
        FileError: the store cannot be read.
    """
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for workload, routine, parameters, seconds in _rows(store, fingerprint):
        if seconds is not None and seconds > 0:
            key = (workload, routine)
            best[key] = min(best.get(key, (seconds, parameters)), (seconds, parameters))
    return {key: json.loads(parameters) for key, (_, parameters) in best.items()}


def stored_count(store: ProfileStore, fingerprint: str) -> int:
    """Number of samples of the processor with this fingerprint."""
    return sum(seconds is not None and seconds > 0 for *_, seconds in _rows(store, fingerprint))


def _rows(store: ProfileStore, fingerprint: str) -> Iterator[tuple[str, str, str, float | None]]:
    """(workload, routine, parameters as JSON, seconds) of a processor: all that depends on how the store keeps them."""
    try:
        with contextlib.closing(sqlite3.connect(f"{store.path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            yield from database.execute(
                "SELECT workload, routine, parameters, seconds FROM measurement WHERE processor=?", (fingerprint,)
            )
    except sqlite3.Error as error:
        raise FileError(
            f"cannot read profile store {store.path}: {error}; move it away or set NNSTRETCH_CACHE_DIR"
        ) from error
