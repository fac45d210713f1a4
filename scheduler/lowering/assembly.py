"""Assembly: a lowered program gets the order of its steps, places in memory, and becomes a validated plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.devices.base.constants import Constant, write_constants
from nnstretch.devices.base.spec import default_cores
from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.lowering.program import LoweredProgram, Step, Subgraph, Value, partition
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.plan.compiled import LazyConstants
from nnstretch.scheduler.plan.memory import Tenant, plan_arena
from nnstretch.scheduler.plan.schema import (
    Memory,
    Plan,
    PlanBuffer,
    PlanQueue,
    PlanStep,
    PlanSubgraph,
    PlanTensor,
    aligned,
)
from nnstretch.scheduler.plan.validate import HappensBefore, validate

_PAGE = 4096


class Assembler:
    """Orders the steps of a lowered program and places its values in memory."""

    def __init__(self, graph: UnitGraph, lowered: LoweredProgram, queues: Sequence[PlanQueue], block: int) -> None:
        self._graph, self._queues, self._block = graph, queues, block
        self._constants = lowered.constants
        subgraphs = partition(lowered.steps)
        self._steps: list[Step] = [lowered.steps[number] for s in subgraphs for number in s.steps]
        self._subgraphs = subgraphs
        self._users: dict[Value, list[int]] = defaultdict(list)
        for number, step in enumerate(self._steps):
            for value in (*step.reads, *step.writes):
                if isinstance(value, Value):
                    self._users[value.base()].append(number)
        self._place: dict[Value, tuple[Memory, int, int]] = {}
        self._overwritten: dict[Value, Value] = {}
        self._buffers: dict[PlanBuffer, int] = {}

    def assemble(self) -> tuple[Plan, LazyConstants]:
        """The validated plan, and its constants."""
        order = HappensBefore([PlanSubgraph(s.queue, 0, len(s.steps), tuple(s.waits)) for s in self._subgraphs])
        shared_bytes, shared_queues = self._place_shared()
        self._find_overwritten(order)
        host_bytes, device_bytes = self._place_arenas(order)
        packing = _Packing(self._constants)
        plan_steps = tuple(self._plan_step(step, packing.places) for step in self._steps)
        plan = Plan(
            block=self._block,
            queues=tuple(self._queues),
            inputs=self._tensors(self._graph.inputs),
            outputs=self._tensors(self._graph.outputs),
            buffers=tuple(self._buffers),
            steps=plan_steps,
            subgraphs=self._plan_subgraphs(),
            host_bytes=host_bytes,
            shared_bytes=tuple(shared_bytes),
            shared_queues=tuple(shared_queues),
            device_bytes=device_bytes,
            constant_ranges=packing.ranges,
            repeated_macs=self._graph.repeated_macs,
        )
        validate(plan)
        return plan, LazyConstants(packing.packed)

    def _tensors(self, names: Sequence[str]) -> tuple[PlanTensor, ...]:
        return tuple(PlanTensor(n, self._graph.types[n]) for n in names)

    # -- places --------------------------------------------------------------------------------------------------

    def _sides(self, value: Value) -> tuple[int, bool]:
        """The queue with memory of its own that uses a value (0 if none does; lowering gives no value to two of them).

        And whether queues that work in host memory use it.
        """
        domains = {self._queues[self._steps[i].queue].backend.domain(self._steps[i].queue) for i in self._users[value]}
        return max(domains, default=0), 0 in domains

    def _place_shared(self) -> tuple[list[int], list[int]]:
        """Places the caller's tensors, and each value that host and device share in a shared slot.

        Host and device must not use one memory object at the same time, so every slot is an object of its own.
        """
        sizes: list[int] = []
        queues: list[int] = []
        for value in self._users:
            if value.external:
                memory: Memory = "input" if value.external[0] == "input" else "output"
                self._place[value] = (memory, value.external[1], 0)
                continue
            device, host = self._sides(value)
            if device and host:
                self._place[value] = ("shared", len(sizes), 0)
                sizes.append(aligned(value.bytes))
                queues.append(device)
        return sizes, queues

    def _find_overwritten(self, order: HappensBefore) -> None:
        """Finds values that may overwrite an operand after its last use (in-place layers)."""
        for number, step in enumerate(self._steps):
            if step.call.launch or step.call.in_place is None:
                continue
            old, new = step.reads[step.call.in_place], step.writes[0]
            if isinstance(old, Value) and self._may_overwrite(old, new, number, order):
                self._overwritten[new] = old

    def _may_overwrite(self, old: Value, new: Value, number: int, order: HappensBefore) -> bool:
        """Whether step `number` is the last reader of `old` and may write `new` over it."""
        if old.root or new.root or old.bytes != new.bytes:
            return False
        if old in self._place or new in self._place or any(self._sides(v)[0] for v in (old, new)):
            return False
        mine = [v for v in self._steps[number].reads if isinstance(v, Value) and v.base() is old]
        return len(mine) == 1 and all(user == number or order.steps(user, number) for user in self._users[old])

    def _origin(self, value: Value) -> Value:
        """The first of the values that overwrite each other down to `value`."""
        return self._origin(self._overwritten[value]) if value in self._overwritten else value

    def _place_arenas(self, order: HappensBefore) -> tuple[int, dict[int, int]]:
        arenas: dict[int, dict[Value, list[int]]] = defaultdict(lambda: defaultdict(list))
        for value, users in self._users.items():
            if value not in self._place:
                device, _ = self._sides(value)
                arenas[device][self._origin(value)] += users
        sizes: dict[int, int] = {}
        for queue, values in arenas.items():
            tenants = [Tenant(v.bytes, tuple(users)) for v, users in values.items()]
            offsets, sizes[queue] = plan_arena(tenants, order.steps)
            memory: Memory = "device" if queue else "host"
            self._place.update({v: (memory, queue, o) for v, o in zip(values, offsets, strict=True)})
        self._place.update({v: self._place[self._origin(v)] for v in self._overwritten})
        return sizes.pop(0, 0), sizes

    # -- records -------------------------------------------------------------------------------------------------

    def _buffer(self, buffer: PlanBuffer) -> int:
        return self._buffers.setdefault(buffer, len(self._buffers))

    def _value_buffer(self, value: Value) -> int:
        base = value.base()
        memory, index, offset = self._place[base]
        return self._buffer(PlanBuffer(base.name, memory, index, offset + value.base_offset(), value.bytes))

    def _plan_step(self, step: Step, places: dict[int, list[tuple[int, int]]]) -> PlanStep:
        domain = self._queues[step.queue].backend.domain(step.queue)

        def read(value: Value | int | None) -> int | None:
            if isinstance(value, int):
                offset, size = places[domain][value]
                return self._buffer(PlanBuffer(f"{step.unit}.constant{value}", "constant", domain, offset, size))
            return None if value is None else self._value_buffer(value)

        call = step.call
        is_model = call.model is not None
        return PlanStep(
            layer=step.unit,
            op=step.op,
            routine=step.routine,
            kind=call.kind,
            kernel=call.kernel,
            reads=tuple(read(r) for r in step.reads),
            writes=tuple(self._value_buffer(w) for w in step.writes),
            arguments=call.parameters,
            parameters=dict(sorted(step.parameters.items())),  # the profile store and a search have orders of their own
            launch=call.launch,
            cost_ms=None if step.seconds is None else step.seconds * 1e3,
            macs=step.macs,
            read_types=_types(step.reads) if is_model else (),
            write_types=_types(step.writes) if is_model else (),
            is_fallback=step.is_fallback,
        )

    def _plan_subgraphs(self) -> tuple[PlanSubgraph, ...]:
        subgraphs: list[PlanSubgraph] = []
        first = 0
        for subgraph in self._subgraphs:
            acquires, releases = self._slots(subgraph, first)
            count = len(subgraph.steps)
            subgraphs.append(
                PlanSubgraph(subgraph.queue, first, count, tuple(sorted(subgraph.waits)), acquires, releases)
            )
            first += count
        return tuple(subgraphs)

    def _slots(self, subgraph: Subgraph, first: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shared slots that a sub-graph on a device reads, and those that it writes."""
        if not self._queues[subgraph.queue].backend.own_memory:
            return (), ()
        mine = self._steps[first : first + len(subgraph.steps)]
        reads = [v for step in mine for v in step.reads if isinstance(v, Value)]
        return self._shared(reads), self._shared([v for step in mine for v in step.writes])

    def _shared(self, values: Sequence[Value]) -> tuple[int, ...]:
        """The shared slots in which values lie, ascending."""
        places = (self._place[value.base()] for value in values)
        return tuple(sorted({index for memory, index, _ in places if memory == "shared"}))


