"""Programs of the native engine, as Python writes and runs them.

The classes here mirror devices/engine/include/nns_engine.h, which says what each number means. A `Program` checks everything
when it is made (in C) and keeps all memory and OpenCL objects that it was given alive until it is closed.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Protocol

import numpy as np

from nnstretch.closing import Closing
from nnstretch.devices.engine import binding
from nnstretch.devices.engine.binding import ABI, Engine, engine
from nnstretch.devices.engine.running import CallFunction, Calls, Place, RunningProgram, address_of
from nnstretch.errors import FeedError, PackageError, UsageError

MAGIC = 0x315453534E4E
HUGE_PAGE = 2 << 20
MOST_FEEDS = 1 << 16


class LaneKind(IntEnum):
    """Who computes the steps of a lane."""

    HOST = 0
    OPENCL = 1
    CALL = 2


class RegionKind(IntEnum):
    """Where the memory of a region comes from."""

    FIXED = 0
    INPUT = 1
    OUTPUT = 2
    SHARED = 3


class StepKind(IntEnum):
    """What a step runs."""

    KERNEL = 0
    OPENCL = 1
    CALL = 2


class OpenCLObject(Protocol):
    """A pyopencl object that wraps a handle of the driver."""

    @property
    def int_ptr(self) -> int:
        """The handle."""


@dataclass(frozen=True)
class Lane:
    """A processor's place in a program: its kind, its cores (one thread each) and, for OpenCL, an in-order queue.

    Traced runs want the queue to have profiling enabled. `ratios` are the relative speeds of the cores of a host lane, by which
    the work of every step is split to begin with; none: all are the same. `name` is for errors.
    """

    kind: LaneKind
    cores: tuple[int, ...] = ()
    queue: OpenCLObject | None = None
    ratios: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Region:
    """A stretch of memory.

    Attributes:
        kind: FIXED and SHARED regions bring `memory`; INPUT and OUTPUT regions get theirs at each run.
        bytes: its size; `memory` must be at least as large.
        index: number of the input or output.
        memory: contiguous host memory.
        mem: OpenCL buffer of a SHARED region.
        unified: whether `mem` was made with USE_HOST_PTR on `memory`, so that mapping moves ownership; else it is a copy.
        lane: the OpenCL lane of a SHARED region.
    """

    kind: RegionKind
    bytes: int
    index: int = 0
    memory: np.ndarray | None = None
    mem: OpenCLObject | None = None
    unified: bool = False
    lane: int = 0


@dataclass(frozen=True)
class Buffer:
    """Part of a region; `offset` is a multiple of 4."""

    region: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """One kernel, launch or call.

    `id` is the kernel's number (`Engine.find`), the index in the program's `launches`, or the index in its `calls`. `reads` and
    `writes` are buffers by number; -1 stands for an optional input that is absent. `name` is for errors.
    """

    kind: StepKind
    id: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class SubGraph:
    """The next `steps` steps, on one lane, after the sub-graphs `waits` of other lanes.

    `acquires` and `releases` are SHARED regions that an OpenCL sub-graph reads from or hands back to the host.
    """

    lane: int
    steps: int
    waits: tuple[int, ...] = ()
    acquires: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()


@dataclass(frozen=True)
class KernelLaunch:
    """An OpenCL kernel with all its arguments set, for one step."""

    kernel: OpenCLObject
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None = None


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


def aligned_array(size: int, alignment: int = 4096, huge: bool = True) -> np.ndarray:
    """A zeroed uint8 array of `size` bytes whose address is a multiple of `alignment` (a power of two).

    Arrays of 2 MiB and more are asked to lie in huge pages if `huge`.
    """
    if size >= HUGE_PAGE:
        alignment = max(alignment, HUGE_PAGE)
        memory = mmap.mmap(-1, size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge:
            with suppress(OSError):  # a kernel without huge pages gives small ones
                memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
    else:
        whole = np.zeros(size + alignment, np.uint8)
    start = -address_of(whole) % alignment
    return whole[start : start + size]


class Program(Closing):
    """A validated program, ready to run.

    Args:
        lanes, regions, buffers, steps, subgraphs: as in nns_engine.h; sub-graphs in a topological order, steps in the order
            of the sub-graphs.
        launches: what OpenCL steps run.
        calls: what call steps call. An NNStretchError raised there comes out of `run`; others, and DeviceErrors, come out as
            the cause of a DeviceError that says where it was.
        native: the engine, by default this machine's.
        keep: what else must live as long as the program.

    Raises:
        PackageError: the program is refused; says where and why.
        DeviceError: no memory, no threads on those cores, or OpenCL failed.
        UsageError: a region's memory is too small or not contiguous, or a call step names no call.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        regions: Sequence[Region],
        buffers: Sequence[Buffer],
        steps: Sequence[Step],
        subgraphs: Sequence[SubGraph],
        *,
        launches: Sequence[KernelLaunch] = (),
        calls: Sequence[CallFunction] = (),
        native: Engine | None = None,
        keep: object = None,
    ) -> None:
        self._engine = native or engine()
        self._steps = len(steps)
        self._subgraphs = len(subgraphs)
        self._input_bytes = _bytes_by_index(regions, RegionKind.INPUT)
        self._output_bytes = _bytes_by_index(regions, RegionKind.OUTPUT)
        made = _calls(steps, buffers, calls)
        if any(lane.kind is LaneKind.OPENCL for lane in lanes):
            _load_opencl(self._engine)
        bound = _bind(lanes, regions, launches, made)
        image = encode(lanes, regions, buffers, steps, subgraphs)
        handle = ctypes.c_void_p()
        self._engine.checked(
            self._engine.library.nns_program_create,
            image.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
            image.size,
            ctypes.byref(bound),
            ctypes.byref(handle),
        )
        feeds = len(self._input_bytes), len(self._output_bytes)
        pointed = (bound, tuple(lanes), tuple(regions), tuple(launches), keep)
        self._running = RunningProgram(self._engine, handle, feeds, made, _places(lanes, steps, subgraphs), pointed)
        self._finalizer = weakref.finalize(self, self._running.close)

    @property
    def busy(self) -> bool:
        """Whether a run that missed its deadline is not over, and so no other can be made."""
        return self._running.busy

    def run(
        self,
        inputs: Sequence[np.ndarray] = (),
        outputs: Sequence[np.ndarray] = (),
        *,
        deadline: float | None = None,
    ) -> None:
        """Runs once. Arrays are C-contiguous and hold at least their region's bytes; outputs are written in place.

        Thread-safe: concurrent calls take turns. A `deadline` says how many seconds the run may take, waiting for its turn
        included; it is then made by another thread, which costs some ten microseconds.

        Raises:
            UsageError: the deadline is no time, or the program is closed.
            FeedError: a missing, short, strided or read-only array.
            DeadlineError: the run is not over in time. It uses the arrays, and the program is `busy`, until what hangs has come
                back.
            DeviceError: a device or a call failed, and the program can be run again; or it is `busy`.
        """
        if deadline is not None and not 0 < deadline <= threading.TIMEOUT_MAX:
            raise UsageError(f"the deadline is {deadline} s; it must be in (0, {threading.TIMEOUT_MAX:g}]")
        self._foreign(self._engine.library.nns_program_run, inputs, outputs, None, deadline=deadline)

    def run_traced(self, inputs: Sequence[np.ndarray] = (), outputs: Sequence[np.ndarray] = ()) -> RunTrace:
        """As `run`, with the times of every step and wait."""
        steps = np.zeros((self._steps, 2), np.int64)
        waits = np.zeros((self._subgraphs, 2), np.int64)
        words = ctypes.POINTER(ctypes.c_int64)
        trace = binding.Trace(steps.ctypes.data_as(words), waits.ctypes.data_as(words), 0, 0)
        self._foreign(self._engine.library.nns_program_run, inputs, outputs, ctypes.byref(trace))
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
        """Nanoseconds of each of up to `runs` runs after `warmup` others, in one foreign call.

        Stops early once `budget_ms` has passed and at least 3 runs are timed; 0 means no limit. Errors as for `run`.
        """
        times = (ctypes.c_int64 * max(runs, 1))()
        done = ctypes.c_int64()
        budget = int(budget_ms * 1e6)
        self._foreign(
            self._engine.library.nns_program_time, inputs, outputs, warmup, runs, budget, times, ctypes.byref(done)
        )
        return list(times[: done.value])

    def close(self) -> None:
        """Frees the program; a run in another thread must be over.

        One that has missed its deadline keeps the program until it is over; that is freed then. Closing twice does nothing.
        """
        self._finalizer()

    def _foreign(
        self,
        function: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        *arguments: Any,
        deadline: float | None = None,
    ) -> None:
        _check_feeds("input", inputs, self._input_bytes, writable=False)
        _check_feeds("output", outputs, self._output_bytes, writable=True)
        self._running.run(function, inputs, outputs, arguments, deadline)


