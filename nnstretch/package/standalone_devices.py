"""The part of a model file that describes its OpenCL queues: devices/engine/standalone/model_file.h defines its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from nnstretch.devices.base.routine import Launch
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.errors import DeviceError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, element_type
from nnstretch.scheduler.plan.schema import Plan, PlanQueue, PlanStep, aligned

SEMAPHORE_SOURCE = "semaphore.cl"
_ABSENT, _CONSTANTS, _ARENA, _FIRST_SLOT = -1, 0, 1, 2

ProgramKey = tuple[int, str, tuple[tuple[str, int], ...]]
"""Device, source and macros of a program."""


@dataclass(frozen=True)
class DeviceName:
    """The device that a queue was planned for.

    Attributes:
        index: its number in `opencl:INDEX`.
        platform: the driver's platform, "" if it is not known.
        name: the device's name, "" if it is not known.
    """

    index: int
    platform: str = ""
    name: str = ""


@dataclass(frozen=True)
class PlanDevices:
    """The OpenCL queues of a plan, numbered from 0 in the order of its queues.

    Attributes:
        plan: the plan.
        there: devices of the machine that runs it, in the order in which `opencl:INDEX` counts; None: those of this machine.
    """

    plan: Plan
    there: Sequence[DeviceName] | None = None

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """Their numbers in the plan."""
        return tuple(number for number, queue in enumerate(self.plan.queues) if queue.kind == "opencl")

    @cached_property
    def slots(self) -> Mapping[int, int]:
        """Shared slot of the plan -> its number in the file, where each device's slots are consecutive."""
        owners = self.plan.shared_queues
        ordered = [slot for queue in self.queues for slot, owner in enumerate(owners) if owner == queue]
        return {slot: number for number, slot in enumerate(ordered)}

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps that launch kernels, in the order of the sub-graphs."""
        plan = self.plan
        return tuple(
            step
            for subgraph in plan.subgraphs
            for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]
            if step.launch is not None
        )

    @property
    def reads_images(self) -> bool:
        """Whether kernels read images."""
        return any(_launch_of(step).images for step in self.steps)

    @cached_property
    def constant_ranges(self) -> tuple[tuple[int, int], ...]:
        """Offset and bytes of each device's constants in `Compiled.constants`."""
        return tuple(self.plan.constant_ranges.get(queue, (0, 0)) for queue in self.queues)

    def constant_places(self, host_bytes: int) -> list[int]:
        """Offset of each device's constants in the file's, after those of host queues, and the end of all."""
        places = [aligned(host_bytes) if self.queues else host_bytes]
        for _, size in self.constant_ranges:
            places.append(aligned(places[-1] + size))
        return places

    def words(self, host_bytes: int) -> Iterable[int]:
        """The words of the devices.

        Args:
            host_bytes: size of the constants of host queues.
        """
        yield len(self.queues)
        for queue, place, (_, size) in zip(
            self.queues, self.constant_places(host_bytes)[:-1], self.constant_ranges, strict=True
        ):
            slots = [self.plan.shared_bytes[slot] for slot in self.slots if self.plan.shared_queues[slot] == queue]
            index = _spec_index(self.plan.queues[queue])
            yield from (queue, index, place, size, self.plan.device_bytes.get(queue, 0), len(slots), *slots)
        yield len(self._sources)
        yield len(self._programs)
        for device, source, macros in self._programs:
            yield from (device, self._sources.index(source), len(macros), *(value for _, value in macros))
        yield len(self.steps)
        for step, program in zip(self.steps, self._program_of, strict=True):
            yield from self._launch(step, _launch_of(step), self._programs.index(program))

    def texts(self) -> Iterable[str]:
        """The strings of the devices, in the order in which the words refer to them."""
        for queue in self.queues:
            device = self._named(self.plan.queues[queue])
            yield from (device.platform, device.name)
        yield from chain.from_iterable((name, kernel_source(name)) for name in self._sources)
        yield from (name for _, _, macros in self._programs for name, _ in macros)
        yield from (step.kernel for step in self.steps)

    def _named(self, queue: PlanQueue) -> DeviceName:
        """The device of a queue, without names if it is not known."""
        index = _spec_index(queue)
        if self.there is None:
            return _device_here(index, queue.cores)
        return self.there[index] if index < len(self.there) else DeviceName(index)

    @cached_property
    def _program_of(self) -> tuple[ProgramKey, ...]:
        """The program of each of `steps`."""
        plan = self.plan
        numbers = {queue: number for number, queue in enumerate(self.queues)}
        on = [s.queue for s in plan.subgraphs for step in plan.steps[s.first : s.first + s.count] if step.launch]
        launches = [_launch_of(step) for step in self.steps]
        return tuple((numbers[q], la.source, la.defines) for q, la in zip(on, launches, strict=True))

    @cached_property
    def _programs(self) -> tuple[ProgramKey, ...]:
        return tuple(dict.fromkeys(self._program_of))

    @cached_property
    def _sources(self) -> tuple[str, ...]:
        return tuple(sorted({SEMAPHORE_SOURCE, *(source for _, source, _ in self._programs)}))

    def _launch(self, step: PlanStep, launch: Launch, program: int) -> Iterable[int]:
        local = launch.local_size or (0,) * len(launch.global_size)
        yield from (program, len(launch.global_size), *launch.global_size, *local, len(step.reads), len(step.writes))
        operands = (*step.reads, *step.writes)
        sizes = launch.item_bytes or (element_type(DEFAULT_DTYPE).bytes,) * len(operands)
        for number, size in zip(operands, sizes, strict=True):
            yield from (*self._operand(number), size)
        yield from (len(step.arguments), *step.arguments)

    def _operand(self, number: int | None) -> tuple[int, int, int]:
        """Memory, offset and bytes of an operand."""
        if number is None:
            return _ABSENT, 0, 0
        buffer = self.plan.buffers[number]
        if buffer.memory == "shared":
            memory = _FIRST_SLOT + self.slots[buffer.index]
        else:
            memory = _CONSTANTS if buffer.memory == "constant" else _ARENA
        return memory, buffer.offset, buffer.bytes


def _launch_of(step: PlanStep) -> Launch:
    assert step.launch is not None, "validated plans have launches on OpenCL queues"
    return step.launch


def _spec_index(queue: PlanQueue) -> int:
    (spec,) = parse_processors(queue.processor, tuple(sorted(queue.cores)))
    return spec.index


def _device_here(index: int, cores: tuple[int, ...]) -> DeviceName:
    """A device of this machine, without names if it is not here."""
    from nnstretch.devices.opencl.drivers import device_info, load_drivers

    try:
        if index >= len(load_drivers(cores)):
            return DeviceName(index)
    except DeviceError:
        return DeviceName(index)
    info = device_info(index)
    return DeviceName(index, info.platform, info.name)
