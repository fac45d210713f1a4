"""Programs of the native engine.

The engine validates a `Program` completely when it is created. The program keeps its memory and OpenCL objects
alive until it is closed.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np

from nnstretch.devices.engine.binding import library as binding
from nnstretch.devices.engine.binding.execution import CallFunction, Calls, RunningProgram, StepName, address_of
from nnstretch.devices.engine.binding.image import (
    Buffer,
    KernelLaunch,
    OpenCLObject,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Semaphores,
    Step,
    StepKind,
    SubGraph,
    encode,
    feed_sizes,
)
from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.errors import DeviceError, UsageError
from nnstretch.support.closing import Closing

HUGE_PAGE = 2 << 20

log = logging.getLogger(__name__)

_UNTRACED = (None,)
"""The argument of nns_program_run after the feeds, of a run without a trace."""


@dataclass(frozen=True)
class RunTrace:
    """Times of one run in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        steps: (n_steps, 2): begin and end of each step.
        waits: (n_subgraphs, 2): begin and end of the wait before each sub-graph; equal if there was none.
        begin: of the run.
        end: of the run.
    """

    steps: np.ndarray
    waits: np.ndarray
    begin: int
    end: int


def ask_for_huge_pages(address: int, size: int) -> None:
    """Requests huge pages for memory that was not written yet: as many whole pages as fit."""
    start = -(-address // HUGE_PAGE) * HUGE_PAGE
    end = (address + size) // HUGE_PAGE * HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE") and end > start:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_HUGEPAGE)


def aligned_array(size: int, alignment: int = 4096) -> np.ndarray:
    """A zeroed uint8 array of `size` bytes whose address is a multiple of `alignment` (a power of two).

    Arrays of 2 MiB and more request huge pages.
    """
    if size >= HUGE_PAGE:
        alignment = max(alignment, HUGE_PAGE)
        memory = mmap.mmap(-1, size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages uses small ones
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
    else:
        whole = np.zeros(size + alignment, np.uint8)
    start = -address_of(whole) % alignment
    return whole[start : start + size]


class Program(Closing):
    """A validated program, ready to run.

    Args:
        queues, regions, buffers, steps, subgraphs: as in nns_engine.h; sub-graphs in topological order, steps in
            the order of the sub-graphs.
        launches: kernels of OpenCL steps.
        calls: functions of call steps. `run` raises their NNStretchErrors unchanged; a DeviceError or any other
            exception becomes the cause of a DeviceError that names the queue and the step.
        semaphores: of OpenCL sub-graphs that may be enqueued before their waits are over.
        native: the engine; default: this machine's.
        keep: further objects that must outlive the program.

    Attributes:
        recorded: number of sub-graphs whose kernels are enqueued as one command by runs that are not traced.

    Raises:
        PackageError: the program is not valid; names the place and the reason.
        DeviceError: no memory, no threads on those cores, or OpenCL failed.
        UsageError: a region's memory is too small or not contiguous, or the number of a call is out of range.
    """

    def __init__(
        self,
        queues: Sequence[Queue],
        regions: Sequence[Region],
        buffers: Sequence[Buffer],
        steps: Sequence[Step],
        subgraphs: Sequence[SubGraph],
        *,
        launches: Sequence[KernelLaunch] = (),
        calls: Sequence[CallFunction] = (),
        semaphores: Semaphores | None = None,
        native: Engine | None = None,
        keep: object = None,
    ) -> None:
        self._engine = native or engine()
        self._steps = len(steps)
        self._subgraphs = len(subgraphs)
        sizes = feed_sizes(regions, RegionKind.INPUT), feed_sizes(regions, RegionKind.OUTPUT)
        made = _calls(steps, buffers, calls)
        if any(queue.kind is QueueKind.OPENCL for queue in queues):
            _load_opencl(self._engine)
        bound = _bind(queues, regions, launches, made, semaphores)
        image = encode(queues, regions, buffers, steps, subgraphs)
        handle = ctypes.c_void_p()
        self._engine.checked(
            self._engine.library.nns_program_create,
            image.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            image.size,
            ctypes.byref(bound),
            ctypes.byref(handle),
        )
        pointed = (bound, tuple(queues), tuple(regions), tuple(launches), semaphores, keep)
        self._running = RunningProgram(
            self._engine, handle, sizes, made, _step_names(queues, steps, subgraphs), pointed
        )
        self._run = self._engine.library.nns_program_run
        self._finalizer = weakref.finalize(self, self._running.close)
        self.recorded = sum(_record(self._engine, handle, i, one) for i, one in enumerate(queues) if one.records)

    @property
    def busy(self) -> bool:
        """Whether a run that missed its deadline is still in progress; until it ends no other run can begin."""
        return self._running.busy

    def run(
        self,
        inputs: Sequence[np.ndarray] = (),
        outputs: Sequence[np.ndarray] = (),
        *,
        deadline: float | None = None,
    ) -> None:
        """Runs the program once. Thread-safe: concurrent calls take turns.

        Args:
            inputs: C-contiguous arrays of at least their regions' bytes.
            outputs: the same, written in place.
            deadline: seconds that the run may take, including the wait for other runs. Another thread then
                executes the run, which costs some ten microseconds.

        Raises:
            UsageError: the deadline is out of range, or the program is closed or was made before a fork.
            FeedError: an array is missing, too short, strided or read-only.
            DeadlineError: the run missed its deadline. It uses the arrays, and the program is `busy`, until it ends.
            DeviceError: a device or a call failed, and the program can run again; or the program is `busy`.
        """
        if deadline is not None and not 0 < deadline <= threading.TIMEOUT_MAX:
            raise UsageError(f"the deadline is {deadline} s; it must be in (0, {threading.TIMEOUT_MAX:g}]")
        self._running.run(self._run, inputs, outputs, _UNTRACED, deadline)

    def bound(self, inputs: Sequence[np.ndarray] = (), outputs: Sequence[np.ndarray] = ()) -> Callable[[], None]:
        """A function that runs the program with these arrays, as `run` without a deadline; it checks them once.

        Args:
            inputs: as for `run`. Their memory must stay where it is; their values may change between runs.
            outputs: as for `run`; every run overwrites them.

        Raises:
            FeedError: an array is missing, too short, strided or read-only.
        """
        return self._running.bound(self._run, inputs, outputs, _UNTRACED)

    def run_traced(self, inputs: Sequence[np.ndarray] = (), outputs: Sequence[np.ndarray] = ()) -> RunTrace:
        """As `run`; returns the times of each step and wait."""
        steps = np.zeros((self._steps, 2), np.int64)
        waits = np.zeros((self._subgraphs, 2), np.int64)
        words = ctypes.POINTER(ctypes.c_int64)
        trace = binding.Trace(steps.ctypes.data_as(words), waits.ctypes.data_as(words), 0, 0)
        self._running.run(self._run, inputs, outputs, (ctypes.byref(trace),))
        return RunTrace(steps, waits, trace.begin, trace.end)

    def time(
        self,
        inputs: Sequence[np.ndarray] = (),
        outputs: Sequence[np.ndarray] = (),
        *,
        warmup: int = 3,
        runs: int = 20,
        budget_ms: float = 0,
    ) -> list[int]:
        """Times up to `runs` runs after `warmup` others in one foreign call. Errors as for `run`.

        Args:
            inputs: as for `run`.
            outputs: as for `run`.
            warmup: number of runs that are not timed.
            runs: largest number of timed runs.
            budget_ms: time after which no run begins if at least 3 are timed; 0: no limit.

        Returns:
            Nanoseconds of each timed run.
        """
        times = (ctypes.c_int64 * max(runs, 1))()
        done = ctypes.c_int64()
        budget = int(budget_ms * 1e6)
        arguments = warmup, runs, budget, times, ctypes.byref(done)
        self._running.run(self._engine.library.nns_program_time, inputs, outputs, arguments)
        return list(times[: done.value])

    def close(self) -> None:
        """Frees the program after the run of another thread, if there is one.

        Does not wait for a run that missed its deadline; the program is freed when that ends. Closing twice
        does nothing.
        """
        self._finalizer()


def _record(native: Engine, handle: ctypes.c_void_p, number: int, queue: Queue) -> int:
    """Records the kernels of a queue; returns the number of its recorded sub-graphs, 0 if that failed."""
    count = ctypes.c_int64()
    try:
        native.checked(native.library.nns_program_record, handle, number, ctypes.byref(count))
    except DeviceError as error:
        log.warning("%s: kernels are enqueued one by one: %s", queue.name or f"queue {number}", error)
    return count.value


def _calls(steps: Sequence[Step], buffers: Sequence[Buffer], calls: Sequence[CallFunction]) -> Calls:
    table: dict[int, tuple[CallFunction, list[int], list[int]]] = {}
    for i, step in enumerate(steps):
        if step.kind is StepKind.CALL:
            if not 0 <= step.id < len(calls):
                raise UsageError(f"step {i} names call {step.id} of {len(calls)}")
            sizes = [
                [buffers[b].bytes if 0 <= b < len(buffers) else 0 for b in numbers]
                for numbers in (step.reads, step.writes)
            ]
            table[i] = (calls[step.id], sizes[0], sizes[1])
    return Calls(table)


def _step_names(queues: Sequence[Queue], steps: Sequence[Step], subgraphs: Sequence[SubGraph]) -> list[StepName]:
    """The names of each step's queue and of the step."""
    numbers = [subgraph.queue for subgraph in subgraphs for _ in range(subgraph.steps)]
    return [
        (queues[queue].name or f"queue {queue}", step.name or f"step {i}")
        for i, (queue, step) in enumerate(zip(numbers, steps, strict=True))
    ]


