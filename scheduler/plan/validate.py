"""Validation: checks that a plan is safe to run, before the engine sees it.

Every index and byte range exists. Sub-graphs cover the steps and wait for earlier ones only. No two accesses
of the same bytes race. Every read finds the value that it names, complete and not yet overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.backends import BACKENDS
from nnstretch.devices.base.routine import BLOCKS, PIXEL_NUMBERS, PLAIN, Launch
from nnstretch.devices.base.spec import format_cores
from nnstretch.devices.engine.binding.library import BUFFER_ALIGNMENT, MAX_RATIO
from nnstretch.errors import PackageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ELEMENT_TYPES, FLOAT16, element_type
from nnstretch.scheduler.plan.schema import Memory, Plan, PlanBuffer, PlanStep, PlanSubgraph


class HappensBefore:
    """Order of sub-graphs and of their steps, on which all checks of concurrency rest.

    A sub-graph comes after earlier ones of its queue, since queues run in order, after the sub-graphs that it
    waits for, and after everything before these. Two unordered sub-graphs may run at the same time.
    """

    def __init__(self, subgraphs: Sequence[PlanSubgraph]) -> None:
        """Computes the order of `subgraphs`, which must be listed topologically (waits name earlier ones)."""
        last_on_queue: dict[int, int] = {}
        self._before: list[int] = []
        self._subgraph_of: list[int] = []
        for i, subgraph in enumerate(subgraphs):
            direct = set(subgraph.waits)
            if subgraph.queue in last_on_queue:
                direct.add(last_on_queue[subgraph.queue])
            before = 0
            for earlier in direct:
                before |= self._before[earlier] | 1 << earlier
            self._before.append(before)
            self._subgraph_of += [i] * subgraph.count
            last_on_queue[subgraph.queue] = i

    def subgraphs(self, first: int, second: int) -> bool:
        """Whether sub-graph `first` is done before `second` starts."""
        return bool(self._before[second] >> first & 1)

    def steps(self, first: int, second: int) -> bool:
        """Whether step `first` is done before step `second` starts."""
        a, b = self._subgraph_of[first], self._subgraph_of[second]
        return first < second if a == b else self.subgraphs(a, b)


_LIMIT = 1 << 40
"""Bytes that no region of a sane plan reaches."""

_INT32_MIN, _INT32_MAX, _UINT32_MAX = -(1 << 31), (1 << 31) - 1, (1 << 32) - 1


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


_PIXEL_ITEM_BYTES = {element_type(name).bytes for name in (DEFAULT_DTYPE, FLOAT16)}
_ELEMENT_BYTES = {row.bytes for row in ELEMENT_TYPES.values() if row.code}


def _fail(what: str) -> PackageError:
    return PackageError(f"plan is inconsistent: {what}; compile it again")


def _check_queues(plan: Plan) -> None:
    if plan.block not in BLOCKS:
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


def _region_sizes(plan: Plan) -> dict[tuple[Memory, int], int]:
    """Bytes of every region of memory that a buffer may lie in."""
    return {
        **{("input", i): PLAIN.bytes(tensor.type) for i, tensor in enumerate(plan.inputs)},
        **{("output", i): PLAIN.bytes(tensor.type) for i, tensor in enumerate(plan.outputs)},
        **{("constant", domain): size for domain, (_, size) in plan.constant_ranges.items()},
        ("host", 0): plan.host_bytes,
        **{("shared", slot): size for slot, size in enumerate(plan.shared_bytes)},
        **{("device", queue): size for queue, size in plan.device_bytes.items()},
    }


def _check_buffers(plan: Plan) -> None:
    sizes = [plan.host_bytes, *plan.shared_bytes, *plan.device_bytes.values()]
    sizes += [n for r in plan.constant_ranges.values() for n in r]
    ends = [*plan.inputs, *plan.outputs]
    if any(length < 0 for tensor in ends for length in tensor.type.shape):
        raise _fail("an input or output has a negative length")
    sizes += [PLAIN.bytes(tensor.type) for tensor in ends]
    if any(not 0 <= size < _LIMIT for size in sizes):
        raise _fail("a memory region has an impossible size")
    if len(plan.shared_queues) != len(plan.shared_bytes):
        raise _fail("shared slots and their queues differ in number")
    for queue in [*plan.shared_queues, *plan.device_bytes, *(domain for domain in plan.constant_ranges if domain)]:
        if not 0 < queue < len(plan.queues) or not plan.queues[queue].backend.own_memory:
            raise _fail(f"memory of queue {queue}, which has no memory of its own")
    sizes_of = _region_sizes(plan)
    for i, buffer in enumerate(plan.buffers):
        size = sizes_of.get((buffer.memory, buffer.index))
        if size is None:
            raise _fail(f"buffer {i} lies in {buffer.memory} region {buffer.index}, which does not exist")
        if buffer.offset < 0 or buffer.bytes < 0 or buffer.offset + buffer.bytes > size:
            raise _fail(f"buffer {i} ({buffer.value}) reaches beyond its region of {size} bytes")
        if buffer.memory not in ("input", "output") and buffer.offset % BUFFER_ALIGNMENT:
            raise _fail(f"buffer {i} ({buffer.value}) is not aligned")


def _check_steps(plan: Plan) -> None:
    if not 0 <= plan.repeated_macs <= sum(step.macs for step in plan.steps):
        raise _fail(f"steps repeat {plan.repeated_macs} MACs, which they do not have")
    for i, step in enumerate(plan.steps):
        indices = [r for r in step.reads if r is not None] + list(step.writes)
        if any(not 0 <= b < len(plan.buffers) for b in indices):
            raise _fail(f"step {i} ({step.layer}) names a buffer that does not exist")
        if not step.writes:
            raise _fail(f"step {i} ({step.layer}) writes nothing")
        if any(plan.buffers[b].memory in ("input", "constant") for b in step.writes):
            raise _fail(f"step {i} ({step.layer}) writes to memory that may only be read")
        if step.launch is not None:
            if not _fit_elements(plan, step, step.launch.item_bytes):
                raise _fail(f"step {i} ({step.layer}) has operands that do not lie at whole elements")
            _check_launch(plan, step, step.launch)
            if not _fit_images(plan, step, step.launch):
                raise _fail(f"step {i} ({step.layer}) reads an image of what is no constant of whole pixels")


def _fit_elements(plan: Plan, step: PlanStep, sizes: Sequence[int]) -> bool:
    """Whether all operands of an OpenCL step lie at whole elements of `sizes` bytes (see `Launch`)."""
    operands = (*step.reads, *step.writes)
    if sizes and (len(sizes) != len(operands) or not _ELEMENT_BYTES.issuperset(sizes)):
        return False
    pairs = zip(operands, sizes or (element_type(DEFAULT_DTYPE).bytes,) * len(operands), strict=True)
    return all(index is None or plan.buffers[index].offset % size == 0 for index, size in pairs)


def _fit_images(plan: Plan, step: PlanStep, launch: Launch) -> bool:
    """Whether images are made of constants alone, of floats, that begin and end with whole pixels (see `Launch.images`)."""
    if not launch.images:
        return True
    if not 0 < launch.images < 1 << len(step.reads) or not launch.item_bytes:
        return False
    read = [
        (n, size)
        for i, (n, size) in enumerate(zip(step.reads, launch.item_bytes, strict=False))
        if launch.images >> i & 1
    ]
    buffers = [(None if number is None else plan.buffers[number], size) for number, size in read]
    return all(
        buffer is not None
        and buffer.memory == "constant"
        and buffer.bytes > 0
        and size in _PIXEL_ITEM_BYTES
        and buffer.offset % (PIXEL_NUMBERS * size) == buffer.bytes % (PIXEL_NUMBERS * size) == 0
        for buffer, size in buffers
    )


def _check_launch(plan: Plan, step: PlanStep, launch: Launch) -> None:
    """OpenCL kernels count in 32 bits: parameters are signed or unsigned, places of elements are signed."""
    sizes = (*launch.global_size, *(launch.local_size or ()))
    ranks = {len(launch.global_size), len(launch.local_size or launch.global_size)}
    if len(ranks) != 1 or not ranks <= {1, 2, 3} or not all(1 <= size <= _INT32_MAX for size in sizes):
        raise _fail(f"{step.layer} launches {step.kernel} with sizes {launch.global_size} and {launch.local_size}")
    operands = (*step.reads, *step.writes)
    ends = [0 if b is None else plan.buffers[b].offset + plan.buffers[b].bytes for b in operands]
    item_bytes = launch.item_bytes or (element_type(DEFAULT_DTYPE).bytes,) * len(operands)
    words = (*step.arguments, *(value for _, value in launch.defines))
    wide = [word for word in words if not _INT32_MIN <= word <= _UINT32_MAX]
    wide += [-(-end // size) for end, size in zip(ends, item_bytes, strict=True) if end > size * _INT32_MAX]
    if wide:
        raise PackageError(
            f"layer {step.layer} needs the number {wide[0]} in the OpenCL kernel {step.kernel}, which counts in 32 bits; "
            "compute the layer on the CPU, or use a smaller input or batch"
        )


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
            if not backend.runs(step.kind, step.launch):
                raise _fail(f"queue {subgraph.queue} does not run step {step.layer} of kind {step.kind!r}")
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
    """All accesses of writable memory, by region, reads of a step before its writes; empty tensors touch no bytes."""
    regions: dict[tuple[str, int], list[_Access]] = defaultdict(list)
    for number, step in enumerate(plan.steps):
        for read in step.reads:
            if read is not None and plan.buffers[read].memory not in ("constant", "input"):
                buffer = plan.buffers[read]
                regions[buffer.memory, buffer.index].append(_Access(number, buffer, False))
        for write in step.writes:
            buffer = plan.buffers[write]
            regions[buffer.memory, buffer.index].append(_Access(number, buffer, True))
    return {region: [a for a in accesses if a.buffer.bytes] for region, accesses in regions.items()}


def _check_races(plan: Plan, regions: dict[tuple[str, int], list[_Access]], order: HappensBefore) -> None:
    for accesses in regions.values():
        accesses = sorted(accesses, key=lambda a: a.buffer.offset)
        for i, one in enumerate(accesses):
            for other in accesses[i + 1 :]:
                if other.buffer.offset >= one.buffer.offset + one.buffer.bytes:
                    break
                same_bytes = (one.buffer.offset, one.buffer.bytes) == (other.buffer.offset, other.buffer.bytes)
                if (one.step == other.step and same_bytes) or not (one.write or other.write):
                    continue
                if not (order.steps(one.step, other.step) or order.steps(other.step, one.step)):
                    raise _fail(
                        f"steps {plan.steps[one.step].layer} and {plan.steps[other.step].layer} may touch the same "
                        f"bytes of {one.buffer.value} and {other.buffer.value} at the same time"
                    )


def _check_values(plan: Plan, regions: dict[tuple[str, int], list[_Access]]) -> None:
    """Replays the accesses in order and tracks the value in each byte range."""
    written: dict[tuple[str, int], list[tuple[int, int, str]]] = {}
    for region, accesses in regions.items():
        held: list[tuple[int, int, str]] = []
        for access in accesses:
            start, end = access.buffer.offset, access.buffer.offset + access.buffer.bytes
            if access.write:
                held = _overwrite(held, start, end, access.buffer.value)
            elif not _holds(held, start, end, access.buffer.value):
                step: PlanStep = plan.steps[access.step]
                raise _fail(f"step {step.layer} reads {access.buffer.value} in {region[0]} before it is written")
        written[region] = held
    for index, output in enumerate(plan.outputs):
        if sum(end - start for start, end, _ in written.get(("output", index), ())) < PLAIN.bytes(output.type):
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
