"""Loads a validated plan as a program of the native engine: backends bring the memory and the steps of their queues."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nnstretch.devices.base.backend import (
    LoadableQueue,
    LoadableStep,
    LoadedDeviceQueues,
    LoadedQueues,
    LoadRequest,
    MemoryKey,
    OperandPlace,
)
from nnstretch.devices.base.spec import format_cores, is_simulated, usable_cores
from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import Buffer, KernelLaunch, Region, RegionKind, Step, StepKind, SubGraph
from nnstretch.devices.engine.binding.library import Engine, engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.errors import DeviceError, PackageError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanQueue, PlanStep

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Loaded:
    """A program with the queues that it runs on.

    Attributes:
        program: ready to run.
        queues: by the name of their backend.
    """

    program: Program
    queues: Mapping[str, LoadedQueues]

    @property
    def sources(self) -> dict[str, str]:
        """Name -> text of the kernel sources that the program is built from."""
        return {name: text for queues in self.queues.values() for name, text in queues.used_sources.items()}

    @property
    def device_queues(self) -> list[LoadedDeviceQueues]:
        """Queues with memory of their own."""
        return [queues for queues in self.queues.values() if isinstance(queues, LoadedDeviceQueues)]

    def untraced(self, seconds: np.ndarray, steps: int = 1) -> np.ndarray:
        """Seconds of a number of device steps in other runs, from those of traced runs; at least half of these."""
        cost = max((queues.trace_seconds for queues in self.device_queues), default=0.0)
        return np.maximum(seconds - steps * cost, seconds / 2)

    @property
    def host_arrays(self) -> dict[MemoryKey, np.ndarray]:
        """Memories of devices that lie in arrays of the host's."""
        return {key: array for queues in self.device_queues for key, array in queues.host_arrays.items()}

    def activate(self, others: Sequence[Loaded] = ()) -> None:
        """Prepares the queues for a run at the same time as programs in `others` run."""
        if not (others or self._need_activation):
            return
        found: dict[str, list[LoadedQueues]] = defaultdict(list)
        for loaded in (self, *others):
            for name, queues in loaded.queues.items():
                found[name].append(queues)
        for first, *more in found.values():
            first.activate(more)

    @cached_property
    def _need_activation(self) -> bool:
        """Whether some queues have anything to do before a run."""
        return any(type(queues).activate is not LoadedQueues.activate for queues in self.queues.values())

    def distrust(self) -> None:
        """After a failure: programs that are loaded from now on share nothing with this one that may be broken."""
        for queues in self.queues.values():
            queues.distrust()

    def close(self) -> None:
        """Frees the program and its memory."""
        self.program.close()


def load_program(
    compiled: Compiled, sources: Mapping[str, str] | None, native: Engine | None = None, replica: Loaded | None = None
) -> Loaded:
    """Binds a plan that `validate` has passed to an engine, by default this machine's.

    Args:
        compiled: the plan with its constants.
        sources: kernel sources to build instead of the installed ones.
        native: the engine.
        replica: the same plan, loaded before. Its weights and built kernels serve this program too, which has
            memory of its own for everything that a run writes.

    Raises:
        PackageError: the plan was made for an engine of another block size, or names unknown kernels.
        DeviceError: a processor is missing, simulated or out of memory.
    """
    plan = compiled.plan
    simulated = [queue.processor for queue in plan.queues if is_simulated(queue.processor)]
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
    queues = _load_queues(plan, native, sources, replica)
    return Loaded(_Loader(compiled, native, queues).load(), queues)


def _load_queues(
    plan: Plan, native: Engine, sources: Mapping[str, str] | None, replica: Loaded | None
) -> dict[str, LoadedQueues]:
    """The plan's queues by the name of their backend."""
    requested: dict[str, dict[int, LoadableQueue]] = defaultdict(dict)
    backends = {queue.kind: queue.backend for queue in plan.queues}
    for number, (queue, here) in enumerate(zip(plan.queues, place_queues(plan.queues, usable_cores()), strict=True)):
        requested[queue.kind][number] = LoadableQueue(queue.processor, queue.cores, here.cores, here.ratios)
    return {
        name: backends[name].load(LoadRequest(queues, native, sources, replica.queues[name] if replica else None))
        for name, queues in requested.items()
    }


