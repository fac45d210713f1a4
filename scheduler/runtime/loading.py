"""Loads a validated plan as a program of the native engine and binds memory, OpenCL objects and external models."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.base.spec import ProcessorSpec, all_cores, format_cores, parse_processors, usable_cores
from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import (
    Buffer,
    KernelLaunch,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Semaphores,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.external.engine import ExternalModel, open_external_model
from nnstretch.errors import DeviceError, PackageError
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import PlanQueue, PlanStep

if TYPE_CHECKING:
    import pyopencl as cl

    from nnstretch.devices.opencl.runtime.runtime import OpenCLRuntime, SharedMemory

_QUEUE_KINDS = {"host": QueueKind.HOST, "opencl": QueueKind.OPENCL, "call": QueueKind.CALL}

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A program and everything that must live as long as it does."""

    program: Program
    sources: dict[str, str]
    runtimes: Mapping[int, OpenCLRuntime]  # by queue
    memories: Mapping[tuple[str, int], cl.Buffer]  # kernels do not keep their arguments alive

    def activate(self, others: Sequence[Loaded] = ()) -> None:
        """Moves the threads of OpenCL devices that live on the CPU to the cores of the plan and of those that run beside it."""
        runtimes = [runtime for loaded in (self, *others) for runtime in loaded.runtimes.values()]
        for runtime in runtimes[:1]:
            runtime.activate(runtimes[1:])

    def distrust(self) -> None:
        """After a failure: sessions made from now on get other contexts, as a device that is lost takes its context along."""
        if self.runtimes:
            _installed_runtime.cache_clear()

    def close(self) -> None:
        """Frees the program and its memory."""
        self.program.close()


def load_program(
    compiled: Compiled,
    sources: Mapping[str, str] | None,
    native: Engine | None = None,
    replica: Loaded | None = None,
) -> Loaded:
    """Binds a plan that `validate` has passed to an engine, by default this machine's.

    Args:
        compiled: the plan with its constants.
        sources: OpenCL sources to build instead of the installed ones.
        native: the engine.
        replica: the same plan, loaded before: its weights and OpenCL programs serve this one too, which has memory
        of its own for
            everything that a run writes.

    Raises:
        PackageError: the plan was made for an engine of another block size, or names unknown kernels.
        DeviceError: a processor is missing, simulated or out of memory.
    """
    plan = compiled.plan
    simulated = [queue.processor for queue in plan.queues if queue.processor.startswith("sim:")]
    if simulated:
        raise DeviceError(
            f"{', '.join(simulated)} only exist in a profile; compile the model for processors that are here to run it"
        )
    native = native or engine()
    if plan.block != native.block:
        raise PackageError(
            f"the plan is made for vectors of {plan.block} floats, this machine's engine has {native.block}; "
            "compile the model here"
        )
    return _Loader(compiled, sources, native, replica).load()


