"""The profile store: all finished measurements, in one SQLite file.

A row's key is the processor's fingerprint (machine, cores in use, version of the engine), the workload, the routine, its
parameters and the cache state. Measurements are written in one transaction as soon as they are done (write-ahead log): a
killed process loses nothing finished, and several processes may measure at once. A routine that failed has the reason
instead of a time.

Every field that is read is checked; damage raises an error with one line of advice.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nnstretch.devices.base.description import Description, description_of
from nnstretch.devices.base.routine import Parameters
from nnstretch.errors import FileError
from nnstretch.scheduler.measurement.store.rows import (
    CacheState,
    Measurement,
    Row,
    checked_parameters,
    identity,
    parameters_key,
    record_of,
    row_of,
)
from nnstretch.support.settings import cache_dir

log = logging.getLogger(__name__)

FORMAT = 2
"""Version of the tables, SQLite's `user_version`. 0 is a file without tables, or one of the first version."""

_PATIENCE = 30.0  # seconds to wait for another process that has locked the store

_TABLE = """
CREATE TABLE IF NOT EXISTS measurement (
    processor  TEXT NOT NULL,
    workload   TEXT NOT NULL,
    routine    TEXT NOT NULL,
    parameters TEXT NOT NULL,
    state      TEXT NOT NULL,
    seconds    REAL,
    low        REAL,
    high       REAL,
    error      REAL,
    failure    TEXT,
    samples    TEXT NOT NULL,
    clock      REAL,
    version    TEXT NOT NULL,
    measured   REAL NOT NULL,
    PRIMARY KEY (processor, workload, routine, parameters, state)
) WITHOUT ROWID
"""
# A table of its own: measurements can be used without it.
_DESCRIPTIONS = """
CREATE TABLE IF NOT EXISTS processor (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    description TEXT NOT NULL
) WITHOUT ROWID
"""
_INSIDE = "* in " + 16 * "[0-9a-f]"
"""Workloads of layers that were timed inside a network."""
_INSERT = "INSERT OR REPLACE INTO measurement VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)"

# The first version had no cache states. It measured layers with at least 256 KiB of weights out of memory, but did not
# store the size; the migration takes all layers with weights for those.
_MIGRATION = """
INSERT OR IGNORE INTO measurement
SELECT processor, workload, routine, parameters, CASE WHEN instr(workload, '"constants":[]') THEN 'l3' ELSE 'memory' END,
       seconds, NULL, NULL, NULL, failure, samples, NULL, '', measured
FROM measurement_1
"""


