"""OpenCL drivers: loads them on the right cores, lists their devices and tests them.

A driver that runs kernels on the CPU creates its threads when it is loaded, once per process; PoCL reads their number from
POCL_MAX_PTHREAD_COUNT. PoCL cannot restrict a command to some of its threads (kernels of a sub-device run on all of them) and
wakes all threads for every kernel. Therefore this module records the threads that appear while a driver loads, and
`pin_workers` sets their affinity:

- The first runtime of a process determines the number of threads: one per core.
- A later runtime with fewer cores binds all threads to them. They share these cores at little cost.
- A later runtime with more cores has too few threads and logs a warning. `load_drivers` at the start of a program avoids it.
- If a program used OpenCL before nnstretch, the threads are found by the CPU time that a busy kernel consumes.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.base.spec import format_cores, usable_cores
from nnstretch.devices.engine.binding.image import Sharing
from nnstretch.errors import DeviceError
from nnstretch.support.settings import cache_dir

if TYPE_CHECKING:
    import pyopencl

POCL = "Portable Computing Language"
_INSTALL = "install one (Debian, Ubuntu: apt-get install pocl-opencl-icd) or leave opencl out of the processors"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeviceInfo:
    """An OpenCL device of this machine.

    Attributes:
        index: its number in `opencl:INDEX`.
        name, platform, driver: device name, platform name and driver version from the driver.
        compute_units: CPU threads or multiprocessors.
        on_cpu: whether it runs kernels on CPU cores.
        unified: whether it shares memory with the host, so that buffers need no copies.
        fine_grained: whether it has fine-grained shared virtual memory, which needs no mapping.
        atomics: whether running kernels see concurrent writes of the host to that memory.
        fp16: whether it computes in float16.
        usable: whether a test kernel was built and gave the right result.
        why_not: one line on why it is not usable, else "".
    """

    index: int
    name: str
    platform: str
    driver: str
    compute_units: int
    on_cpu: bool
    unified: bool
    fine_grained: bool
    atomics: bool
    fp16: bool
    usable: bool
    why_not: str

    @property
    def sharing(self) -> Sharing:
        """The cheapest way to share memory with the host."""
        if not self.unified:
            return Sharing.COPIED
        return Sharing.COHERENT if self.fine_grained else Sharing.MAPPED


@dataclass
class _Drivers:
    """Drivers loaded in this process."""

    devices: tuple[pyopencl.Device, ...] | None = None
    workers: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()


_LOCK = threading.RLock()
_DRIVERS = _Drivers()


def load_drivers(cores: tuple[int, ...] = ()) -> tuple[pyopencl.Device, ...]:
    """All OpenCL devices by number; loads the drivers on the first call.

    Args:
        cores: cores of drivers on the CPU, one thread each; all usable cores by default. Later calls ignore it.

    Raises:
        DeviceError: pyopencl cannot be imported.
        FileError: the cache cannot be written.
    """
    with _LOCK:
        if _DRIVERS.devices is None:
            cores = cores or usable_cores()
            environment = {"POCL_MAX_PTHREAD_COUNT": str(len(cores)), "POCL_CACHE_DIR": str(_pocl_cache())}
            before = _threads()
            with _environment(environment), _running_on(cores):
                _DRIVERS.devices = _list_devices()
            _DRIVERS.workers = tuple(sorted(_threads() - before)) or _threads_at_work(_DRIVERS.devices)
        return _DRIVERS.devices


def import_pyopencl() -> None:
    """Checks that pyopencl can be imported.

    Raises:
        DeviceError: it cannot be imported.
    """
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        raise DeviceError(f"OpenCL needs pyopencl, which cannot be imported ({error}); pip install pyopencl") from error


def find_device(index: int, cores: tuple[int, ...]) -> pyopencl.Device:
    """The device `opencl:index`, its driver loaded for `cores`.

    Raises:
        DeviceError: there is no driver or no such device.
    """
    devices = load_drivers(cores)
    if not devices:
        raise DeviceError(f"no OpenCL driver with a device was found; {_INSTALL}")
    if index >= len(devices):
        names = ", ".join(f"{number} = {device.name}" for number, device in enumerate(devices))
        raise DeviceError(f"there is no OpenCL device {index}; this machine has {names}")
    return devices[index]


def pin_workers(cores: tuple[int, ...]) -> None:
    """Binds the threads of drivers on the CPU to `cores`, one core per thread if there are enough of both.

    Cheap if nothing changes.
    """
    with _LOCK:
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
    """Tests every OpenCL device of this machine with a small kernel.

    A device that fails is reported as unusable, without an error. The list is empty without a driver.

    Raises:
        DeviceError: pyopencl cannot be imported.
    """
    return [probe_device(index) for index in range(len(load_drivers()))]


@functools.cache
def probe_device(index: int) -> DeviceInfo:
    """Tests device `index`, which must exist; see `probe`."""
    import pyopencl as cl

    device = load_drivers()[index]
    why_not = ""
    try:
        _try_device(device)
    except (cl.Error, DeviceError) as error:
        why_not = str(error).strip().splitlines()[0]
    return DeviceInfo(
        index=index,
        name=str(device.name).strip(),
        platform=str(device.platform.name),
        driver=str(device.driver_version),
        compute_units=int(device.max_compute_units),
        on_cpu=bool(device.type & cl.device_type.CPU),
        unified=bool(device.host_unified_memory),
        fine_grained=_shares(device, "FINE_GRAIN_BUFFER"),
        atomics=_shares(device, "ATOMICS"),
        fp16="cl_khr_fp16" in str(device.extensions).split(),
        usable=not why_not,
        why_not=why_not,
    )


def _shares(device: pyopencl.Device, capability: str) -> bool:
    """Whether a device has a capability of shared virtual memory."""
    import pyopencl as cl

    try:
        return bool(device.svm_capabilities & getattr(cl.device_svm_capabilities, capability))
    except cl.Error:  # OpenCL before 2.0 lacks the query
        return False


_PROBE = "kernel void probe(global int *x) { x[get_global_id(0)] += 40 + (int)get_global_id(0); }"


def _try_device(device: pyopencl.Device) -> None:
    import pyopencl as cl

    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    numbers = np.array([2, 2], np.int32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=numbers)
    program = build(cl.Program(context, _PROBE), ())
    cl.Kernel(program, "probe")(queue, (2,), (1,), buffer)
    cl.enqueue_copy(queue, numbers, buffer)
    if numbers.tolist() != [42, 43]:
        raise DeviceError(f"a test kernel computed {numbers.tolist()} where [42, 43] was right")


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


def _list_devices() -> tuple[pyopencl.Device, ...]:
    import_pyopencl()
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
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables within the block, except those that are set already."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _running_on(cores: tuple[int, ...]) -> Iterator[None]:
    """Binds the calling thread to `cores` within the block; threads started in it inherit the binding."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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
