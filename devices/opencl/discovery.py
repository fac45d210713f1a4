"""OpenCL drivers that end the process that loads them are found and left out.

OpenCL loads all drivers when it lists their platforms, and a driver that crashes or hangs there would end every command.
So each set of drivers is listed once in a process of its own (`nnstretch.devices.opencl.discovery_worker`). If that process
fails, every driver is listed alone; those that fail again are left out. The result is kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nnstretch.support.settings import cache_dir, write_text
from nnstretch.support.worker_process import WorkerError, WorkerProcess

WORKER = (sys.executable, "-P", "-m", "nnstretch.devices.opencl.discovery_worker")
_VENDORS = Path("/etc/OpenCL/vendors")
_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
"""Where loaders look instead of `_VENDORS`; the first one counts."""
_PREFIXES = ("OCL_", "OPENCL_", "POCL_", "RUSTICL_", "LD_")
"""Environment variables that change what is loaded begin with these."""
_LIBRARIES = Path("/etc/ld.so.cache")
"""Changes when libraries are installed that drivers are named by."""
_TESTS = 1
"""Version of the tests: older results do not count."""
_SECONDS = 60
_FAILURE_COUNTS = 3600  # seconds; a driver may have failed for want of memory

log = logging.getLogger(__name__)


def failing_drivers() -> dict[Path, str]:
    """The .icd files of drivers that cannot be loaded -> one line on why, from the cache or from a test.

    Raises:
        FileError: the cache cannot be written.
    """
    files = icd_files()
    if not files:
        return {}
    path = cache_dir("opencl") / f"drivers-{_identity(files)}.json"
    known = _stored(path)
    if known is None:
        try:
            known = _test(files)
        except OSError as error:
            log.info("no process lists the OpenCL drivers: %s", error)
            return {}
        write_text(path, json.dumps(known))
    return {file: known[str(file)] for file in files if str(file) in known}


def icd_files() -> tuple[Path, ...]:
    """The files that name the drivers, in the order of their names."""
    place = Path(next(filter(None, map(os.environ.get, _VARIABLES)), _VENDORS))
    files = sorted(place.glob("*.icd")) if place.is_dir() else [place]
    # The loader leaves others out, too.
    return tuple(file for file in files if file.is_file() and os.access(file, os.R_OK))


def environment_without(failing: Mapping[Path, str]) -> dict[str, str]:
    """Environment variables with which OpenCL loads all other drivers; empty if none fails.

    Raises:
        FileError: the cache cannot be written.
    """
    return _only(file for file in icd_files() if file not in failing) if failing else {}


def _only(files: Iterable[Path]) -> dict[str, str]:
    """Environment variables that name a folder in the cache with copies of .icd files."""
    texts = {file.name: file.read_text(errors="replace") for file in files}
    folder = cache_dir(f"opencl/vendors-{_hash(texts.items())}")
    for name, text in texts.items():
        if not (folder / name).exists():
            write_text(folder / name, text)
    return dict.fromkeys(_VARIABLES, str(folder))


def _test(files: Sequence[Path]) -> dict[str, str]:
    """Lists all drivers together and, if that fails, each alone and then the working ones together."""
    together = _failure({})
    if not together:
        return {}
    alone = {str(file): _failure(_only([file])) for file in files}
    failing = {file: reason for file, reason in alone.items() if reason}
    working = [file for file in files if str(file) not in failing]
    if working and (again := together if not failing else _failure(_only(working))):
        failing |= dict.fromkeys(map(str, working), f"beside other drivers, {again}")
    return failing


def _failure(changes: Mapping[str, str]) -> str:
    """Why a process failed that lists the drivers of an environment; empty if it did not.

    Raises:
        OSError: it cannot be started.
    """
    with WorkerProcess((*WORKER, str(os.getpid())), environment={**os.environ, **changes}, patience=0) as process:
        try:
            process.receive(_SECONDS)
        except WorkerError as error:
            return str(error)
    return ""


def _identity(files: Sequence[Path]) -> str:
    """A hash of the drivers and of the environment that they are loaded in."""
    parts = [(str(_TESTS), _stamp(_LIBRARIES))]
    for file in files:
        text = file.read_text(errors="replace")
        parts += [(str(file), text), (_stamp(file), _stamp(Path(text.strip())))]
    parts += sorted((name, value) for name, value in os.environ.items() if name.startswith(_PREFIXES))
    return _hash(parts)


def _stamp(file: Path) -> str:
    """Size and time of a file; empty if there is none."""
    try:
        status = file.stat()
    except (OSError, ValueError):
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def _hash(parts: Iterable[Iterable[str]]) -> str:
    return hashlib.sha256("\0".join(text for part in parts for text in part).encode()).hexdigest()[:32]


def _stored(path: Path) -> dict[str, str] | None:
    """The failures in a file; None if it is missing or damaged, or if failures are old."""
    try:
        found = json.loads(path.read_text())
        recent = time.time() - path.stat().st_mtime < _FAILURE_COUNTS
    except (OSError, ValueError):
        return None
    is_right = isinstance(found, dict) and all(isinstance(reason, str) for reason in found.values())
    return found if is_right and (recent or not found) else None
