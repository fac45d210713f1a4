"""OpenCL drivers: loads them on the right cores, lists their devices and tests them.

A driver that runs kernels on the CPU creates its threads when it is loaded, once per process; PoCL reads their number from
POCL_MAX_PTHREAD_COUNT. PoCL cannot restrict a command to some of its threads (kernels of a sub-device run on all of them) and
wakes all threads for every kernel. Therefore this module records the threads that appear while a driver loads, and
`pin_workers` sets their affinity:

- The first runtime of a process determines the number of threads: one per core.
- A later runtime with fewer cores binds all threads to them. They share these cores at little cost.
- A later runtime with more cores has too few threads and logs a warning. `load_drivers` at the start of a program avoids it.
- If a program used OpenCL before nnstretch, the threads are found by the CPU time that a busy kernel consumes.
- Other drivers create threads when they need them. Their number is unknown and they are not bound.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.devices.base.spec import format_cores, running_on, usable_cores
from nnstretch.devices.opencl.discovery import environment_without, failing_drivers
from nnstretch.devices.opencl.properties import DeviceInfo, describe
from nnstretch.devices.opencl.verdicts import judge
from nnstretch.errors import DeviceError
from nnstretch.support.settings import cache_dir, caches_of_libraries

if TYPE_CHECKING:
    import pyopencl

POCL = "Portable Computing Language"
_INSTALL = "install one (Debian, Ubuntu: apt-get install pocl-opencl-icd) or leave opencl out of the processors"

log = logging.getLogger(__name__)


@dataclass
class _Drivers:
    """Drivers loaded in this process.

    Attributes:
        devices: all devices; None before the drivers are loaded.
        failing: the .icd files of drivers that were left out -> one line on why.
        workers: threads of drivers on the CPU.
        pinned: the cores that they are bound to.
        lock: held while the other attributes change.
        is_lost: whether a parent of this process loaded the drivers before a fork.
    """

    devices: tuple[pyopencl.Device, ...] | None = None
    failing: Mapping[Path, str] = field(default_factory=dict)
    workers: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    lock: Any = field(default_factory=threading.RLock)
    is_lost: bool = False


_DRIVERS = _Drivers()


def _forget_parent() -> None:
    """In the child of a fork: drivers that the parent loaded have no threads here, and its threads may hold the lock."""
    _DRIVERS.lock = threading.RLock()
    _DRIVERS.is_lost = _DRIVERS.is_lost or _DRIVERS.devices is not None
    _DRIVERS.workers = ()


os.register_at_fork(after_in_child=_forget_parent)


def loaded_devices() -> tuple[pyopencl.Device, ...]:
    """The devices of the drivers that this process has loaded; empty if it has not."""
    return _DRIVERS.devices or ()


def load_drivers(cores: tuple[int, ...] = ()) -> tuple[pyopencl.Device, ...]:
    """All OpenCL devices by number; loads the drivers on the first call.

    Args:
        cores: cores of drivers on the CPU, one thread each; all usable cores by default. Later calls ignore it.

    Raises:
        DeviceError: pyopencl cannot be imported, or the drivers were loaded before this process was forked.
        FileError: the cache cannot be written.
    """
    with _DRIVERS.lock:
        if _DRIVERS.is_lost:
            raise DeviceError(
                "OpenCL drivers were loaded before this process was forked, and do not work in it; start the process by spawn "
                "(multiprocessing.get_context('spawn')), or use cpu"
            )
        if _DRIVERS.devices is None:
            import_pyopencl()
            cores = cores or usable_cores()
            environment = {"POCL_MAX_PTHREAD_COUNT": str(len(cores)), "POCL_CACHE_DIR": str(_pocl_cache())}
            environment |= caches_of_libraries()
            before = _threads()
            with _environment(environment), running_on(cores):
                failing = failing_drivers()
                for file, reason in failing.items():
                    log.warning("OpenCL driver %s is left out: %s; update or remove it", file, reason)
                with _environment(environment_without(failing), replacing=True):
                    _DRIVERS.devices = list_devices()
                _DRIVERS.failing = failing
            if any(device.platform.name == POCL for device in _DRIVERS.devices):
                _DRIVERS.workers = tuple(sorted(_threads() - before)) or _threads_at_work(_DRIVERS.devices)
        return _DRIVERS.devices


def import_pyopencl() -> None:
    """Checks that pyopencl can be imported.

    Raises:
        DeviceError: it cannot be imported.
    """
    try:
        with _environment(caches_of_libraries()):
            import pyopencl  # noqa: F401
    except ImportError as error:
        raise DeviceError(f"OpenCL needs pyopencl, which cannot be imported ({error}); pip install pyopencl") from error


def find_device(index: int, cores: tuple[int, ...]) -> pyopencl.Device:
    """The device `opencl:index`, its driver loaded for `cores`.

    Raises:
        DeviceError: there is no driver or no such device.
    """
    devices = load_drivers(cores)
    if not devices and _DRIVERS.failing:
        failing = ", ".join(f"{file} ({reason})" for file, reason in _DRIVERS.failing.items())
        raise DeviceError(f"no OpenCL driver works: {failing}; update it, or leave opencl out of the processors")
    if not devices:
        raise DeviceError(f"no OpenCL driver with a device was found; {_INSTALL}")
    if index >= len(devices):
        there = ", ".join(f"opencl:{number} ({device.name.strip()})" for number, device in enumerate(devices))
        raise DeviceError(f"there is no OpenCL device {index}; this machine has {there}")
    return devices[index]


def pin_workers(cores: tuple[int, ...]) -> None:
    """Binds the threads of drivers on the CPU to `cores`, one core per thread if there are enough of both.

    Cheap if nothing changes.
    """
    with _DRIVERS.lock:
        if _DRIVERS.pinned == cores:
            return
        for position, worker in enumerate(_DRIVERS.workers):
            own = {cores[position % len(cores)]} if len(_DRIVERS.workers) >= len(cores) else set(cores)
            try:
                os.sched_setaffinity(worker, own)
            except ProcessLookupError:
                log.debug("thread %d of an OpenCL driver has ended", worker)
        _DRIVERS.pinned = cores


def worker_count() -> int:
    """Number of driver threads that run kernels on the CPU."""
    return len(_DRIVERS.workers)


def probe() -> list[DeviceInfo]:
    """Tests every OpenCL device of this machine with kernels of nnstretch, in a process of its own.

    A device that fails is reported as unusable, without an error. The list is empty without a driver. Results are cached on
    disk by driver, device and kernels.

    Raises:
        DeviceError: pyopencl cannot be imported.
        FileError: the cache cannot be written.
    """
    return [probe_device(index) for index in range(len(load_drivers()))]


def listed_devices() -> list[DeviceInfo]:
    """Every OpenCL device of this machine by what its driver says, not tested; as `probe` otherwise."""
    return [device_info(index) for index in range(len(load_drivers()))]


@functools.cache
def probe_device(index: int) -> DeviceInfo:
    """Tests device `index`, which must exist; see `probe`."""
    info = device_info(index)
    verdict = judge(info)
    has_images = info.on_cpu or not verdict.why_no_images
    if not has_images:
        log.info("kernels of OpenCL device %s read no images: %s", info.name, verdict.why_no_images)
    return replace(
        info,
        usable=not verdict.why_not,
        why_not=verdict.why_not,
        command_times=verdict.command_times,
        trace_seconds=verdict.trace_seconds,
        atomics=info.atomics and verdict.semaphores,
        command_buffers=verdict.command_buffers,
        image_buffer=info.image_buffer if has_images else 0,
    )


@functools.cache
def device_info(index: int) -> DeviceInfo:
    """What the driver says of device `index`, which must exist; not tested, so it counts as usable with all of it."""
    return describe(index, load_drivers()[index])


def build(program: pyopencl.Program, options: Sequence[str]) -> pyopencl.Program:
    """Builds a program without pyopencl's cache and without its warnings about compiler output.

    Raises:
        pyopencl.Error: it does not compile.
    """
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        built: pyopencl.Program = program.build(list(options), cache_dir=False)  # type: ignore[arg-type]
    return built


def list_devices() -> tuple[pyopencl.Device, ...]:
    """All OpenCL devices of the drivers that the environment names, which are loaded now; see `load_drivers`."""
    import pyopencl as cl

    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        log.info("no OpenCL platform: %s", error)
        return ()
    devices: list[pyopencl.Device] = []
    for platform in platforms:
        try:
            devices.extend(platform.get_devices())
        except cl.Error as error:
            log.info("no device of OpenCL platform %s: %s", platform.name, error)
    return tuple(devices)


def _pocl_cache() -> Path:
    """Folder of PoCL's own cache of compiled kernels."""
    path = cache_dir() / "opencl" / "pocl"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