def _types(values: Sequence[Value | int | None]) -> tuple[TensorType, ...]:
    return tuple(v.type for v in values if isinstance(v, Value) and v.type is not None)


class _Packing:
    """Offsets of constants in one array of bytes.

    Attributes:
        ranges: (offset, bytes) of every domain.
        places: (offset in the range, bytes) of every constant, by domain.
    """

    def __init__(self, constants: Mapping[int, Sequence[Constant]]) -> None:
        self._constants = constants
        self._end = 0
        self.ranges: dict[int, tuple[int, int]] = {}
        self.places: dict[int, list[tuple[int, int]]] = {}
        for domain, mine in sorted(constants.items()):
            self.places[domain] = []
            size = 0
            for constant in mine:
                self.places[domain].append((size, constant.nbytes))
                size = aligned(size + constant.nbytes)
            self.ranges[domain] = (self._end, size)
            self._end = -(-(self._end + size) // _PAGE) * _PAGE

    def packed(self) -> np.ndarray:
        """All constants, uint8."""
        memory = aligned_array(self._end)
        jobs = []
        for domain, constants in self._constants.items():
            start, _ = self.ranges[domain]
            for constant, (offset, size) in zip(constants, self.places[domain], strict=True):
                jobs.append((constant, memory[start + offset : start + offset + size]))
        write_constants(jobs, len(default_cores()))
        return memory