class _Loader:
    """Puts regions, buffers and steps together that the program has."""

    def __init__(self, compiled: Compiled, native: Engine, queues: Mapping[str, LoadedQueues]) -> None:
        self._compiled, self._plan, self._native = compiled, compiled.plan, native
        self._loaded = queues
        self._regions: list[Region] = []
        self._region_of: dict[MemoryKey, int] = {}
        self._buffer_of: dict[int, int] = {}  # number in the plan -> number in the program
        self._launches: list[KernelLaunch] = []
        self._calls: list[CallFunction] = []

    def load(self) -> Program:
        self._require_device_memory()
        self._make_regions()
        self._make_device_memory()
        buffers = self._engine_buffers()
        plan = self._plan
        queues = [self._loaded[queue.kind].engine_queue(number) for number, queue in enumerate(plan.queues)]
        steps = [
            self._step(step, subgraph.queue)
            for subgraph in plan.subgraphs
            for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]
        ]
        semaphores = (
            # What each sub-graph on a queue of the backend waits for; nothing for sub-graphs on other queues.
            loaded.semaphores([s.waits if plan.queues[s.queue].kind == name else () for s in plan.subgraphs])
            for name, loaded in self._loaded.items()
        )
        return Program(
            queues,
            self._regions,
            buffers,
            steps,
            self._subgraphs(),
            launches=self._launches,
            calls=self._calls,
            semaphores=next((found for found in semaphores if found is not None), None),
            native=self._native,
            keep=self._loaded,
        )

    def _subgraphs(self) -> list[SubGraph]:
        def regions(slots: Sequence[int]) -> tuple[int, ...]:
            return tuple(self._region_of["shared", slot] for slot in slots)

        return [
            SubGraph(s.queue, s.count, s.waits, regions(s.acquires), regions(s.releases)) for s in self._plan.subgraphs
        ]

    # -- memory --------------------------------------------------------------------------------------------------

    def _add_region(self, key: MemoryKey, region: Region) -> None:
        self._region_of[key] = len(self._regions)
        self._regions.append(region)

    def _make_regions(self) -> None:
        """The caller's arrays and host memory."""
        plan = self._plan
        for index, tensor in enumerate(plan.inputs):
            self._add_region(("input", index), Region(RegionKind.INPUT, tensor.type.bytes, index))
        for index, tensor in enumerate(plan.outputs):
            self._add_region(("output", index), Region(RegionKind.OUTPUT, tensor.type.bytes, index))
        if any(buffer.memory == "host" for buffer in plan.buffers):  # tensors may all be empty
            self._add_region(("host", 0), _fixed(aligned_array(max(1, plan.host_bytes))))
        if 0 in plan.constant_ranges and plan.constant_ranges[0][1]:
            self._add_region(("constant", 0), _fixed(self._constants(0)))

    def _require_device_memory(self) -> None:
        """Checks that every device may hold what the plan needs there."""
        plan = self._plan
        sizes: dict[int, list[int]] = defaultdict(list)
        shared: dict[int, list[int]] = defaultdict(list)
        for owner, size in zip(plan.shared_queues, plan.shared_bytes, strict=True):
            shared[owner].append(size)
        for queue, (_, size) in plan.constant_ranges.items():
            if queue:
                sizes[queue].append(size)
        for queue, size in plan.device_bytes.items():
            sizes[queue].append(size)
        for queue in sizes.keys() | shared.keys():
            self._device(queue).require_memory(queue, sizes[queue], shared[queue])

    def _make_device_memory(self) -> None:
        """Memory of queues that do not work in host memory, and what they share with the host."""
        plan = self._plan
        for queue in dict.fromkeys(plan.shared_queues):
            slots = {slot: plan.shared_bytes[slot] for slot, owner in enumerate(plan.shared_queues) if owner == queue}
            for slot, region in self._device(queue).share(queue, slots).items():
                self._add_region(("shared", slot), region)
        for queue, (_, size) in plan.constant_ranges.items():
            if queue and size:
                self._device(queue).hold_constants(queue, self._constants(queue))
        for queue, size in plan.device_bytes.items():
            if size:
                self._device(queue).hold_arena(queue, size)

    def _device(self, queue: int) -> LoadedDeviceQueues:
        loaded = self._loaded[self._plan.queues[queue].kind]
        assert isinstance(loaded, LoadedDeviceQueues), "validated plans give device memory to such queues only"
        return loaded

    def _constants(self, domain: int) -> np.ndarray:
        offset, size = self._plan.constant_ranges[domain]
        constants = self._compiled.constants
        if offset + size > constants.nbytes:
            raise PackageError(f"the plan's constants reach beyond the {constants.nbytes} bytes given")
        return constants[offset : offset + size]

    def _engine_buffers(self) -> list[Buffer]:
        """The buffers in regions of the engine; those in device memory are the backends' own."""
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
        target = self._loaded[self._plan.queues[queue].kind].step(queue, self._loadable(step))
        if isinstance(target, KernelLaunch):
            self._launches.append(target)
            return Step(StepKind.OPENCL, len(self._launches) - 1, name=name)
        reads = tuple(-1 if r is None else self._buffer_of[r] for r in step.reads)
        writes = tuple(self._buffer_of[w] for w in step.writes)
        if isinstance(target, int):
            return Step(StepKind.KERNEL, target, reads, writes, step.arguments, name)
        self._calls.append(target)
        return Step(StepKind.CALL, len(self._calls) - 1, reads, writes, name=name)

    def _loadable(self, step: PlanStep) -> LoadableStep:
        return LoadableStep(
            step.layer,
            step.routine,
            step.kind,
            step.kernel,
            tuple(None if r is None else self._place(r) for r in step.reads),
            tuple(map(self._place, step.writes)),
            step.read_types,
            step.write_types,
            step.arguments,
            step.launch,
            self._compiled.models.get(step.kernel),
        )

    def _place(self, number: int) -> OperandPlace:
        buffer = self._plan.buffers[number]
        return OperandPlace((buffer.memory, buffer.index), buffer.offset, buffer.bytes)


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


def _fixed(memory: np.ndarray) -> Region:
    return Region(RegionKind.FIXED, memory.nbytes, memory=memory)
