"""Semaphores: kernels by which a device that lives on the CPU waits for the host by itself.

To wake a driver's thread takes tens of microseconds. One that spins at a semaphore goes on within a few, so
sub-graphs are enqueued
behind semaphores before what they wait for is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.engine.binding.image import KernelLaunch, Semaphores, Sharing
from nnstretch.devices.opencl.runtime.runtime import OpenCLRuntime, SharedMemory

SEMAPHORE_SOURCE = "semaphore.cl"


def takes_semaphores(runtime: OpenCLRuntime) -> bool:
    """Whether the device may wait: it has cores, which the operating system shares out, and sees what the host writes."""
    info = runtime.info
    return info.on_cpu and info.sharing is Sharing.COHERENT and info.atomics and runtime.has_source(SEMAPHORE_SOURCE)


def make_semaphores(runtime: OpenCLRuntime, waits: Sequence[Sequence[int]]) -> tuple[Semaphores, SharedMemory]:
    """Semaphores for the sub-graphs of a program, and the memory in which they look, which must live as long as they do.

    Args:
        runtime: of the only OpenCL queue, a device that `takes_semaphores`.
        waits: for every sub-graph those that it waits for; empty if it shall have no semaphore.

    Raises:
        BuildError: the kernel does not compile.
        DeviceError: there is not enough memory.
    """
    # The flags of all sub-graphs, and behind them the numbers of those that are waited for.
    ends = list(accumulate(map(len, waits), initial=len(waits)))
    (memory,) = runtime.shared([4 * ends[-1]])
    numbers = memory.host.view(np.int32)
    numbers[len(waits) :] = list(chain(*waits))
    launches = tuple(
        _semaphore(runtime, memory, place, end - place) if end > place else None for place, end in pairwise(ends)
    )
    return Semaphores(launches, numbers[: len(waits)]), memory


def _semaphore(runtime: OpenCLRuntime, memory: SharedMemory, place: int, count: int) -> KernelLaunch:
    """The semaphore that waits for so many flags, whose numbers begin at a place in the memory that begins with the flags."""
    launch = Launch(SEMAPHORE_SOURCE, (), (max(1, runtime.threads),), (1,))
    kernel = runtime.kernel(launch, "semaphore")
    runtime.set_arguments(kernel, [(memory.buffer, 0), (memory.buffer, place)], [count])
    return KernelLaunch(kernel, launch.global_size, launch.local_size)
