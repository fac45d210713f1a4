"""Plans in simulated time, with the costs of their steps as durations, and models of interference between queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.simulated.profile import SocProfile
from nnstretch.errors import DeviceError
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.costs import Contention, ContentionFactors, CostModel
from nnstretch.scheduler.plan.schema import Plan, PlanSubgraph, QueuePool
from nnstretch.scheduler.runtime.timeline import Timeline, plan_timeline
from nnstretch.scheduler.simulation.events import SimulatedTask, run_tasks

_NANO = 1e9
_ELEMENT_BYTES = 4


class InterferenceModel(Protocol):
    """Costs between queues of a plan, which are given by number.

    Attributes:
        whole_tensors: whether a transfer moves whole tensors, or only the parts that other queues wrote.
    """

    @property
    def whole_tensors(self) -> bool: ...

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """Seconds from when `others` are done until `queue` can start a sub-graph that waited for them.

        `size` is the number of bytes to transfer; 0 for synchronisation only.
        """

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """Time of a queue while `others` compute over its time alone; at least 1."""


class NoInterference:
    """Queues without interference."""

    whole_tensors = False

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """Nothing."""
        return 0.0

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """None."""
        return 1.0


class ProfiledInterference:
    """Interference between processors of a profile."""

    whole_tensors = True

    def __init__(self, soc: SocProfile, names: Mapping[int, str]) -> None:
        """`names` are the processors behind the queues."""
        self._soc, self._names = soc, names

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        return self._soc.transfer_seconds(self._names[queue], self._named(others), size / _ELEMENT_BYTES)

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        return self._soc.slowdown(self._names[queue], self._named(others))

    def _named(self, queues: frozenset[int]) -> frozenset[str]:
        return frozenset(self._names[queue] for queue in queues)


def simulate(plan: Plan, interference: InterferenceModel) -> Timeline:
    """The timeline of a run of `plan` whose steps take their `cost_ms`.

    Sub-graphs of a queue run in order. One that waits for another queue pays a transfer for what it reads
    from there; its queue is idle meanwhile, and the timeline shows a wait. The caller's inputs are on queue
    0. The caller launches sub-graphs of devices after its own sub-graphs that come earlier in the plan.

    Args:
        plan: validated, with a cost for every step (tuned, or planned with a profile's costs).
        interference: between the queues.

    Raises:
        DeviceError: a step has no cost.
    """
    tasks = plan_tasks(plan, interference)
    times = run_tasks(tasks, interference.contention_factor)
    steps = [(round(begin * _NANO), round(end * _NANO)) for found in times for begin, end in found.steps]
    waits = [bool(task.waits or task.transfer) for task in tasks]
    return plan_timeline(plan, steps, waits, max((end for _, end in steps), default=0))


def critical_path(plan: Plan, interference: InterferenceModel) -> float:
    """Seconds of the longest path of sub-graphs that wait for each other: a lower bound of a run."""
    tasks = plan_tasks(plan, interference)
    ends: list[float] = []
    last: dict[int, float] = {}
    for task in tasks:
        begin = max([last.get(task.queue, 0.0), *(ends[wait] for wait in task.waits)])
        ends.append(begin + task.transfer + sum(task.steps))
        last[task.queue] = ends[-1]
    return max(ends, default=0.0)


def plan_tasks(plan: Plan, interference: InterferenceModel) -> list[SimulatedTask]:
    """The plan's sub-graphs as tasks.

    Raises:
        DeviceError: a step has no cost.
    """
    written = _written(plan)
    fetched: set[tuple[int, int]] = set()
    tasks: list[SimulatedTask] = []
    for subgraph, waits in zip(plan.subgraphs, all_waits(plan), strict=True):
        transfer = _transfer(plan, subgraph, written, fetched, interference)
        tasks.append(SimulatedTask(subgraph.queue, waits, transfer, _step_seconds(plan, subgraph)))
    return tasks


def all_waits(plan: Plan) -> list[tuple[int, ...]]:
    """For every sub-graph what must be done before it: its waits, and what the caller does before it launches the sub-graph."""
    found: list[tuple[int, ...]] = []
    last_of_caller: int | None = None
    for number, subgraph in enumerate(plan.subgraphs):
        waits = set(subgraph.waits)
        if plan.queues[subgraph.queue].backend.launched_by_caller and last_of_caller is not None:
            waits.add(last_of_caller)
        if subgraph.queue == 0:
            last_of_caller = number
        found.append(tuple(sorted(waits)))
    return found


_Written = dict[str, list[tuple[int, int, int]]]
"""Value -> (begin, end, queue) of every write to it, bytes."""


def _written(plan: Plan) -> _Written:
    written: _Written = {}
    for subgraph in plan.subgraphs:
        for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            for buffer in (plan.buffers[index] for index in step.writes):
                found = written.setdefault(buffer.value, [])
                found.append((buffer.offset, buffer.offset + buffer.bytes, subgraph.queue))
    return written


def _transfer(
    plan: Plan,
    subgraph: PlanSubgraph,
    written: _Written,
    fetched: set[tuple[int, int]],
    interference: InterferenceModel,
) -> float:
    """Seconds of a sub-graph's transfer; what it reads from other queues is `fetched` from then on."""
    queue, size = subgraph.queue, 0
    others = {plan.subgraphs[wait].queue for wait in subgraph.waits} - {queue}
    for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
        for index in step.reads:
            if index is None or (queue, index) in fetched:
                continue
            buffer = plan.buffers[index]
            end = buffer.offset + buffer.bytes
            writes = written.get(buffer.value, [(0, end, 0)] if buffer.memory == "input" else [])
            foreign = [(min(b, end) - max(a, buffer.offset), maker) for a, b, maker in writes if maker != queue]
            fetches = [(overlap, maker) for overlap, maker in foreign if overlap > 0]
            if fetches:
                fetched.add((queue, index))
                size += buffer.bytes if interference.whole_tensors else sum(overlap for overlap, _ in fetches)
                others |= {maker for _, maker in fetches}
    return interference.transfer_seconds(queue, frozenset(others), size) if others else 0.0


def _step_seconds(plan: Plan, subgraph: PlanSubgraph) -> tuple[float, ...]:
    steps = plan.steps[subgraph.first : subgraph.first + subgraph.count]
    for step in steps:
        if step.cost_ms is None:
            raise DeviceError(
                f"step {step.layer} has no cost, so the plan cannot be simulated; tune it, or use a profile"
            )
    return tuple((step.cost_ms or 0.0) * 1e-3 for step in steps)


_SMALL = TensorType((1, 16, 7, 7))
_LARGE = TensorType((1, 64, 56, 56))


class MeasuredInterference:
    """Measured interference between local processors.

    Transfers cost a constant plus a term per byte, fitted to a small and a large tensor.
    """

    whole_tensors = False

    def __init__(self, pool: QueuePool, costs: CostModel, contention: Contention) -> None:
        """`costs` give the cost of transfers between two processors; `contention` is of processors by their numbers."""
        self._pool, self._costs, self._contention_factors = pool, costs, ContentionFactors(contention)
        self._lines: dict[frozenset[int], tuple[float, float]] = {}

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """The slowest transfer from any of the others."""
        lines = [self._line(queue, other) for other in others]
        return max((fixed + per_byte * size for fixed, per_byte in lines), default=0.0)

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """As measured with typical layers. A caller's queue that only serves a device slows down no other queue."""
        numbers = [self._pool.queue_of.index(m) for m in (queue, *others) if m in self._pool.queue_of]
        if queue not in self._pool.queue_of or len(numbers) < 2:
            return 1.0
        return self._contention_factors.of(numbers[0], numbers)

    def _line(self, one: int, other: int) -> tuple[float, float]:
        """Seconds of an empty transfer, and per byte."""
        pair = frozenset({one, other})
        if pair not in self._lines:
            processors = [self._pool.processors[queue] for queue in sorted(pair)]
            small, large = (self._costs.transfer(processors[0], processors[-1], tensor) for tensor in (_SMALL, _LARGE))
            least, most = PLAIN.bytes(_SMALL), PLAIN.bytes(_LARGE)
            per_byte = max(0.0, large - small) / (most - least)
            self._lines[pair] = (max(0.0, small - per_byte * least), per_byte)
        return self._lines[pair]
