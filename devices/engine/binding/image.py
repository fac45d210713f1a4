"""The parts of a program of the native engine, and their encoding as a program image.

The classes mirror devices/engine/include/nns_engine.h, which defines each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from nnstretch.devices.engine.binding.library import ABI
from nnstretch.errors import PackageError

MAGIC = 0x315453534E4E
MOST_FEEDS = 1 << 16


class QueueKind(IntEnum):
    """The executor of a queue's steps."""

    HOST = 0
    OPENCL = 1
    CALL = 2


class RegionKind(IntEnum):
    """The origin of a region's memory."""

    FIXED = 0
    INPUT = 1
    OUTPUT = 2
    SHARED = 3


class Sharing(IntEnum):
    """How the host and a device share a SHARED region.

    Attributes:
        COPIED: the device has a copy, which is written before and read after its kernels.
        MAPPED: both use the same memory, and mapping transfers ownership (a buffer created with USE_HOST_PTR).
        COHERENT: both use the same memory without transfers (fine-grained SVM).
    """

    COPIED = 0
    MAPPED = 1
    COHERENT = 2


class StepKind(IntEnum):
    """The kind of a step."""

    KERNEL = 0
    OPENCL = 1
    CALL = 2


class OpenCLObject(Protocol):
    """A pyopencl object that wraps a handle of the driver."""

    @property
    def int_ptr(self) -> int:
        """The handle."""


@dataclass(frozen=True)
class Queue:
    """A processor in a program.

    Attributes:
        kind: the executor of its steps.
        cores: one thread each.
        command_queue: the in-order command queue of an OpenCL queue.
        trace_queue: that of traced runs, with profiling enabled; None: traced runs use the other, which then profiles.
        ratios: relative speeds of the cores of a host queue, by which each step is split initially; none: equal.
        name: for error messages.
        records: whether an OpenCL queue enqueues the kernels of a sub-graph as one command, where its driver can do that.
    """

    kind: QueueKind
    cores: tuple[int, ...] = ()
    command_queue: OpenCLObject | None = None
    ratios: tuple[int, ...] = ()
    name: str = ""
    trace_queue: OpenCLObject | None = None
    records: bool = False


@dataclass(frozen=True)
class Region:
    """A block of memory.

    Attributes:
        kind: FIXED and SHARED regions have `memory`; each run binds INPUT and OUTPUT regions.
        bytes: size; `memory` must be at least as large.
        index: number of the input or output.
        memory: contiguous host memory.
        mem: OpenCL buffer of a SHARED region.
        sharing: how host and device share a SHARED region.
        queue: the OpenCL queue of a SHARED region.
    """

    kind: RegionKind
    bytes: int
    index: int = 0
    memory: np.ndarray | None = None
    mem: OpenCLObject | None = None
    sharing: Sharing = Sharing.COPIED
    queue: int = 0


@dataclass(frozen=True)
class Buffer:
    """Part of a region; `offset` is a multiple of 4."""

    region: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """One kernel, launch or call.

    Attributes:
        kind: which of these.
        id: the kernel's number (`Engine.find`), an index into the program's `launches`, or an index into its `calls`.
        reads: numbers of buffers; -1 for an optional input that is left out.
        writes: numbers of buffers.
        parameters: of a kernel.
        name: for error messages.
    """

    kind: StepKind
    id: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    parameters: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class SubGraph:
    """Consecutive steps on one queue.

    Attributes:
        queue: number of the queue.
        steps: number of steps; they follow those of the sub-graph before.
        waits: numbers of sub-graphs of other queues that must be done before.
        acquires: SHARED regions that an OpenCL sub-graph takes from the host.
        releases: SHARED regions that an OpenCL sub-graph returns to the host.
    """

    queue: int
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
class Semaphores:
    """Device-side semaphores: kernels that wait for other queues, so that sub-graphs can be enqueued early.

    Attributes:
        launches: one per sub-graph, or None. A semaphore ends once the flags of all sub-graphs are set that its
            own waits for.
        flags: int32, one per sub-graph, in memory that the device of the only OpenCL queue shares coherently.
    """

    launches: tuple[KernelLaunch | None, ...]
    flags: np.ndarray


def encode(
    queues: Sequence[Queue],
    regions: Sequence[Region],
    buffers: Sequence[Buffer],
    steps: Sequence[Step],
    subgraphs: Sequence[SubGraph],
) -> np.ndarray:
    """The image of a program: int64 words as nns_engine.h lays them out.

    The id of a call step becomes the number of the step, by which `Program` finds the function and its sizes.
    """
    inputs, outputs = feed_sizes(regions, RegionKind.INPUT), feed_sizes(regions, RegionKind.OUTPUT)
    words = [MAGIC, ABI, len(queues), len(regions), len(buffers), len(steps), len(subgraphs), len(inputs), len(outputs)]
    for queue in queues:
        words += [queue.kind, len(queue.cores), *queue.cores, len(queue.ratios), *queue.ratios]
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
        words += [subgraph.queue, first, subgraph.steps]
        for numbers in (subgraph.waits, subgraph.acquires, subgraph.releases):
            words += [len(numbers), *numbers]
        first += subgraph.steps
    return np.array(words, np.int64)


def feed_sizes(regions: Sequence[Region], kind: RegionKind) -> list[int]:
    """Bytes of the largest region of each input (or output).

    Raises:
        PackageError: a region's number is out of range.
    """
    mine = [region for region in regions if region.kind is kind]
    wrong = [region.index for region in mine if not 0 <= region.index < MOST_FEEDS]
    if wrong:
        raise PackageError(f"a region is {kind.name.lower()} {wrong[0]}; they are numbered from 0 to {MOST_FEEDS - 1}")
    sizes = [0] * (1 + max((region.index for region in mine), default=-1))
    for region in mine:
        sizes[region.index] = max(sizes[region.index], region.bytes)
    return sizes
