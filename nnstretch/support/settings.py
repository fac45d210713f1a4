"""Settings from the environment, and the few places on disk that nnstretch writes to by itself.

==========================  ===========================================================================
NNSTRETCH_CACHE_DIR         where the engine, OpenCL kernels and the profile store live
NNSTRETCH_CPU_FEATURES      CPU features to hide, for tests and debugging: "-fma,-avx512f"; the engine reads it, too
NNSTRETCH_CC                C compiler command used instead of the ziglang wheel's clang
NNSTRETCH_REQUIRE_OPENCL    "1": tests that need an OpenCL device fail instead of being skipped
==========================  ===========================================================================
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import platformdirs

from nnstretch.errors import FileError, UsageError


def cache_dir(inside: str = "") -> Path:
    """Directory for files that can be made again, or one inside it: created on first use.

    Raises:
        FileError: it cannot be created or written.
    """
    configured = os.environ.get("NNSTRETCH_CACHE_DIR")
    path = (Path(configured) if configured else Path(platformdirs.user_cache_dir("nnstretch"))) / inside
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot create cache directory {path}: {error.strerror}; set NNSTRETCH_CACHE_DIR to a writable one"
        ) from error
    return path


def compiler_override() -> list[str] | None:
    """The C compiler command of NNSTRETCH_CC, split like a shell does, or None."""
    configured = os.environ.get("NNSTRETCH_CC")
    return shlex.split(configured) if configured else None


def hidden_cpu_features() -> frozenset[str]:
    """The names that NNSTRETCH_CPU_FEATURES lists.

    Raises:
        UsageError: an entry does not begin with a minus: features can be hidden, not added.
    """
    entries = [entry for entry in os.environ.get("NNSTRETCH_CPU_FEATURES", "").split(",") if entry]
    for entry in entries:
        if not entry.startswith("-"):
            raise UsageError(f"NNSTRETCH_CPU_FEATURES has {entry!r}; write -NAME, as in -fma,-avx512f")
    return frozenset(entry[1:] for entry in entries)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Binary file that appears at `path` complete or not at all.

    Writes go to a temporary file beside `path`, which is flushed to disk and renamed when the block ends without an
    exception, and removed otherwise (Ctrl-C included).

    Raises:
        FileError: the directory is missing or not writable, or the disk is full.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, in UTF-8, that appears complete or not at all.

    Raises:
        FileError: the directory is missing or not writable, or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(text.encode())