def encode(
    lanes: Sequence[Lane],
    regions: Sequence[Region],
    buffers: Sequence[Buffer],
    steps: Sequence[Step],
    subgraphs: Sequence[SubGraph],
) -> np.ndarray:
    """The image of a program: int64 words as nns_engine.h lays them out.

    The id of a call step is written as the number of the step, which is how `Program` finds the call and its sizes.
    """
    inputs, outputs = _bytes_by_index(regions, RegionKind.INPUT), _bytes_by_index(regions, RegionKind.OUTPUT)
    words = [MAGIC, ABI, len(lanes), len(regions), len(buffers), len(steps), len(subgraphs), len(inputs), len(outputs)]
    for lane in lanes:
        words += [lane.kind, len(lane.cores), *lane.cores, len(lane.ratios), *lane.ratios]
    for region in regions:
        words += [region.kind, region.index, region.bytes]
    for buffer in buffers:
        words += [buffer.region, buffer.offset, buffer.bytes]
    for i, step in enumerate(steps):
        words += [step.kind, i if step.kind is StepKind.CALL else step.id]
        for numbers in (step.reads, step.writes, step.parameters):
            words += [len(numbers), *numbers]
    first = 0
    for subgraph in subgraphs:
        words += [subgraph.lane, first, subgraph.steps]
        for numbers in (subgraph.waits, subgraph.acquires, subgraph.releases):
            words += [len(numbers), *numbers]
        first += subgraph.steps
    return np.array(words, np.int64)


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


