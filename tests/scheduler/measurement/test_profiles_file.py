"""Profile stores as JSON: round trips, and errors for damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nnstretch.devices.base.description import Description
from nnstretch.errors import FileError
from nnstretch.scheduler.measurement.store.profiles_file import Profiles, read_profiles, write_profiles
from nnstretch.scheduler.measurement.store.rows import Measurement, Row, row_fields
from nnstretch.scheduler.measurement.store.store import ProfileStore

ROWS = [
    Row("p", "w", "r", {"a": 1}, Measurement(0.5, (0.4, 0.5), None, (0.4, 0.5), 1e-7, "l3", 100.0, when=3.0)),
    Row("p", "w", "s", {}, Measurement(None, failure="killed by signal 11", when=4.0)),
]


PROCESSORS = [
    Description("p", "cpu:0-1", "cpu", "A CPU", 16, cores=(0, 1), ratios=(1, 3), isa="x86-64-v4", caches=(1, 9)),
    Description("q", "opencl:1", "opencl", "A GPU", 16, index=1, compute_units=80, registers=4),
]
PROFILES = Profiles(ROWS, PROCESSORS)


def test_profiles_through_json(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_profiles(PROFILES, path)
    assert read_profiles(path) == PROFILES
    assert [row.measurement.when for row in read_profiles(path).rows] == [3.0, 4.0]
    written = json.loads(path.read_text())
    assert written.pop("format") == "nnstretch-profiles"
    del written["processors"]  # as files were before
    path.write_text(json.dumps({"format": "nnstretch-profiles", **written}))
    assert read_profiles(path) == Profiles(ROWS, [])


def test_profiles_of_another_store(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite")
    store.put_all(ROWS)
    store.describe(PROCESSORS[:1])
    store.describe([replace(PROCESSORS[0], name="cpu:2-3"), *PROCESSORS])
    store.close()
    assert read_profiles(tmp_path / "p.sqlite") == PROFILES


CPU = PROCESSORS[0].to_json()
GOOD = {"format": "nnstretch-profiles", "version": 2, "measurements": []}
ROW = json.loads(json.dumps(row_fields(ROWS[0])))


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
        (json.dumps({**GOOD, "measurements": [{**ROW, "seconds": 10**400}]}), "seconds is"),
        (json.dumps({**GOOD, "processors": {}}), "processors are no list"),
        (json.dumps({**GOOD, "processors": [7]}), "processor 0 is damaged: a processor is not an object"),
        (json.dumps({**GOOD, "processors": [{**CPU, "kind": "tpu"}]}), "kind is 'tpu'"),
        (json.dumps({**GOOD, "processors": [CPU, {**CPU, "fingerprint": ""}]}), "processor 1 is damaged: fingerprint"),
        (json.dumps({**GOOD, "processors": [{**CPU, "block": 7}]}), "block is 7"),
        (json.dumps({**GOOD, "processors": [{**CPU, "cores": [True]}]}), "cores is not a list of numbers"),
        (json.dumps({**GOOD, "processors": [{**CPU, "registers": -1}]}), "registers is '-1'"),
    ],
)
def test_files_that_hold_no_profiles(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(FileError, match=says):
        read_profiles(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_profiles(tmp_path / "missing.json")
    with pytest.raises(FileError, match="cannot read"):
        read_profiles(tmp_path)
