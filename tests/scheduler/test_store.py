"""The profile store: what is finished stays, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nnstretch.errors import FileError
from nnstretch.scheduler.store import Measurement, ProfileStore


def test_round_trip_and_parameter_order(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    store.put("p", "w", "r", {"b": 2, "a": 1}, Measurement(0.5, (0.4, 0.5, 0.6)))
    assert store.get("p", "w", "r", {"a": 1, "b": 2}) == Measurement(0.5, (0.4, 0.5, 0.6))
    assert store.get("p", "w", "r", {"a": 1}) is None
    store.put("p", "w", "r", {}, Measurement(None, failure="did not build"))
    assert store.get("p", "w", "r", {}) == Measurement(None, (), "did not build")
    store.close()
    assert len(ProfileStore(tmp_path / "p.sqlite")) == 2


def test_not_a_store(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(b"this is no database, and long enough to be looked at as one" * 50)
    with pytest.raises(FileError, match="profile store"):
        ProfileStore(path)


WRITER = """
import sys
from pathlib import Path
from nnstretch.scheduler.store import Measurement, ProfileStore
store = ProfileStore(Path(sys.argv[1]))
for i in range(100_000):
    store.put(sys.argv[2], str(i), "r", {}, Measurement(float(i)))
    print(i, flush=True)
"""


@pytest.mark.slow
def test_killed_writers_lose_nothing_finished(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    ProfileStore(path).close()
    finished: list[int] = []
    for attempt in range(6):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), f"{attempt}.{k}"], stdout=subprocess.PIPE, text=True
            )
            for k in range(2)
        ]
        time.sleep(0.4 + 0.05 * attempt)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
        finished = [len(writer.communicate()[0].splitlines()) for writer in writers]
        store = ProfileStore(path)
        for k, count in enumerate(finished):
            for i in range(count):
                assert store.get(f"{attempt}.{k}", str(i), "r", {}) == Measurement(float(i))
        store.close()
    assert any(finished)