_BUSY = """
kernel void busy(global float *x, int n) {
    float y = x[0];
    for (int i = 0; i < n; i++) y = y * 0.5f + x[i & 1];
    x[2 + get_global_id(0)] = y;
}
"""
_BUSY_LOOPS = 20_000_000  # about 0.05 s
_BUSY_TICKS = 2


def _threads_at_work(devices: Sequence[pyopencl.Device]) -> tuple[int, ...]:
    """Threads of drivers loaded earlier by other code: those that consume CPU time during a busy kernel."""
    import pyopencl as cl

    found: set[int] = set()
    for device in devices:
        if not device.type & cl.device_type.CPU:
            continue
        groups = 2 * device.max_compute_units
        try:
            context = cl.Context([device])
            queue = cl.CommandQueue(context)
            memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * (2 + groups))
            kernel = cl.Kernel(build(cl.Program(context, _BUSY), ()), "busy")
            before = {thread: _ticks(thread) for thread in _threads()}
            kernel(queue, (groups,), (1,), memory, np.int32(_BUSY_LOOPS))
            queue.finish()
        except cl.Error as error:
            log.info("cannot find the threads of OpenCL device %s: %s", device.name, error)
            continue
        worked = {thread for thread, ticks in before.items() if _ticks(thread) - ticks >= _BUSY_TICKS}
        found |= worked - {threading.get_native_id()}
    return tuple(sorted(found))


def _ticks(thread: int) -> int:
    """CPU time of a thread of this process in clock ticks; 0 if it has ended."""
    try:
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


@contextmanager
def _environment(wanted: Mapping[str, str], *, replacing: bool = False) -> Iterator[None]:
    """Sets environment variables within the block; those that are set already only if `replacing`."""
    changed = {name: value for name, value in wanted.items() if replacing or name not in os.environ}
    before = {name: os.environ[name] for name in changed if name in os.environ}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            del os.environ[name]
        os.environ.update(before)


@functools.cache
def warn_if_short(cores: tuple[int, ...]) -> int:
    """Number of threads that will work on `cores`; warns once if it is fewer than one per core."""
    threads = min(worker_count() or len(cores), len(cores))
    if threads < len(cores):
        log.warning(
            "the OpenCL driver was loaded for %d core(s) earlier in this process, so opencl on cores %s has only that number "
            "of threads; name these cores first, or start a new process",
            threads,
            format_cores(cores),
        )
    return threads