def _places(lanes: Sequence[Lane], steps: Sequence[Step], subgraphs: Sequence[SubGraph]) -> list[Place]:
    """For each step what it and its lane are called."""
    numbers = [subgraph.lane for subgraph in subgraphs for _ in range(subgraph.steps)]
    return [
        (lanes[lane].name or f"lane {lane}", step.name or f"step {i}")
        for i, (lane, step) in enumerate(zip(numbers, steps, strict=True))
    ]


def _check_feeds(what: str, arrays: Sequence[np.ndarray], sizes: Sequence[int], *, writable: bool) -> None:
    if len(arrays) < len(sizes):
        raise FeedError(f"the program has {len(sizes)} {what}s, the run gives {len(arrays)}")
    for i, size in enumerate(sizes):
        array = arrays[i]
        if array.nbytes < size or not array.flags.c_contiguous or (writable and not array.flags.writeable):
            wanted = f"{size} contiguous{' writable' if writable else ''} bytes"
            raise FeedError(
                f"{what} {i} needs {wanted}; found {array.nbytes} with strides {array.strides}, "
                f"{'writable' if array.flags.writeable else 'read-only'}"
            )


def _bytes_by_index(regions: Sequence[Region], kind: RegionKind) -> list[int]:
    """Largest region of each input (or output)."""
    mine = [region for region in regions if region.kind is kind]
    wrong = [region.index for region in mine if not 0 <= region.index < MOST_FEEDS]
    if wrong:
        raise PackageError(f"a region is {kind.name.lower()} {wrong[0]}; they are numbered from 0 to {MOST_FEEDS - 1}")
    sizes = [0] * (1 + max((region.index for region in mine), default=-1))
    for region in mine:
        sizes[region.index] = max(sizes[region.index], region.bytes)
    return sizes


def _bind(
    lanes: Sequence[Lane], regions: Sequence[Region], launches: Sequence[KernelLaunch], calls: Calls
) -> binding.Bindings:
    bound_regions = (binding.Region * max(len(regions), 1))()
    for i, region in enumerate(regions):
        if region.memory is not None:
            if region.memory.nbytes < region.bytes or not region.memory.flags.c_contiguous:
                raise UsageError(f"region {i} needs {region.bytes} contiguous bytes; found {region.memory.nbytes}")
            bound_regions[i].host = address_of(region.memory)
        bound_regions[i].mem = region.mem.int_ptr if region.mem is not None else None
        bound_regions[i].unified = int(region.unified)
        bound_regions[i].lane = region.lane
    bound_launches = (binding.Launch * max(len(launches), 1))()
    for bound, launch in zip(bound_launches, launches, strict=False):
        bound.kernel = launch.kernel.int_ptr
        bound.dimensions = len(launch.global_size)
        bound.global_size[: len(launch.global_size)] = launch.global_size
        if launch.local_size is not None:
            bound.local_size[: len(launch.local_size)] = launch.local_size
    queues = (ctypes.c_void_p * len(lanes))(*(lane.queue.int_ptr if lane.queue else None for lane in lanes))
    # Structures made from arrays keep the arrays alive.
    return binding.Bindings(bound_regions, bound_launches, len(launches), queues, calls.callback)


def opencl_library() -> str:
    """A shared library through which the engine finds the functions of OpenCL."""
    import pyopencl

    # The extension module links the ICD loader.
    return str(pyopencl._cl.__file__)


@cache
def _load_opencl(native: Engine) -> None:
    native.load_opencl(opencl_library())
