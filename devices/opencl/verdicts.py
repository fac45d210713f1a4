"""Verdicts on OpenCL devices: whether they run the kernels of nnstretch, from a process that a driver may end.

Drivers may crash or hang while they compile, so `nnstretch.devices.opencl.probe_worker` tests a device in a process of its own.
Verdicts are kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.opencl.sources import sources_hash
from nnstretch.errors import BuildError
from nnstretch.support.settings import cache_dir, write_text
from nnstretch.support.stderr_lines import announce
from nnstretch.support.worker_process import WorkerError, WorkerProcess

if TYPE_CHECKING:
    from nnstretch.devices.opencl.properties import DeviceInfo

WORKER = (sys.executable, "-P", "-m", "nnstretch.devices.opencl.probe_worker")
_TESTS = 4
"""Version of the tests: older verdicts do not count."""
_BUILD_SECONDS = 300
_SEMAPHORE_SECONDS = 20
_COMMAND_BUFFER_SECONDS = 60
_UNTESTED = "they were not tested"
_FAILURE_COUNTS = 3600  # seconds; a driver may have failed for want of memory


@dataclass(frozen=True)
class Verdict:
    """The result of a test.

    Attributes:
        why_not: one line on why the device is not usable, else "".
        command_times: whether profiling says when commands ran.
        semaphores: whether running kernels saw writes of the host.
        trace_seconds: by which a traced run takes longer for every kernel.
        command_buffers: as `DeviceInfo.command_buffers`.
        why_no_images: one line on why kernels may not read images, else "".
    """

    why_not: str
    command_times: bool
    semaphores: bool
    trace_seconds: float = 0.0
    command_buffers: str = ""
    why_no_images: str = _UNTESTED


def judge(info: DeviceInfo) -> Verdict:
    """The verdict on a device for its driver and the installed kernels, from the cache or from a test.

    Raises:
        FileError: the cache cannot be written.
    """
    identity = (info.platform, info.name, info.driver, str(info.atomics), sources_hash(), str(_TESTS))
    name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    path = cache_dir("opencl") / f"{name}.json"
    verdict = _stored(path)
    if verdict is None:
        with suppress(BuildError):  # the test reports it
            engine()  # built here, where that is announced
        announce(f"testing the OpenCL device {info.name} and compiling its kernels: once per version and driver")
        verdict = _test(info)
        write_text(path, json.dumps(asdict(verdict)))
    return verdict


def retest(info: DeviceInfo) -> Verdict:
    """The verdict on a device of this moment, whatever was found before; it is not kept."""
    return _test(info)


def _stored(path: Path) -> Verdict | None:
    """The verdict in a file; None if it is missing, damaged, or an old failure."""
    try:
        verdict = Verdict(**json.loads(path.read_text()))
        recent = time.time() - path.stat().st_mtime < _FAILURE_COUNTS
    except (OSError, ValueError, TypeError):
        return None
    return verdict if recent or not verdict.why_not else None


def _unusable(why_not: str) -> Verdict:
    return Verdict(why_not, command_times=False, semaphores=False)


def _test(info: DeviceInfo) -> Verdict:
    """Asks the probe worker: about kernels, then about semaphores, images and command buffers."""
    driver = f"driver {info.platform} {info.driver}"
    try:
        with WorkerProcess((*WORKER, str(info.index), str(os.getpid())), patience=0) as process:
            try:
                answer, _ = process.receive(_BUILD_SECONDS)
            except WorkerError as error:
                status = "" if process.status is None or process.status < 0 else f", status {process.status}"
                return _unusable(f"{driver} ended a test of kernels{status}: {error}")
            if answer["why_not"]:
                return _unusable(f"{driver}: {answer['why_not']}")
            verdict = Verdict("", bool(answer["command_times"]), False, float(answer.get("trace_seconds", 0.0)))
            with suppress(WorkerError):
                answer, _ = process.receive(_SEMAPHORE_SECONDS)
                verdict = replace(verdict, semaphores=bool(answer["semaphores"]))
                try:
                    answer, _ = process.receive(_BUILD_SECONDS)
                except WorkerError as error:
                    return replace(verdict, why_no_images=f"{driver} ended a test of them: {error}")
                verdict = replace(verdict, why_no_images=str(answer["why_no_images"]))
                answer, _ = process.receive(_COMMAND_BUFFER_SECONDS)
                verdict = replace(verdict, command_buffers=str(answer["command_buffers"]))
            return verdict
    except OSError as error:
        return _unusable(f"a process to test it cannot be started ({error})")
