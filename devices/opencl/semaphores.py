"""Semaphores: kernels that make a device on the CPU wait for the host.

Waking a driver's thread takes tens of microseconds; a thread that spins in a semaphore continues within a few. Sub-graphs
are therefore enqueued behind semaphores before their dependencies are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.engine.binding.image import KernelLaunch, Semaphores, Sharing
from nnstretch.devices.opencl.memory import SharedMemory
from nnstretch.devices.opencl.runtime import OpenCLRuntime

SEMAPHORE_SOURCE = "semaphore.cl"


def takes_semaphores(runtime: OpenCLRuntime) -> bool:
    """Whether the device supports semaphores: it runs on CPU cores, and running kernels see writes of the host."""
    info = runtime.info
    return info.on_cpu and info.sharing is Sharing.COHERENT and info.atomics and runtime.programs.has(SEMAPHORE_SOURCE)


def make_semaphores(runtime: OpenCLRuntime, waits: Sequence[Sequence[int]]) -> tuple[Semaphores, SharedMemory]:
    """Semaphores of a program's sub-graphs, and their memory, which must outlive them.

    Args:
        runtime: runtime of the only OpenCL queue, for a device that `takes_semaphores`.
        waits: per sub-graph, the sub-graphs that it waits for; empty for no semaphore.

    Raises:
        BuildError: the kernel does not compile.
        DeviceError: there is not enough memory.
    """
    # Memory: the flags of all sub-graphs, then the lists of sub-graph numbers to wait for.
    ends = list(accumulate(map(len, waits), initial=len(waits)))
    (memory,) = runtime.memory.shared([4 * ends[-1]])
    numbers = memory.host.view(np.int32)
    numbers[len(waits) :] = list(chain(*waits))
    launches = tuple(
        _semaphore(runtime, memory, place, end - place) if end > place else None for place, end in pairwise(ends)
    )
    return Semaphores(launches, numbers[: len(waits)]), memory


def _semaphore(runtime: OpenCLRuntime, memory: SharedMemory, place: int, count: int) -> KernelLaunch:
    """The semaphore that waits for `count` flags, whose numbers begin at index `place` of the memory."""
    launch = Launch(SEMAPHORE_SOURCE, (), (max(1, runtime.threads),), (1,))
    kernel = runtime.kernel(launch, "semaphore")
    runtime.set_arguments(kernel, [(memory.buffer, 0), (memory.buffer, place)], [count])
    return KernelLaunch(kernel, launch.global_size, launch.local_size)
