"""Results of expensive evaluations, kept by what they depend on: no design is measured or trained twice.

A folder holds a JSON file per result, and the weights of trained designs. Files appear complete or not at all. Processes that
want the same result at the same time take turns: the first one makes it, the others read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import FileError
from nnstretch.support.locks import locked
from nnstretch.support.settings import write_text


def digest(parts: Mapping[str, Any]) -> str:
    """A short name of what a result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class ResultStore:
    """Results in a folder.

    Attributes:
        folder: created on first use.
    """

    folder: Path

    def get(self, key: str, make: Callable[[], Mapping[str, Any]], needed: Path | None = None) -> dict[str, Any]:
        """The result of this key, which `make` makes if there is none.

        Args:
            key: its name.
            make: makes it, and the file that belongs to it.
            needed: that file; the result is made again if it is gone.

        Raises:
            FileError: the folder cannot be written.
        """
        path = self.folder / f"{key}.json"

        def read() -> dict[str, Any] | None:
            return None if needed is not None and not needed.is_file() else _read(path)

        known = read()
        if known is not None:
            return known
        with self.locked(f"{key}.lock"):
            known = read()
            if known is None:
                known = dict(make())
                write_text(path, json.dumps(known))
        return known

    def weights(self, key: str) -> Path:
        """The file for the weights that belong to a result."""
        return self.folder / f"{key}.safetensors"

    def run_folder(self, key: str) -> Path:
        """The folder for the checkpoints of a training under way."""
        return self.folder / f"{key}.run"

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keeps other processes out that lock the same name; the lock of one that is killed ends with it.

        Raises:
            FileError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / name).open("ab")
        except OSError as error:
            raise FileError(
                f"cannot write to {self.folder}: {error.strerror}; choose another folder with --work"
            ) from error
        with file, locked(file):
            yield


def _read(path: Path) -> dict[str, Any] | None:
    """A result; None if there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