def _bind(
    queues: Sequence[Queue],
    regions: Sequence[Region],
    launches: Sequence[KernelLaunch],
    calls: Calls,
    semaphores: Semaphores | None,
) -> binding.Bindings:
    bound_regions = (binding.Region * max(len(regions), 1))()
    for i, region in enumerate(regions):
        if region.memory is not None:
            if region.memory.nbytes < region.bytes or not region.memory.flags.c_contiguous:
                raise UsageError(f"region {i} needs {region.bytes} contiguous bytes; found {region.memory.nbytes}")
            bound_regions[i].host = address_of(region.memory)
        bound_regions[i].mem = region.mem.int_ptr if region.mem is not None else None
        bound_regions[i].sharing = int(region.sharing)
        bound_regions[i].queue = region.queue
    command_queues = _handles([queue.command_queue for queue in queues])
    # Structures made from arrays keep the arrays alive.
    bound = binding.Bindings(bound_regions, _bind_launches(launches), len(launches), command_queues, calls.callback)
    if semaphores is not None:
        bound.semaphores, bound.flags = _bind_launches(semaphores.launches), address_of(semaphores.flags)
    bound.trace_queues = _handles([queue.trace_queue for queue in queues])
    return bound


def _handles(objects: Sequence[OpenCLObject | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(objects))(*(None if one is None else one.int_ptr for one in objects))


def _bind_launches(launches: Sequence[KernelLaunch | None]) -> ctypes.Array[binding.Launch]:
    bound = (binding.Launch * max(len(launches), 1))()
    for place, launch in zip(bound, launches, strict=False):
        if launch is None:
            continue
        place.kernel = launch.kernel.int_ptr
        place.dimensions = len(launch.global_size)
        place.global_size[: len(launch.global_size)] = launch.global_size
        if launch.local_size is not None:
            place.local_size[: len(launch.local_size)] = launch.local_size
    return bound


def opencl_library() -> str:
    """A shared library that links an OpenCL ICD loader: pyopencl's extension module."""
    import pyopencl

    return str(pyopencl._cl.__file__)


@cache
def _load_opencl(native: Engine) -> None:
    native.load_opencl(opencl_library())
