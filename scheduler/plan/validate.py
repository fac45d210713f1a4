"""Validation: checks that a plan is safe to run, before the engine sees it.

Every index and byte range exists. Sub-graphs cover the steps and wait for earlier ones only. No two accesses
of the same bytes race. Every read finds the value that it names, complete and not yet overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.backends import BACKENDS
from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.base.spec import format_cores
from nnstretch.devices.engine.binding.library import BUFFER_ALIGNMENT, MAX_RATIO
from nnstretch.errors import PackageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ELEMENT_TYPES, element_type
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.plan.happens_before import HappensBefore
from nnstretch.scheduler.plan.schema import Plan, PlanBuffer, PlanStep

_LIMIT = 1 << 40
"""Bytes that no region of a sane plan reaches."""


def validate(plan: Plan) -> None:
    """Checks a plan.

    Raises:
        PackageError: the first inconsistency, in one line.
    """
    _check_queues(plan)
    _check_buffers(plan)
    _check_steps(plan)
    _check_subgraphs(plan)
    order = HappensBefore(plan.subgraphs)
    _check_reachability(plan)
    _check_shared_slots(plan, order)
    accesses = _accesses(plan)
    _check_races(plan, accesses, order)
    _check_values(plan, accesses)


_ELEMENT_BYTES = {row.bytes for row in ELEMENT_TYPES.values() if row.code}


def _fail(what: str) -> PackageError:
    return PackageError(f"plan is inconsistent: {what}; compile it again")


def _check_queues(plan: Plan) -> None:
    if plan.block not in (4, 8, 16):
        raise _fail(f"block {plan.block} is not 4, 8 or 16")
    unknown = [queue.kind for queue in plan.queues if queue.kind not in BACKENDS]
    if unknown:
        raise _fail(f"queue of unknown kind {unknown[0]!r}")
    if not plan.queues or not plan.queues[0].backend.serves_caller:
        raise _fail("queue 0 is not a host queue")
    for queue in plan.queues:
        if any(core < 0 for core in queue.cores):
            raise _fail(f"queue {queue.processor} has cores {format_cores(queue.cores)}")
        if queue.ratios and (not queue.backend.has_ratios or len(queue.ratios) != len(queue.cores)):
            raise _fail(f"queue {queue.processor} has {len(queue.ratios)} ratios for {len(queue.cores)} cores of a CPU")
        if any(not 1 <= ratio <= MAX_RATIO for ratio in queue.ratios):
            raise _fail(f"queue {queue.processor} has ratios {list(queue.ratios)}, which are not all in 1..{MAX_RATIO}")


def _region_bytes(plan: Plan, buffer: PlanBuffer) -> int:
    """Size of the region that `buffer` lies in, or -1 if there is no such region."""
    if buffer.index < 0:
        return -1
    if buffer.memory == "input":
        return _tensor_bytes(plan.inputs[buffer.index].type) if buffer.index < len(plan.inputs) else -1
    if buffer.memory == "output":
        return _tensor_bytes(plan.outputs[buffer.index].type) if buffer.index < len(plan.outputs) else -1
    if buffer.memory == "constant":
        return plan.constant_ranges.get(buffer.index, (0, -1))[1]
    if buffer.memory == "host":
        return plan.host_bytes if buffer.index == 0 else -1
    if buffer.memory == "shared":
        return plan.shared_bytes[buffer.index] if buffer.index < len(plan.shared_bytes) else -1
    if buffer.memory == "device":
        return plan.device_bytes.get(buffer.index, -1)
    return -1


def _tensor_bytes(tensor: TensorType) -> int:
    return PLAIN.bytes(tensor)


def _check_buffers(plan: Plan) -> None:
    sizes = [plan.host_bytes, *plan.shared_bytes, *plan.device_bytes.values()]
    sizes += [n for r in plan.constant_ranges.values() for n in r]
    if any(not 0 <= size < _LIMIT for size in sizes):
        raise _fail("a memory region has an impossible size")
    if len(plan.shared_queues) != len(plan.shared_bytes):
        raise _fail("shared slots and their queues differ in number")
    for queue in [*plan.shared_queues, *plan.device_bytes, *(domain for domain in plan.constant_ranges if domain)]:
        if not 0 < queue < len(plan.queues) or not plan.queues[queue].backend.own_memory:
            raise _fail(f"memory of queue {queue}, which has no memory of its own")
    for i, buffer in enumerate(plan.buffers):
        size = _region_bytes(plan, buffer)
        if size < 0:
            raise _fail(f"buffer {i} lies in {buffer.memory} region {buffer.index}, which does not exist")
        if buffer.offset < 0 or buffer.bytes < 0 or buffer.offset + buffer.bytes > size:
            raise _fail(f"buffer {i} ({buffer.value}) reaches beyond its region of {size} bytes")
        if buffer.memory not in ("input", "output") and buffer.offset % BUFFER_ALIGNMENT:
            raise _fail(f"buffer {i} ({buffer.value}) is not aligned")


def _check_steps(plan: Plan) -> None:
    for i, step in enumerate(plan.steps):
        indices = [r for r in step.reads if r is not None] + list(step.writes)
        if any(not 0 <= b < len(plan.buffers) for b in indices):
            raise _fail(f"step {i} ({step.layer}) names a buffer that does not exist")
        if not step.writes:
            raise _fail(f"step {i} ({step.layer}) writes nothing")
        if any(plan.buffers[b].memory in ("input", "constant") for b in step.writes):
            raise _fail(f"step {i} ({step.layer}) writes to memory that may only be read")
        if (step.kind == "opencl") != (step.launch is not None) or step.kind not in ("kernel", "opencl", "call"):
            raise _fail(f"step {i} ({step.layer}) is of kind {step.kind!r} and does not fit it")
        if step.launch is not None and not _fit_elements(plan, step, step.launch.item_bytes):
            raise _fail(f"step {i} ({step.layer}) has operands that do not lie at whole elements")


def _fit_elements(plan: Plan, step: PlanStep, sizes: Sequence[int]) -> bool:
    """Whether all operands of an OpenCL step lie at whole elements of `sizes` bytes (see `Launch`)."""
    operands = (*step.reads, *step.writes)
    if sizes and (len(sizes) != len(operands) or not _ELEMENT_BYTES.issuperset(sizes)):
        return False
    pairs = zip(operands, sizes or (element_type(DEFAULT_DTYPE).bytes,) * len(operands), strict=True)
    return all(index is None or plan.buffers[index].offset % size == 0 for index, size in pairs)


def _check_subgraphs(plan: Plan) -> None:
    expected = 0
    for i, subgraph in enumerate(plan.subgraphs):
        if not 0 <= subgraph.queue < len(plan.queues):
            raise _fail(f"sub-graph {i} is on queue {subgraph.queue}, which does not exist")
        if subgraph.first != expected or subgraph.count < 1:
            raise _fail(f"sub-graph {i} starts at step {subgraph.first} where {expected} was due")
        expected += subgraph.count
        for wait in subgraph.waits:
            if not 0 <= wait < i:
                raise _fail(f"sub-graph {i} waits for {wait}, which does not come before it")
        slots = subgraph.acquires + subgraph.releases
        if any(not 0 <= s < len(plan.shared_bytes) or plan.shared_queues[s] != subgraph.queue for s in slots):
            raise _fail(f"sub-graph {i} acquires or releases a shared slot of another queue")
    if expected != len(plan.steps):
        raise _fail(f"sub-graphs cover {expected} of {len(plan.steps)} steps")


def _check_reachability(plan: Plan) -> None:
    """Every step may reach all its buffers from the queue it runs on."""
    for subgraph in plan.subgraphs:
        backend = plan.queues[subgraph.queue].backend
        for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            if step.kind not in backend.step_kinds:
                raise _fail(f"step {step.layer} of kind {step.kind!r} is on queue {subgraph.queue}")
            for index in [r for r in step.reads if r is not None] + list(step.writes):
                if not _reachable(plan, plan.buffers[index], subgraph.queue):
                    raise _fail(f"step {step.layer} cannot reach {plan.buffers[index].value} from its queue")


def _reachable(plan: Plan, buffer: PlanBuffer, queue: int) -> bool:
    if not plan.queues[queue].backend.own_memory:
        return buffer.memory != "device" and (buffer.memory != "constant" or buffer.index == 0)
    if buffer.memory in ("constant", "device"):
        return buffer.index == queue
    return buffer.memory == "shared" and plan.shared_queues[buffer.index] == queue


def _check_shared_slots(plan: Plan, order: HappensBefore) -> None:
    """A shared slot that the device touches in a sub-graph is acquired (read) or released (written) there."""
    for i, subgraph in enumerate(plan.subgraphs):
        if not plan.queues[subgraph.queue].backend.own_memory:
            continue
        for number in range(subgraph.first, subgraph.first + subgraph.count):
            step = plan.steps[number]
            for index in step.writes:
                buffer = plan.buffers[index]
                if buffer.memory == "shared" and buffer.index not in subgraph.releases:
                    raise _fail(f"sub-graph {i} writes shared slot {buffer.index} without releasing it")
            for read in step.reads:
                if read is None or plan.buffers[read].memory != "shared":
                    continue
                slot = plan.buffers[read].index
                if slot not in subgraph.acquires and slot not in subgraph.releases:
                    raise _fail(f"sub-graph {i} reads shared slot {slot} without acquiring it")


@dataclass(frozen=True)
class _Access:
    step: int
    buffer: PlanBuffer
    write: bool


def _accesses(plan: Plan) -> dict[tuple[str, int], list[_Access]]:
    """All accesses of writable memory, by region, reads of a step before its writes."""
    regions: dict[tuple[str, int], list[_Access]] = defaultdict(list)
    for number, step in enumerate(plan.steps):
        for read in step.reads:
            if read is not None and plan.buffers[read].memory not in ("constant", "input"):
                buffer = plan.buffers[read]
                regions[buffer.memory, buffer.index].append(_Access(number, buffer, False))
        for write in step.writes:
            buffer = plan.buffers[write]
            regions[buffer.memory, buffer.index].append(_Access(number, buffer, True))
    return regions


def _check_races(plan: Plan, regions: dict[tuple[str, int], list[_Access]], order: HappensBefore) -> None:
    for accesses in regions.values():
        accesses = sorted(accesses, key=lambda a: a.buffer.offset)
        for i, one in enumerate(accesses):
            for other in accesses[i + 1 :]:
                if other.buffer.offset >= one.buffer.offset + one.buffer.bytes:
                    break
                in_place = one.step == other.step and _range(one.buffer) == _range(other.buffer)
                if in_place or not (one.write or other.write):
                    continue
                if not (order.steps(one.step, other.step) or order.steps(other.step, one.step)):
                    raise _fail(
                        f"steps {plan.steps[one.step].layer} and {plan.steps[other.step].layer} may touch the same "
                        f"bytes of {one.buffer.value} and {other.buffer.value} at the same time"
                    )


def _range(buffer: PlanBuffer) -> tuple[int, int]:
    return buffer.offset, buffer.bytes


def _check_values(plan: Plan, regions: dict[tuple[str, int], list[_Access]]) -> None:
    """Replays the accesses in order and tracks the value in each byte range."""
    for number, accesses in regions.items():
        held: list[tuple[int, int, str]] = []
        for access in accesses:
            start, end = access.buffer.offset, access.buffer.offset + access.buffer.bytes
            if access.write:
                held = _overwrite(held, start, end, access.buffer.value)
            elif not _holds(held, start, end, access.buffer.value):
                step: PlanStep = plan.steps[access.step]
                raise _fail(f"step {step.layer} reads {access.buffer.value} in {number[0]} before it is written")
    for index, output in enumerate(plan.outputs):
        written = regions.get(("output", index), [])
        size = _tensor_bytes(output.type)
        held = []
        for access in written:
            if access.write:
                held = _overwrite(
                    held, access.buffer.offset, access.buffer.offset + access.buffer.bytes, access.buffer.value
                )
        if sum(end - start for start, end, _ in held) < size:
            raise _fail(f"output {output.name} is not written in full")


def _overwrite(held: list[tuple[int, int, str]], start: int, end: int, value: str) -> list[tuple[int, int, str]]:
    kept = []
    for a, b, v in held:
        if a < start:
            kept.append((a, min(b, start), v))
        if b > end:
            kept.append((max(a, end), b, v))
    if end > start:
        kept.append((start, end, value))
    return sorted(k for k in kept if k[1] > k[0])


def _holds(held: list[tuple[int, int, str]], start: int, end: int, value: str) -> bool:
    position = start
    for a, b, v in held:
        if b <= position or v != value:
            continue
        if a > position:
            break
        position = b
    return position >= end
