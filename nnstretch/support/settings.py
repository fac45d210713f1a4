"""Settings from the environment, and the few places on disk that nnstretch writes to by itself.

==========================  ===========================================================================
NNSTRETCH_CACHE_DIR         where the engine, OpenCL kernels and the profile store live
NNSTRETCH_CPU_FEATURES      CPU features to hide, for tests and debugging: "-fma,-avx512f"; the engine reads it, too
NNSTRETCH_TRANSFER_DELAY_US microseconds that the engine adds to every transfer between processors, for experiments
NNSTRETCH_COMMAND_BUFFERS   "1": OpenCL queues record kernels where the driver can do that; "0": none does; models for C, too
NNSTRETCH_CORE_SPEEDS       relative speeds that the engine gives cores, for experiments: "1:0.5" halves that of core 1
NNSTRETCH_CC                C compiler command used instead of the ziglang wheel's clang
NNSTRETCH_REQUIRE_OPENCL    "1": tests that need an OpenCL device fail instead of being skipped
NNSTRETCH_KILLS             how often tests kill tuning, training, search and sweeps; by default seldom, without search
==========================  ===========================================================================
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

import platformdirs

from nnstretch.errors import FileError, UsageError

log = logging.getLogger(__name__)
TEMPORARY_PREFIX, TEMPORARY_SUFFIX = ".nnstretch-", ".part"
"""Of the names of temporary files beside those that are written."""
_STALE = 24 * 3600
"""Seconds after which nobody writes to a temporary file any more."""
MOST_TRANSFER_DELAY_US = 1_000_000
LEAST_CORE_SPEED = 0.01
NO_ROOM = frozenset({errno.EDQUOT, errno.EFBIG, errno.ENOSPC})
"""Numbers of the errors of a disk, quota or limit that is used up."""


def cache_dir(inside: str = "") -> Path:
    """Directory for files that can be made again, or one inside it: created on first use.

    NNSTRETCH_CACHE_DIR names it. Without that it is the user's cache directory or, where that cannot be written, a
    temporary one.

    Raises:
        FileError: it cannot be created.
    """
    configured = os.environ.get("NNSTRETCH_CACHE_DIR")
    path = (Path(configured) if configured else _own_cache_dir()) / inside
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot create cache directory {path}: {error.strerror}; set NNSTRETCH_CACHE_DIR to a writable one"
        ) from error
    return path


def searches_dir() -> Path:
    """Directory for what searches of designs have found, a JSON file each. Raises as `cache_dir` does."""
    return cache_dir("searches")


@cache
def _own_cache_dir() -> Path:
    """The user's cache directory, or a temporary one that this process and those that it starts share."""
    path = Path(platformdirs.user_cache_dir("nnstretch"))
    if _is_writable(path):
        return path
    temporary = _temporary_cache_dir(path)
    os.environ["NNSTRETCH_CACHE_DIR"] = str(temporary)
    log.warning(
        "the cache directory %s cannot be written; %s is used: set NNSTRETCH_CACHE_DIR to choose another",
        path,
        temporary,
    )
    return temporary


def caches_of_libraries() -> dict[str, str]:
    """Environment variables for libraries with caches of their own, where the user's cache directory cannot be written.

    The ziglang wheel's compiler gets another cache, pyopencl none. Both fail otherwise.
    """
    if _is_writable(Path(platformdirs.user_cache_dir())):
        return {}
    return {"PYOPENCL_NO_CACHE": "true", "ZIG_GLOBAL_CACHE_DIR": str(cache_dir("engine/zig"))}


def _is_writable(path: Path) -> bool:
    """Whether files can be written to a directory, which is created if it can be."""
    with suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
    return os.access(path, os.W_OK | os.X_OK)


def _temporary_cache_dir(original: Path) -> Path:
    """A temporary cache directory, with what can be read of the original one: the same in the next process, if that is safe.

    Engines are loaded from there, so a directory that another user could have made or changed is not taken.
    """
    folder = Path(tempfile.gettempdir())
    shared = folder / f"nnstretch-{os.getuid()}"
    if not shared.exists():
        made = Path(tempfile.mkdtemp(prefix="nnstretch-", dir=folder))
        with suppress(OSError, shutil.Error):
            shutil.copytree(original, made, ignore=shutil.ignore_patterns("objects"), dirs_exist_ok=True)
        made.chmod(stat.S_IRWXU)
        with suppress(OSError):
            made.rename(shared)
    status = shared.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return shared
    return Path(tempfile.mkdtemp(prefix="nnstretch-", dir=folder))


def compiler_override() -> list[str] | None:
    """The C compiler command of NNSTRETCH_CC, split like a shell does, or None."""
    configured = os.environ.get("NNSTRETCH_CC")
    return shlex.split(configured) if configured else None


