"""The profile store: every measurement that was ever finished, in one SQLite file.

A row is keyed by the processor's fingerprint (which stands for the machine, its cores in use and the engine), the workload,
the routine and its parameters. A measurement is written in one transaction as soon as it is done (write-ahead log), so that a
killed run loses nothing finished and several processes may measure at once. A routine that failed has the reason instead
of a time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnstretch.devices.routine import Parameters
from nnstretch.errors import FileError
from nnstretch.settings import cache_dir

_SCHEMA = """
CREATE TABLE IF NOT EXISTS measurement (
    processor  TEXT NOT NULL,
    workload   TEXT NOT NULL,
    routine    TEXT NOT NULL,
    parameters TEXT NOT NULL,
    seconds    REAL,
    samples    TEXT NOT NULL,
    failure    TEXT,
    measured   REAL NOT NULL,
    PRIMARY KEY (processor, workload, routine, parameters)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Measurement:
    """Typical seconds of a routine on a workload with all samples, or the reason why it failed."""

    seconds: float | None
    samples: tuple[float, ...] = ()
    failure: str | None = None


class ProfileStore:
    """Measurements on disk. Thread-safe; several processes may share one file."""

    def __init__(self, path: Path | None = None) -> None:
        """Opens (and creates) the store at `path`, by default `profiles.sqlite` in the cache directory.

        Raises:
            FileError: it cannot be opened, or is not a profile store.
        """
        self.path = path or cache_dir() / "profiles.sqlite"
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise FileError(
                f"cannot open profile store {self.path}: {error}; move it away or set NNSTRETCH_CACHE_DIR"
            ) from error

    def get(self, processor: str, workload: str, routine: str, parameters: Parameters) -> Measurement | None:
        """What is known of this routine on this workload, or None."""
        with self._lock:
            row = self._database.execute(
                "SELECT seconds, samples, failure FROM measurement "
                "WHERE processor=? AND workload=? AND routine=? AND parameters=?",
                (processor, workload, routine, _key(parameters)),
            ).fetchone()
        return Measurement(row[0], tuple(json.loads(row[1])), row[2]) if row else None

    def put(
        self, processor: str, workload: str, routine: str, parameters: Parameters, measurement: Measurement
    ) -> None:
        """Writes a finished measurement, replacing an older one.

        Raises:
            FileError: the disk is full or the file not writable.
        """
        row: Sequence[object] = (
            processor,
            workload,
            routine,
            _key(parameters),
            measurement.seconds,
            json.dumps(measurement.samples),
            measurement.failure,
            time.time(),
        )
        with self._lock:
            try:
                with self._database:
                    self._database.execute("INSERT OR REPLACE INTO measurement VALUES (?,?,?,?,?,?,?,?)", row)
            except sqlite3.Error as error:
                raise FileError(f"cannot write profile store {self.path}: {error}") from error

    def __len__(self) -> int:
        with self._lock:
            return int(self._database.execute("SELECT COUNT(*) FROM measurement").fetchone()[0])

    def close(self) -> None:
        """Closes the file; the store cannot be used afterwards."""
        with self._lock:
            self._database.close()


def _key(parameters: Parameters) -> str:
    return json.dumps(dict(sorted(parameters.items())), separators=(",", ":"))