class ProfileStore:
    """Measurements on disk. Thread-safe; several processes may share one file.

    All methods raise FileError if the file cannot be read or written, stays locked or is damaged, or if the disk is full.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Opens (and creates) the store at `path`, by default `profiles.sqlite` in the cache directory.

        Raises:
            FileError: the file cannot be opened, is not a profile store, or is of a newer version.
        """
        self.path = path or cache_dir() / "profiles.sqlite"
        self._lock = threading.Lock()
        with self._errors("open"):
            self._database = sqlite3.connect(
                self.path, timeout=_PATIENCE, check_same_thread=False, isolation_level=None
            )
        try:
            with self._errors("open"):
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=NORMAL")
                with self._transaction():
                    self._make_tables()
                    self._database.execute(_DESCRIPTIONS)
        except FileError:
            self._database.close()
            raise

    # -- rows ----------------------------------------------------------------------------------------------------

    def get(
        self, processor: str, workload: str, routine: str, parameters: Parameters, state: CacheState = "warm"
    ) -> Measurement | None:
        """The measurement of a routine on a workload in a cache state, or None.

        A failure in another state counts in this state too.
        """
        key = (processor, workload, routine, parameters_key(parameters))
        with self._lock, self._errors("read"):
            found = self._database.execute(
                "SELECT * FROM measurement WHERE processor=? AND workload=? AND routine=? AND parameters=? "
                "AND (state=? OR failure IS NOT NULL) ORDER BY state=? DESC LIMIT 1",
                (*key, state, state),
            ).fetchone()
        return self._row(found).measurement if found else None

    def put(
        self, processor: str, workload: str, routine: str, parameters: Parameters, measurement: Measurement
    ) -> None:
        """Writes a measurement; replaces an older one."""
        self.put_all([Row(processor, workload, routine, parameters, measurement)])

    def put_all(self, rows: Iterable[Row]) -> None:
        """Writes measurements in one transaction; replaces older ones."""
        records = [record_of(row) for row in rows]
        with self._lock, self._errors("write"), self._transaction():
            self._database.executemany(_INSERT, records)

    def remove(self, rows: Iterable[tuple[str, str, str, Parameters]]) -> None:
        """Removes measurements by (processor, workload, routine, parameters), in every cache state."""
        with self._lock, self._errors("write"), self._transaction():
            self._database.executemany(
                "DELETE FROM measurement WHERE processor=? AND workload=? AND routine=? AND parameters=?",
                [(*names, parameters_key(parameters)) for *names, parameters in rows],
            )

    def rows(self, processor: str | None = None) -> Iterator[Row]:
        """A snapshot of all measurements in the order of their keys, with failures.

        Args:
            processor: fingerprint of the only processor to include; all if None.
        """
        with self._lock, self._errors("read"):
            records = self._database.execute(
                "SELECT * FROM measurement WHERE ?1 IS NULL OR processor=?1", (processor,)
            ).fetchall()
        for record in records:
            yield self._row(record)

    def workloads(self, processor: str) -> set[str]:
        """The workloads that were measured on a processor, those of failures included."""
        with self._lock, self._errors("read"):
            records = self._database.execute(
                "SELECT DISTINCT workload FROM measurement WHERE processor=?", (processor,)
            ).fetchall()
        return {str(workload) for (workload,) in records}

    def count_alone(self, processor: str, widest: float) -> int:
        """Number of a processor's times of layers outside of networks.

        Args:
            processor: fingerprint.
            widest: largest width of an interval, as a share of the time, of those that count.
        """
        with self._lock, self._errors("read"):
            found = self._database.execute(
                "SELECT COUNT(*) FROM measurement WHERE processor=? AND seconds > 0 AND workload NOT GLOB ? "
                "AND (low IS NULL OR high IS NULL OR high - low <= ? * seconds)",
                (processor, _INSIDE, widest),
            ).fetchone()
        return int(found[0])

    def fastest(self, processor: str) -> dict[tuple[str, str], list[Parameters]]:
        """(workload, routine) -> the fastest parameters in each cache state, without duplicates, on a processor."""
        with self._lock, self._errors("read"):
            records = self._database.execute(
                "SELECT workload, routine, parameters, MIN(seconds) FROM measurement "
                "WHERE processor=? AND seconds IS NOT NULL GROUP BY workload, routine, state",
                (processor,),
            ).fetchall()
        found: dict[tuple[str, str], list[Parameters]] = {}
        with self._damage():
            for workload, routine, text, _ in records:
                parameters = checked_parameters(json.loads(str(text)))
                known = found.setdefault((str(workload), str(routine)), [])
                if parameters not in known:
                    known.append(parameters)
        return found

    def reference_gflops(self, processor: str) -> list[float]:
        """Distinct GFLOP/s at the reference frequencies of a processor's measurements."""
        with self._lock, self._errors("read"):
            records = self._database.execute(
                "SELECT DISTINCT clock FROM measurement WHERE processor=? AND clock IS NOT NULL", (processor,)
            ).fetchall()
        with self._damage():
            return [float(clock) for (clock,) in records]

    def clear(self, processor: str | None = None) -> int:
        """Removes all measurements, or those of one processor; returns their number."""
        with self._lock, self._errors("write"), self._transaction():
            return self._database.execute(
                "DELETE FROM measurement WHERE ?1 IS NULL OR processor=?1", (processor,)
            ).rowcount

    def merge(self, rows: Iterable[Row]) -> int:
        """Adds measurements that are unknown or newer than the known ones; returns their number."""
        known = {(*identity(row), row.measurement.state): row.measurement.when for row in self.rows()}
        taken = [r for r in rows if r.measurement.when > known.get((*identity(r), r.measurement.state), -math.inf)]
        self.put_all(taken)
        return len(taken)

    # -- processors ----------------------------------------------------------------------------------------------

    def describe(self, descriptions: Iterable[Description]) -> None:
        """Writes descriptions of processors; replaces those with the same fingerprints."""
        records = [(one.fingerprint, json.dumps(one.to_json(), sort_keys=True)) for one in descriptions]
        known = {one.fingerprint: one for one in self.descriptions()}
        if all(known.get(fingerprint) == _description(text) for fingerprint, text in records):
            return
        with self._lock, self._errors("write"), self._transaction():
            self._database.executemany("INSERT OR REPLACE INTO processor VALUES (?,?)", records)

    def descriptions(self) -> list[Description]:
        """Descriptions of processors, in the order of their fingerprints."""
        with self._lock, self._errors("read"):
            records = self._database.execute("SELECT description FROM processor ORDER BY fingerprint").fetchall()
        with self._damage():
            return [_description(str(text)) for (text,) in records]

    def __len__(self) -> int:
        with self._lock, self._errors("read"):
            return int(self._database.execute("SELECT COUNT(*) FROM measurement").fetchone()[0])

    def close(self) -> None:
        """Closes the file; the store cannot be used afterwards."""
        with self._lock, self._errors("close"):
            self._database.close()

    # -- the file ------------------------------------------------------------------------------------------------

    def _make_tables(self) -> None:
        """Creates the tables, or migrates those of an older version."""
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if version == FORMAT:
            return
        if version > FORMAT:
            raise FileError(
                f"profile store {self.path} is of version {version}, this nnstretch knows {FORMAT}; "
                "upgrade nnstretch or set NNSTRETCH_CACHE_DIR"
            )
        if tables - {"measurement"} or version not in (0, 1):
            raise FileError(f"{self.path} is a database but no profile store; move it away or set NNSTRETCH_CACHE_DIR")
        if tables:
            self._database.execute("ALTER TABLE measurement RENAME TO measurement_1")
        self._database.execute(_TABLE)
        if tables:
            taken = self._database.execute(_MIGRATION).rowcount
            self._database.execute("DROP TABLE measurement_1")
            log.warning("profile store %s: %d measurements of an older version were taken over", self.path, taken)
        self._database.execute(f"PRAGMA user_version={FORMAT}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turns SQLite's errors into FileError."""
        try:
            yield
        except sqlite3.Error as error:
            raise FileError(f"cannot {verb} profile store {self.path}: {error}; {_advice(error)}") from error

    def _row(self, record: Sequence[object]) -> Row:
        with self._damage():
            return row_of(record)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turns invalid records into FileError."""
        try:
            yield
        except ValueError as error:
            raise FileError(
                f"profile store {self.path} is damaged: {error}; move it away or set NNSTRETCH_CACHE_DIR"
            ) from error


def _advice(error: sqlite3.Error) -> str:
    text = str(error)
    if "full" in text:
        return "free disk space and run it again; finished measurements are kept"
    if "locked" in text:
        return "another process holds it; wait for that to end or set NNSTRETCH_CACHE_DIR"
    if "readonly" in text or "unable to open" in text:
        return "make it writable or set NNSTRETCH_CACHE_DIR"
    return "move it away or set NNSTRETCH_CACHE_DIR"


def _description(text: str) -> Description:
    return description_of(json.loads(text))