class _Loader:
    def __init__(
        self, compiled: Compiled, sources: Mapping[str, str] | None, native: Engine, replica: Loaded | None
    ) -> None:
        self._native = native
        self._plan = compiled.plan
        self._compiled = compiled
        self._sources = sources
        self._queues = place_queues(self._plan.queues, usable_cores())
        self._runtimes = replica.runtimes if replica else _runtimes(self._plan.queues, self._queues, sources)
        self._known = replica.memories if replica else {}
        self._regions: list[Region] = []
        self._region_of: dict[tuple[str, int], int] = {}
        self._shared: list[SharedMemory] = []
        self._memories: dict[tuple[str, int], cl.Buffer] = {}  # what OpenCL kernels take as arguments
        self._buffer_of: dict[int, int] = {}  # number in the plan -> number in the program
        self._launches: list[KernelLaunch] = []
        self._calls: list[CallFunction] = []

    def load(self) -> Loaded:
        self._make_regions()
        buffers = self._engine_buffers()
        queues = [
            Queue(
                _QUEUE_KINDS[queue.kind],
                queue.cores,
                self._runtimes[number].queue if number in self._runtimes else None,
                queue.ratios,
                queue.processor or "host",
            )
            for number, queue in enumerate(self._queues)
        ]
        steps = [
            self._step(step, subgraph.queue)
            for subgraph in self._plan.subgraphs
            for step in self._plan.steps[subgraph.first : subgraph.first + subgraph.count]
        ]
        subgraphs = [
            SubGraph(
                s.queue,
                s.count,
                s.waits,
                tuple(self._region_of["shared", slot] for slot in s.acquires),
                tuple(self._region_of["shared", slot] for slot in s.releases),
            )
            for s in self._plan.subgraphs
        ]
        program = Program(
            queues,
            self._regions,
            buffers,
            steps,
            subgraphs,
            launches=self._launches,
            calls=self._calls,
            semaphores=self._semaphores(),
            native=self._native,
            keep=(self._memories, self._shared),
        )
        return Loaded(program, self._used_sources(), self._runtimes, self._memories)

    # -- memory --------------------------------------------------------------------------------------------------

    def _add_region(self, key: tuple[str, int], region: Region) -> None:
        self._region_of[key] = len(self._regions)
        self._regions.append(region)

    def _make_regions(self) -> None:
        plan = self._plan
        for index, tensor in enumerate(plan.inputs):
            self._add_region(("input", index), Region(RegionKind.INPUT, _bytes(tensor.type), index))
        for index, tensor in enumerate(plan.outputs):
            self._add_region(("output", index), Region(RegionKind.OUTPUT, _bytes(tensor.type), index))
        if plan.host_bytes:
            self._add_region(("host", 0), _fixed(aligned_array(plan.host_bytes)))
        for queue in dict.fromkeys(plan.shared_queues):
            self._make_shared(queue)
        for domain, (offset, size) in plan.constant_ranges.items():
            if offset + size > self._compiled.constants.nbytes:
                raise PackageError(
                    f"the plan's constants reach beyond the {self._compiled.constants.nbytes} bytes given"
                )
            constants = self._compiled.constants[offset : offset + size]
            if domain == 0 and size:
                self._add_region(("constant", 0), _fixed(constants))
            elif size:
                key = ("constant", domain)
                self._memories[key] = self._known.get(key) or self._runtimes[domain].constant(constants)
        for queue, size in plan.device_bytes.items():
            if size:
                self._memories["device", queue] = self._runtimes[queue].buffer(size)

    def _make_shared(self, queue: int) -> None:
        """All memory that the host shares with the device of a queue."""
        slots = [slot for slot, of in enumerate(self._plan.shared_queues) if of == queue]
        made = self._runtimes[queue].shared([self._plan.shared_bytes[slot] for slot in slots])
        self._shared += made
        for slot, shared in zip(slots, made, strict=True):
            self._memories["shared", slot] = shared.buffer
            region = Region(
                RegionKind.SHARED,
                shared.host.nbytes,
                memory=shared.host,
                mem=shared.buffer,
                sharing=shared.sharing,
                queue=queue,
            )
            self._add_region(("shared", slot), region)

    def _engine_buffers(self) -> list[Buffer]:
        """The buffers that host steps use; those that only OpenCL kernels see are no business of the engine."""
        buffers: list[Buffer] = []
        for number, buffer in enumerate(self._plan.buffers):
            region = self._region_of.get((buffer.memory, buffer.index))
            if region is not None:
                self._buffer_of[number] = len(buffers)
                buffers.append(Buffer(region, buffer.offset, buffer.bytes))
        return buffers

    # -- steps ---------------------------------------------------------------------------------------------------

    def _step(self, step: PlanStep, queue: int) -> Step:
        name = f"{step.layer} ({step.routine or step.op})"
        if step.kind == "opencl":
            self._launches.append(self._launch(step, queue))
            return Step(StepKind.OPENCL, len(self._launches) - 1, name=name)
        reads = tuple(-1 if r is None else self._buffer_of[r] for r in step.reads)
        writes = tuple(self._buffer_of[w] for w in step.writes)
        if step.kind == "call":
            self._calls.append(self._call(step, queue))
            return Step(StepKind.CALL, len(self._calls) - 1, reads, writes, name=name)
        return Step(StepKind.KERNEL, self._native.find(step.kernel), reads, writes, step.arguments, name)

    def _launch(self, step: PlanStep, queue: int) -> KernelLaunch:
        """A kernel with its arguments set: the operands' buffers, then one struct of offsets in elements and integers."""
        assert step.launch is not None
        kernel = self._runtimes[queue].kernel(step.launch, step.kernel)
        used = [None if i is None else self._plan.buffers[i] for i in (*step.reads, *step.writes)]
        offsets = step.launch.offsets([0 if buffer is None else buffer.offset for buffer in used])
        memory = [
            (None if buffer is None else self._memories[buffer.memory, buffer.index], offset)
            for buffer, offset in zip(used, offsets, strict=True)
        ]
        self._runtimes[queue].set_arguments(kernel, memory, step.arguments)
        return KernelLaunch(kernel, step.launch.global_size, step.launch.local_size)

    def _semaphores(self) -> Semaphores | None:
        """Semaphores of all OpenCL sub-graphs that wait, where there is one OpenCL queue and its device can wait by itself."""
        waits = [s.waits if s.queue in self._runtimes else () for s in self._plan.subgraphs]
        if len(self._runtimes) != 1 or not any(waits):
            return None
        from nnstretch.devices.opencl.runtime.semaphores import make_semaphores, takes_semaphores

        (runtime,) = self._runtimes.values()
        if not takes_semaphores(runtime):
            return None
        semaphores, memory = make_semaphores(runtime, waits)
        self._shared.append(memory)
        return semaphores

    def _call(self, step: PlanStep, queue: int) -> CallFunction:
        model = self._compiled.models.get(step.kernel)
        if model is None:
            raise PackageError(f"the package lacks the model of {step.layer}; compile it again")
        for buffers, types in ((step.reads, step.read_types), (step.writes, step.write_types)):
            sizes = [-1 if b is None else self._plan.buffers[b].bytes for b in buffers]
            if sizes != [_bytes(t) for t in types]:
                raise PackageError(
                    f"plan is inconsistent: {step.layer} has other tensors than buffers; compile it again"
                )
        external_engine = open_external_model(
            step.routine, model, self._queues[queue].cores, step.read_types, step.write_types
        )
        return partial(_run_external_engine, external_engine, step.read_types, step.write_types)

    def _used_sources(self) -> dict[str, str]:
        names = {step.launch.source for step in self._plan.steps if step.launch is not None}
        if not names:
            return {}
        from nnstretch.devices.opencl.runtime.runtime import kernel_source
        from nnstretch.devices.opencl.runtime.semaphores import GATE

        if self._sources is not None:
            return {name: self._sources[name] for name in {*names, GATE} & {*self._sources}}
        return {name: kernel_source(name) for name in {*names, GATE}}


