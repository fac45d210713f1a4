"""Profile stores as JSON files, to inspect, to merge or to use on another machine.

    {"format": "nnstretch-profiles", "version": 2, "measurements": [
        {"processor", "workload", "routine", "parameters", "state", "seconds", "low", "high", "error", "failure", "samples",
         "clock", "version", "measured"}, …],
     "processors": [{"fingerprint", "name", "kind", "device", "block", "index", "cores", "ratios", "isa", "compute_units",
         "registers"}, …]}

Times are in seconds, "measured" since 1970. "processor" of a measurement is a fingerprint. Files of earlier versions
have no "processors": they can be merged, but do not suffice to predict latencies elsewhere.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from nnstretch.devices.base.description import Description, description_of
from nnstretch.errors import FileError
from nnstretch.scheduler.measurement.store.rows import Row, checked_row, row_fields
from nnstretch.scheduler.measurement.store.store import FORMAT, ProfileStore
from nnstretch.support.settings import TEMPORARY_PREFIX, atomic_write

NAME = "nnstretch-profiles"
_SQLITE = b"SQLite format 3\x00"
_LARGEST = 2 << 30  # bytes; files are read as a whole


@dataclass(frozen=True)
class Profiles:
    """Measurements, and descriptions of their processors."""

    rows: Sequence[Row]
    processors: Sequence[Description] = ()


def stored_profiles(store: ProfileStore) -> Profiles:
    """The contents of a store."""
    return Profiles(list(store.rows()), store.descriptions())


def write_profiles(profiles: Profiles, path: Path) -> None:
    """Writes measurements and processors to a JSON file.

    Raises:
        FileError: the file cannot be written.
    """
    fields = {
        "format": NAME,
        "version": FORMAT,
        "measurements": [row_fields(row) for row in profiles.rows],
        "processors": [processor.to_json() for processor in profiles.processors],
    }
    with atomic_write(path) as file:
        file.write(json.dumps(fields, indent=1, allow_nan=False).encode())


def read_profiles(path: Path) -> Profiles:
    """The contents of a JSON file or of another profile store.

    Raises:
        FileError: the file cannot be read, is neither, or is damaged; the message says where.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return _of_store(path)
        if path.stat().st_size > _LARGEST:
            raise FileError(f"{path} is larger than {_LARGEST >> 30} GiB; export less at a time")
        data = path.read_bytes()
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror}; give a file that `nnstretch profiles export` wrote"
        ) from error
    return _of_json(path, data)


def _of_store(path: Path) -> Profiles:
    """The contents of a store, which is read only: a copy is brought to this version's form."""
    with TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder:
        copy = Path(folder) / path.name
        try:
            with (
                closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise FileError(f"cannot read the profile store {path}: {error}; export it where it was made") from error
        try:
            with closing(ProfileStore(copy)) as store:
                return stored_profiles(store)
        except FileError as error:  # nobody knows the copy
            raise FileError(str(error).replace(str(copy), str(path))) from error


def _of_json(path: Path, data: bytes) -> Profiles:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is neither JSON nor a profile store: {error}; give what `profiles export` wrote"
        ) from error
    if not isinstance(raw, dict) or raw.get("format") != NAME or not isinstance(raw.get("measurements"), list):
        raise FileError(f"{path} holds no profiles; give what `nnstretch profiles export` wrote")
    if raw.get("version") != FORMAT:
        raise FileError(f"{path} is of version {raw.get('version')!r}, this nnstretch reads {FORMAT}; export it again")
    rows = _checked(path, "measurement", raw["measurements"], checked_row)
    processors = raw.get("processors", [])
    if not isinstance(processors, list):
        raise FileError(f"{path}: processors are no list; export it again")
    return Profiles(rows, _checked(path, "processor", processors, description_of))


_Read = TypeVar("_Read")


def _checked(path: Path, what: str, values: Sequence[object], read: Callable[[object], _Read]) -> list[_Read]:
    """Reads all values.

    Raises:
        FileError: a value is damaged; the message says which.
    """
    found: list[_Read] = []
    for number, value in enumerate(values):
        try:
            found.append(read(value))
        except ValueError as error:
            raise FileError(f"{path}: {what} {number} is damaged: {error}; export it again") from error
    return found
