"""Profile stores as JSON: what is written is read back, and what is wrong with a file is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnstretch.errors import FileError
from nnstretch.scheduler.profiling.profiles_file import read_rows, write_rows
from nnstretch.scheduler.profiling.store import Measurement, ProfileStore, Row

ROWS = [
    Row("p", "w", "r", {"a": 1}, Measurement(0.5, (0.4, 0.5), None, (0.4, 0.5), 1e-7, "l3", 100.0, when=3.0)),
    Row("p", "w", "s", {}, Measurement(None, failure="killed by signal 11", when=4.0)),
]


def test_rows_through_json(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert write_rows(ROWS, path) == 2
    assert read_rows(path) == ROWS
    assert [row.measurement.when for row in read_rows(path)] == [3.0, 4.0]
    assert json.loads(path.read_text())["format"] == "nnstretch-profiles"


def test_rows_of_another_store(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    store.put_all(ROWS)
    store.close()
    assert read_rows(tmp_path / "p.sqlite") == ROWS


GOOD = {"format": "nnstretch-profiles", "version": 2, "measurements": []}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "neither JSON"),
        ("[" * 100_000, "neither JSON"),
        ("\ud800", "neither JSON"),
        ("[]", "no profiles"),
        ('{"format": "nnstretch-plan"}', "no profiles"),
        (json.dumps({**GOOD, "measurements": {}}), "no profiles"),
        (json.dumps({**GOOD, "version": 3}), "version 3"),
        (json.dumps({**GOOD, "measurements": [7]}), "measurement 0 is damaged"),
        (json.dumps({**GOOD, "measurements": [{"processor": "p"}]}), "measurement 0 is damaged"),
    ],
)
def test_files_that_hold_no_profiles(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileError, match=says):
        read_rows(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_rows(tmp_path / "missing.json")
    with pytest.raises(FileError, match="cannot read"):
        read_rows(tmp_path)