def android_ndk() -> Path | None:
    """The folder of Android's NDK that ANDROID_NDK_HOME names, or None."""
    configured = os.environ.get("ANDROID_NDK_HOME")
    return Path(configured).absolute() if configured else None


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


def transfer_delay_us() -> float:
    """Microseconds that the engine adds to every transfer between processors; 0 without NNSTRETCH_TRANSFER_DELAY_US.

    Raises:
        UsageError: it is not a number from 0 to 1,000,000.
    """
    text = os.environ.get("NNSTRETCH_TRANSFER_DELAY_US", "0") or "0"
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= MOST_TRANSFER_DELAY_US:
        raise UsageError(
            f"NNSTRETCH_TRANSFER_DELAY_US={text}: give a number of microseconds from 0 to {MOST_TRANSFER_DELAY_US}"
        )
    return found


def command_buffers_setting() -> bool | None:
    """Whether OpenCL queues record kernels as command buffers; None without NNSTRETCH_COMMAND_BUFFERS: as tests found.

    Raises:
        UsageError: it is neither 0 nor 1.
    """
    text = os.environ.get("NNSTRETCH_COMMAND_BUFFERS", "")
    if text not in ("", "0", "1"):
        raise UsageError(f"NNSTRETCH_COMMAND_BUFFERS={text}: give 1 to record kernels, or 0 to enqueue them one by one")
    return text == "1" if text else None


def core_speeds() -> dict[int, float]:
    """Speeds below 1 that the engine gives cores, by core; empty without NNSTRETCH_CORE_SPEEDS.

    A thread of such a core computes at full speed, then waits until 1 / speed times as long has passed.

    Raises:
        UsageError: the text is no list of cores with a speed from 0.01 to 1 each, or names a core twice.
    """
    text = os.environ.get("NNSTRETCH_CORE_SPEEDS", "")
    found: dict[int, float] = {}
    for entry in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d{1,5}):(\d+(?:\.\d+)?)", entry)
        if match is None or int(match[1]) in found or not LEAST_CORE_SPEED <= float(match[2]) <= 1:
            raise UsageError(
                f"NNSTRETCH_CORE_SPEEDS={text}: write CORE:SPEED for each core, with speeds from {LEAST_CORE_SPEED} to 1, "
                "as in 1:0.5,3:0.25"
            )
        found[int(match[1])] = float(match[2])
    return {core: speed for core, speed in found.items() if speed < 1}


@cache
def remove_stale(
    folder: Path, prefix: str = TEMPORARY_PREFIX, suffix: str = TEMPORARY_SUFFIX, age: float = _STALE
) -> None:
    """Removes what killed processes left in a folder: this user's old temporary files and folders.

    Looks once per process, and removes what it can.

    Args:
        folder: where they are.
        prefix: begin of their names.
        suffix: end of their names.
        age: seconds since their last change, from which on they are old; 0 where this process alone writes.
    """
    with suppress(OSError, ValueError):
        for entry in os.scandir(folder):
            if entry.name.startswith(prefix) and entry.name.endswith(suffix):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid != os.getuid() or status.st_mtime > time.time() - age:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.is_file(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)


def check_replaceable(path: Path, option: str = "-o") -> None:
    """Refuses a path whose place a file must not take: a device such as /dev/null, a pipe or a socket.

    Args:
        path: of the file to be written.
        option: that names it.

    Raises:
        FileError: it is one.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # nothing is there, or writing will say why not
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileError(f"cannot write {path}: it is a device or pipe, not a file; choose another place with {option}")


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Binary file that appears at `path` complete or not at all.

    Writes go to a temporary file beside `path`, which is flushed to disk and renamed when the block ends without an
    exception, and removed otherwise (Ctrl-C included). Old temporary files of killed processes are removed, too.

    Raises:
        FileError: the directory is missing or not writable, the disk is full, or `path` is a device.
    """
    check_replaceable(path)
    remove_stale(path.parent)
    try:
        descriptor, temporary = tempfile.mkstemp(
            prefix=f"{TEMPORARY_PREFIX}{path.name}.", suffix=TEMPORARY_SUFFIX, dir=path.parent
        )
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; choose another place with -o") from error
    except ValueError as error:  # a null byte
        raise FileError(f"cannot write {str(path)!r}: {error}; choose another place with -o") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        advice = "; free some space or choose another place" if error.errno in NO_ROOM else ""
        raise FileError(f"cannot write {path}: {error.strerror}{advice}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file, in UTF-8, that appears complete or not at all.

    Raises:
        FileError: the directory is missing or not writable, or the disk is full.
    """
    with atomic_write(path) as file:
        file.write(text.encode())
