"""What a program of the native engine consists of, and its image, the numbers that the engine reads.

The classes mirror devices/engine/include/nns_engine.h, which says what each number means.
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
    """Who computes the steps of a queue."""

    HOST = 0
    OPENCL = 1
    CALL = 2


class RegionKind(IntEnum):
    """Where the memory of a region comes from."""

    FIXED = 0
    INPUT = 1
    OUTPUT = 2
    SHARED = 3


class Sharing(IntEnum):
    """How the host and a device see a SHARED region.

    COPIED: the device has a copy, which is written before and read after its kernels.
    MAPPED: both have the same memory, and mapping moves ownership (a buffer made with USE_HOST_PTR).
    COHERENT: both have the same memory at any time; what one has done is there for the other (fine-grained SVM).
    """

    COPIED = 0
    MAPPED = 1
    COHERENT = 2


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
class Queue:
    """A processor's place in a program: its kind, its cores (one thread each) and, for OpenCL, an in-order queue.

    Traced runs want the command queue to have profiling enabled. `ratios` are the relative speeds of the cores of a
    host queue, by which the work of every step is split to begin with; none: all are the same. `name` is for errors.
    """

    kind: QueueKind
    cores: tuple[int, ...] = ()
    command_queue: OpenCLObject | None = None
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
        sharing: how host and device see a SHARED region.
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
    """The next `steps` steps, on one queue, after the sub-graphs `waits` of other queues.

    `acquires` and `releases` are SHARED regions that an OpenCL sub-graph reads from or hands back to the host.
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
    """Kernels by which a device waits for other queues by itself, so that sub-graphs can be enqueued before these are done.

    Attributes:
        launches: for every sub-graph its semaphore, which ends once the flags of all sub-graphs are set that this
        one waits for;
            None where there is none.
        flags: int32, one per sub-graph, in memory that is shared coherently with the device of the only OpenCL queue.
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

    The id of a call step is written as the number of the step, which is how `Program` finds the call and its sizes.
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