def place_queues(queues: Sequence[PlanQueue], usable: Sequence[int]) -> list[PlanQueue]:
    """The queues on cores that this process may use: those of the plan if it may, else others, one queue's after another's.

    A plan for a CPU alone runs on fewer cores than it was made for if there are no more; its ratios are dropped then.

    Raises:
        DeviceError: several processors want more cores than there are.
    """
    wanted = [core for queue in queues for core in queue.cores]
    if set(wanted) <= set(usable):
        return list(queues)
    numbers = {core: usable[i % len(usable)] for i, core in enumerate(dict.fromkeys(wanted))}
    if len(numbers) > len(usable):
        if len(queues) > 1:
            raise DeviceError(
                f"the plan's processors have {len(numbers)} cores ({format_cores(tuple(sorted(numbers)))}), this process may "
                f"use {len(usable)} ({format_cores(tuple(usable))}); allow it more, or compile the model for these"
            )
        log.warning("the plan is for %d cores; this process may use %d", len(numbers), len(usable))
        return [replace(queues[0], cores=tuple(usable), ratios=())]
    return [replace(queue, cores=tuple(numbers[core] for core in queue.cores)) for queue in queues]


def _runtimes(
    queues: Sequence[PlanQueue], placed: Sequence[PlanQueue], sources: Mapping[str, str] | None
) -> dict[int, OpenCLRuntime]:
    """The runtimes of all OpenCL queues, on the cores that the queues were placed on."""
    specs = {
        number: replace(_opencl_spec(queue), cores=place.cores)
        for number, (queue, place) in enumerate(zip(queues, placed, strict=True))
        if queue.kind == "opencl"
    }
    if not specs:
        return {}
    from nnstretch.devices.opencl.runtime.drivers import load_drivers

    load_drivers(all_cores(specs.values()))
    runtimes = {}
    for number, spec in specs.items():
        try:
            runtimes[number] = _runtime(spec, sources)
        except DeviceError as error:
            error.processor = queues[number].processor
            raise
    return runtimes


def _opencl_spec(queue: PlanQueue) -> ProcessorSpec:
    """The processor of a queue, whether or not this process may use its cores."""
    specs = parse_processors(queue.processor, tuple(sorted(queue.cores)))
    if [spec.kind for spec in specs] != ["opencl"]:
        raise PackageError(f"the plan has {queue.processor!r} on an OpenCL queue; compile it again")
    return specs[0]


def _runtime(spec: ProcessorSpec, sources: Mapping[str, str] | None) -> OpenCLRuntime:
    """The device's runtime: one for all sessions that build the installed sources, so that each program is built once."""
    if sources is None:
        return _installed_runtime(spec)
    from nnstretch.devices.opencl.runtime.runtime import OpenCLRuntime

    return OpenCLRuntime(spec, profile=True, sources=sources)


@cache
def _installed_runtime(spec: ProcessorSpec) -> OpenCLRuntime:
    from nnstretch.devices.opencl.runtime.runtime import OpenCLRuntime

    return OpenCLRuntime(spec, profile=True)


def _bytes(tensor: TensorType) -> int:
    return tensor.elements * np.dtype(tensor.dtype).itemsize


def _fixed(memory: np.ndarray) -> Region:
    return Region(RegionKind.FIXED, memory.nbytes, memory=memory)


def _run_external_engine(
    external_engine: ExternalModel,
    read_types: Sequence[TensorType],
    write_types: Sequence[TensorType],
    reads: Sequence[np.ndarray],
    writes: Sequence[np.ndarray],
) -> None:
    """Gives the bytes of a call step their types and shapes."""
    external_engine.run(
        [_typed(r, t) for r, t in zip(reads, read_types, strict=True)],
        [_typed(w, t) for w, t in zip(writes, write_types, strict=True)],
    )


def _typed(raw: np.ndarray, tensor: TensorType) -> np.ndarray:
    return raw[: _bytes(tensor)].view(tensor.dtype).reshape(tensor.shape)
