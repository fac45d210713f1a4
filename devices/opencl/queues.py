"""OpenCL queues of a loaded plan: in-order command queues of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.base.backend import (
    LoadableQueue,
    LoadableStep,
    LoadedDeviceQueues,
    LoadedQueues,
    LoadRequest,
    MemoryKey,
    StepTarget,
)
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, parse_processors
from nnstretch.devices.engine.binding.image import KernelLaunch, Queue, QueueKind, Region, RegionKind, Semaphores
from nnstretch.devices.opencl.command_buffers import records
from nnstretch.devices.opencl.drivers import load_drivers
from nnstretch.devices.opencl.memory import SharedMemory
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.devices.opencl.semaphores import SEMAPHORE_SOURCE, make_semaphores, takes_semaphores
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.errors import DeviceError, PackageError

if TYPE_CHECKING:
    import pyopencl as cl


class OpenCLQueues(LoadedDeviceQueues):
    """Command queues of devices.

    Attributes:
        runtimes: queue number -> runtime.
        memories: device memory used as kernel arguments, kept alive here because kernels do not.
    """

    def __init__(self, request: LoadRequest) -> None:
        """Opens the devices, or shares those of the replica.

        Raises:
            DeviceError: a device is missing or does not work; its `processor` is the one in the plan.
        """
        self._queues, self._sources = request.queues, request.sources
        before = request.replica
        assert before is None or isinstance(before, OpenCLQueues)
        self.runtimes: Mapping[int, OpenCLRuntime] = (
            _open_runtimes(request.queues, request.sources) if before is None else before.runtimes
        )
        self.memories: dict[MemoryKey, cl.Buffer] = {}
        self._known: Mapping[MemoryKey, cl.Buffer] = {} if before is None else before.memories
        self._shared: list[SharedMemory] = []
        self._images: list[object] = []  # with their buffers, kept alive here too
        self._used: set[str] = set()

    def engine_queue(self, queue: int) -> Queue:
        mine = self._queues[queue]
        runtime = self.runtimes[queue]
        return Queue(
            QueueKind.OPENCL,
            mine.cores,
            runtime.queue,
            mine.ratios,
            mine.processor,
            trace_queue=runtime.trace_queue,
            records=records(runtime.info),
        )

    def require_memory(self, queue: int, sizes: Sequence[int], shared: Sequence[int]) -> None:
        # No processor is named, which would say that a run broke it.
        self.runtimes[queue].memory.require(sizes, shared)

    def share(self, queue: int, slots: Mapping[int, int]) -> dict[int, Region]:
        made = self.runtimes[queue].memory.shared(list(slots.values()))
        self._shared += made
        self.memories.update({("shared", slot): memory.buffer for slot, memory in zip(slots, made, strict=True)})
        return {slot: _region(memory, queue) for slot, memory in zip(slots, made, strict=True)}

    def hold_constants(self, queue: int, constants: np.ndarray) -> None:
        key = ("constant", queue)
        self.memories[key] = self._known.get(key) or self.runtimes[queue].memory.constant(constants)

    def hold_arena(self, queue: int, size: int) -> None:
        self.memories["device", queue] = self.runtimes[queue].memory.buffer(size)

    @property
    def trace_times(self) -> bool:
        return all(runtime.info.command_times for runtime in self.runtimes.values())

    @property
    def trace_seconds(self) -> float:
        return max(runtime.info.trace_seconds for runtime in self.runtimes.values())

    @property
    def host_arrays(self) -> dict[MemoryKey, np.ndarray]:
        arrays = {key: buffer.hostbuf for key, buffer in self.memories.items()}
        return {key: array for key, array in arrays.items() if isinstance(array, np.ndarray)}

    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        """A kernel with its arguments: the operands' buffers or images, then a struct of offsets in elements and integers."""
        launch, runtime = step.launch, self.runtimes[queue]
        assert launch is not None, "validated plans have launches on OpenCL queues"
        kernel = runtime.kernel(launch, step.kernel)
        places = (*step.reads, *step.writes)
        operands = [
            None if place is None else (self.memories[place.memory], place.offset, place.bytes) for place in places
        ]
        memory = runtime.memory_arguments(launch, operands, self._images)
        runtime.set_arguments(kernel, memory, step.arguments)
        self._used.add(launch.source)
        return KernelLaunch(kernel, launch.global_size, launch.local_size)

    def semaphores(self, waits: Sequence[Sequence[int]]) -> Semaphores | None:
        """Semaphores of all waiting sub-graphs, if this is the only OpenCL queue and its device supports semaphores."""
        if len(self.runtimes) != 1 or not any(waits):
            return None
        (runtime,) = self.runtimes.values()
        if not takes_semaphores(runtime):
            return None
        semaphores, memory = make_semaphores(runtime, waits)
        self._shared.append(memory)
        return semaphores

    @property
    def used_sources(self) -> dict[str, str]:
        if not self._used:
            return {}
        names = {*self._used, SEMAPHORE_SOURCE}
        if self._sources is not None:
            return {name: self._sources[name] for name in names & {*self._sources}}
        return {name: kernel_source(name) for name in names}

    def activate(self, others: Sequence[LoadedQueues]) -> None:
        """Binds the threads of devices on the CPU to the cores of all concurrent programs."""
        queues = [self, *(other for other in others if isinstance(other, OpenCLQueues))]
        first, *more = (runtime for loaded in queues for runtime in loaded.runtimes.values())
        first.activate(more)

    def distrust(self) -> None:
        """Drops the shared runtimes: a lost device invalidates its context, so later programs need new ones."""
        installed_runtime.cache_clear()


@cache
def installed_runtime(spec: ProcessorSpec) -> OpenCLRuntime:
    """The runtime of a device for the installed sources. Programs share it, so each kernel is built once."""
    return OpenCLRuntime(spec, profile=True)


def _open_runtimes(queues: Mapping[int, LoadableQueue], sources: Mapping[str, str] | None) -> dict[int, OpenCLRuntime]:
    """The runtimes of all queues, on the cores of these queues."""
    specs = {number: replace(_spec(queue), cores=queue.cores) for number, queue in queues.items()}
    load_drivers(all_cores(specs.values()))
    runtimes = {}
    for number, spec in specs.items():
        try:
            runtimes[number] = (
                installed_runtime(spec) if sources is None else OpenCLRuntime(spec, profile=True, sources=sources)
            )
        except DeviceError as error:
            error.processor = queues[number].processor
            raise
    return runtimes


def _spec(queue: LoadableQueue) -> ProcessorSpec:
    """Specification of a queue's processor, without a check that this process may use its cores."""
    specs = parse_processors(queue.processor, tuple(sorted(queue.planned_cores)))
    if [spec.kind for spec in specs] != ["opencl"]:
        raise PackageError(f"the plan has {queue.processor!r} on an OpenCL queue; compile it again")
    return specs[0]


def _region(shared: SharedMemory, queue: int) -> Region:
    return Region(
        RegionKind.SHARED,
        shared.host.nbytes,
        memory=shared.host,
        mem=shared.buffer,
        sharing=shared.sharing,
        queue=queue,
    )
