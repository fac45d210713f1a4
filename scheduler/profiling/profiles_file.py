"""Profile stores as JSON files: to look at, to carry to another machine, to merge.

    {"format": "nnstretch-profiles", "version": 2, "measurements": [
        {"processor", "workload", "routine", "parameters", "state", "seconds", "low", "high", "error", "failure", "samples",
         "clock", "version", "measured"}, …]}

Times are in seconds, "measured" since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from nnstretch.errors import FileError
from nnstretch.scheduler.profiling.store import FORMAT, ProfileStore, Row, checked_row, row_fields
from nnstretch.settings import atomic_write

NAME = "nnstretch-profiles"
_SQLITE = b"SQLite format 3\x00"
_LARGEST = 2 << 30  # bytes of a file that is read as a whole


def write_rows(rows: Iterable[Row], path: Path) -> int:
    """Writes measurements to a JSON file and returns how many.

    Raises:
        FileError: it cannot be written.
    """
    measurements = [row_fields(row) for row in rows]
    text = json.dumps({"format": NAME, "version": FORMAT, "measurements": measurements}, indent=1, allow_nan=False)
    with atomic_write(path) as file:
        file.write(text.encode())
    return len(measurements)


def read_rows(path: Path) -> list[Row]:
    """The measurements of a JSON file or of another profile store, every field checked.

    Raises:
        FileError: it cannot be read or is neither; says where.
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


def _of_store(path: Path) -> list[Row]:
    store = ProfileStore(path)
    try:
        return list(store.rows())
    finally:
        store.close()


def _of_json(path: Path, data: bytes) -> list[Row]:
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
    rows: list[Row] = []
    for number, fields in enumerate(raw["measurements"]):
        try:
            if not isinstance(fields, dict):
                raise ValueError("it is no object")
            rows.append(checked_row(fields))
        except ValueError as error:
            raise FileError(f"{path}: measurement {number} is damaged: {error}; export it again") from error
    return rows
