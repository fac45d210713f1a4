"""The profile store: finished measurements survive the process, and damaged files raise errors."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nnstretch.errors import FileError
from nnstretch.scheduler.measurement.store.rows import CacheState, Measurement, Row, checked_row, row_fields
from nnstretch.scheduler.measurement.store.store import FORMAT, ProfileStore

FULL = Measurement(0.5, (0.4, 0.5, 0.6), None, (0.4, 0.6), 1e-6, "memory", 118.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.sqlite"


def test_round_trip_and_parameter_order(path: Path) -> None:
    store = ProfileStore(path)
    store.put("p", "w", "r", {"b": 2, "a": 1}, FULL)
    assert store.get("p", "w", "r", {"a": 1, "b": 2}, "memory") == FULL
    assert store.get("p", "w", "r", {"a": 1, "b": 2}, "l3") is None
    assert store.get("p", "w", "r", {"a": 1}, "memory") is None
    store.put("p", "w", "r", {}, Measurement(None, failure="did not build"))
    assert store.get("p", "w", "r", {}) == Measurement(None, (), "did not build")
    assert store.get("p", "w", "r", {}, "memory") == Measurement(None, (), "did not build")  # in every state
    store.close()
    assert len(ProfileStore(path)) == 2


def test_the_store_has_a_write_ahead_log(path: Path) -> None:
    """Readers and a writer do not wait for each other; the mode stays with the file."""
    with closing(ProfileStore(path)), closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_rows_and_clear(path: Path) -> None:
    store = ProfileStore(path)
    before = time.time()
    store.put_all([Row("p", "w", "r", {"a": 1}, FULL), Row("q", "w", "r", {}, Measurement(None, failure="no"))])
    first, second = store.rows()
    assert (first.processor, first.workload, first.routine, first.parameters) == ("p", "w", "r", {"a": 1})
    assert first.measurement == FULL
    assert before <= first.measurement.when <= time.time()
    assert second.measurement.failure == "no"
    assert [row.processor for row in store.rows("q")] == ["q"]
    assert store.clear("p") == 1
    assert [row.processor for row in store.rows()] == ["q"]
    assert store.clear() == 1
    assert len(store) == 0


def test_the_fastest_parameters_of_every_state(path: Path) -> None:
    store = ProfileStore(path)
    states: list[CacheState] = ["warm", "warm", "memory", "l3"]
    for tile, (state, seconds) in enumerate(zip(states, (2.0, 1.0, 3.0, 4.0), strict=True)):
        store.put("p", "w", "r", {"tile": tile}, Measurement(seconds, (seconds,), state=state))
    store.put("p", "w", "r", {"tile": 1}, Measurement(5.0, (5.0,), state="l3"))
    store.put("p", "w", "failed", {}, Measurement(None, failure="no"))
    store.put("q", "w", "r", {"tile": 9}, Measurement(0.1, (0.1,)))
    (found,) = store.fastest("p").items()
    assert found[0] == ("w", "r")
    assert sorted(setting["tile"] for setting in found[1]) == [1, 2, 3]


def test_merge_takes_what_is_newer(path: Path) -> None:
    store = ProfileStore(path)
    old, new = replace(FULL, when=100.0), replace(FULL, seconds=0.7, when=200.0)
    assert store.merge([Row("p", "w", "r", {}, old), Row("p", "w", "s", {}, new)]) == 2
    assert store.merge([Row("p", "w", "r", {}, new), Row("p", "w", "s", {}, replace(old, seconds=0.1))]) == 1
    assert [row.measurement.seconds for row in store.rows()] == [0.7, 0.7]


def test_rows_survive_json() -> None:
    row = Row("p", "w", "r", {"a": 1}, replace(FULL, when=5.0))
    back = checked_row(row_fields(row))
    assert back == row
    assert back.measurement.when == 5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"seconds": "fast"},
        {"seconds": True},
        {"seconds": None},
        {"failure": "and a time"},
        {"state": "cold"},
        {"samples": "0.1"},
        {"samples": [0.1, None]},
        {"parameters": {"a": 1.5}},
        {"parameters": [1]},
        {"workload": ""},
        {"routine": 3},
        {"processor": None},
        {"clock": float("inf")},
    ],
)
def test_fields_of_a_row_are_checked(wrong: dict[str, object]) -> None:
    fields = row_fields(Row("p", "w", "r", {"a": 1}, FULL))
    checked_row(fields)
    with pytest.raises(ValueError, match=r".{10}"):
        checked_row({**fields, **wrong})


# -- what may be at the path ---------------------------------------------------------------------------------------


def no_database(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be looked at as one" * 50)


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE people (name TEXT)")


def newer_version(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version={FORMAT + 1}")


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (no_database, "not a database"),
        (other_database, "no profile store"),
        (newer_version, "upgrade"),
        (folder, "unable to open"),
    ],
)
def test_files_that_are_no_store(path: Path, make: Callable[[Path], None], says: str) -> None:
    make(path)
    with pytest.raises(FileError, match=says) as error:
        ProfileStore(path)
    assert "NNSTRETCH_CACHE_DIR" in str(error.value)


def test_a_damaged_row(path: Path) -> None:
    store = ProfileStore(path)
    store.put("p", "w", "r", {}, FULL)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE measurement SET samples='[1, 2'")
    with pytest.raises(FileError, match="damaged"):
        store.get("p", "w", "r", {}, "memory")
    with pytest.raises(FileError, match="damaged"):
        list(store.rows())


def test_damaged_pages(path: Path) -> None:
    store = ProfileStore(path)
    store.put_all([Row("p", str(i), "r", {}, FULL) for i in range(500)])
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 8] = b"\xff" * (4096 * 6)
    path.write_bytes(bytes(data))
    with pytest.raises(FileError, match="profile store"):
        list(ProfileStore(path).rows())


def test_a_store_of_the_first_version_is_taken_over(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE measurement (processor TEXT NOT NULL, workload TEXT NOT NULL, routine TEXT NOT NULL, "
            "parameters TEXT NOT NULL, seconds REAL, samples TEXT NOT NULL, failure TEXT, measured REAL NOT NULL, "
            "PRIMARY KEY (processor, workload, routine, parameters)) WITHOUT ROWID"
        )
        rows = [
            ("p", '{"op":"Conv","constants":[1]}', "r", '{"a":1}', 0.5, "[0.5, 0.6]", None, 7.0),
            ("p", '{"op":"Add","constants":[]}', "r", "{}", None, "[]", "too slow", 8.0),
        ]
        database.executemany("INSERT INTO measurement VALUES (?,?,?,?,?,?,?,?)", rows)
    store = ProfileStore(path)
    assert "2 measurements" in caplog.text
    assert store.get("p", '{"op":"Conv","constants":[1]}', "r", {"a": 1}, "memory") == Measurement(
        0.5, (0.5, 0.6), state="memory"
    )
    assert store.get("p", '{"op":"Add","constants":[]}', "r", {}) == Measurement(None, failure="too slow", state="l3")
    store.close()
    assert len(ProfileStore(path)) == 2


def test_read_only(path: Path) -> None:
    store = ProfileStore(path)
    store._database.execute("PRAGMA query_only=1")
    with pytest.raises(FileError, match="make it writable"):
        store.put("p", "w", "r", {}, FULL)


def test_full_disk(path: Path) -> None:
    store = ProfileStore(path)
    store.put("p", "first", "r", {}, FULL)
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(FileError, match="free disk space"):
        store.put_all([Row("p", str(i), "r", {}, FULL) for i in range(1000)])
    assert [row.workload for row in store.rows()] == ["first"]  # all or none


def test_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.scheduler.measurement.store.store._PATIENCE", 0.05)
    store = ProfileStore(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(FileError, match="another process"):
        store.put("p", "w", "r", {}, FULL)
    other.execute("COMMIT")
    store.put("p", "w", "r", {}, FULL)


# -- killed processes ----------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from nnstretch.scheduler.measurement.store.store import Measurement, ProfileStore
store = ProfileStore(Path(sys.argv[1]))
for i in range(100_000):
    store.put(sys.argv[2], str(i), "r", {}, Measurement(float(i)))
    print(i, flush=True)
"""


@pytest.mark.slow
def test_killed_writers_lose_nothing_finished(path: Path) -> None:
    ProfileStore(path).close()
    rng = random.Random(0)
    for attempt in range(6):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"{attempt}.{k}"], stdout=subprocess.PIPE)
            for k in range(2)
        ]
        for writer in writers:  # both are at work
            assert writer.stdout is not None and writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.2))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        counts = [1 + writer.communicate()[0].count(b"\n") for writer in writers]
        store = ProfileStore(path)
        for k, count in enumerate(counts):
            for i in range(count):
                assert store.get(f"{attempt}.{k}", str(i), "r", {}) == Measurement(float(i))
        (check,) = store._database.execute("PRAGMA integrity_check").fetchone()
        assert check == "ok"
        store.close()
