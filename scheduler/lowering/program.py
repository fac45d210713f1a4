"""Lowered programs: steps over values, before they have places in memory, and their partition into sub-graphs.

A sub-graph is steps of one queue where only the first waits for other queues (NN-Stretch, scheduler slides). The calling
thread launches them in list order. Work of other threads and devices comes before the calling thread's own work that is ready
at the same time (algorithm 1: enqueue first, then execute on the CPU).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.routine import KernelCall, Layout, Parameters
from nnstretch.graph.layer import TensorType


@dataclass(eq=False)
class Value:
    """A tensor in one layout, or a workspace. A view has a `root` whose bytes it shares from `offset` on.

    Without a root, `device` is the only queue with memory of its own that may touch the bytes, or 0.
    """

    name: str
    bytes: int
    layout: Layout
    type: TensorType | None
    external: tuple[str, int] | None = None  # ("input", i) or ("output", i)
    root: Value | None = None
    offset: int = 0
    device: int = 0

    def base(self) -> Value:
        """The value that owns the bytes."""
        return self.root.base() if self.root else self

    def base_offset(self) -> int:
        """Offset of this value in its base, bytes."""
        return self.offset + (self.root.base_offset() if self.root else 0)

    def admits(self, domain: int) -> bool:
        """Whether queues of a memory domain may touch the bytes."""
        base = self.base()
        return not domain or (base.external is None and base.device in (0, domain))

    def claim(self, domain: int) -> None:
        """Reserves the bytes for a device domain, which must be admitted; the host needs no reservation."""
        if domain:
            self.base().device = domain


@dataclass(eq=False)
class Step:
    """One kernel call, or one call of an external engine's model, on a queue."""

    unit: str
    op: str
    routine: str
    queue: int
    call: KernelCall
    reads: tuple[Value | int | None, ...]  # int: a constant of the queue's constants
    writes: tuple[Value, ...]
    parameters: Parameters
    seconds: float | None
    macs: int
    is_fallback: bool = False


@dataclass
class LoweredProgram:
    """Steps in a topological order, and prepared constants by memory domain."""

    steps: list[Step] = field(default_factory=list)
    constants: dict[int, list[Constant]] = field(default_factory=lambda: defaultdict(list))

    @property
    def models(self) -> dict[str, bytes]:
        """Models of external engines by the names in their steps."""
        return {step.call.kernel: step.call.model for step in self.steps if step.call.model is not None}


@dataclass
class Subgraph:
    """Numbers of the lowered program's steps on one queue, and the sub-graphs of other queues that they wait for."""

    queue: int
    steps: list[int] = field(default_factory=list)
    waits: set[int] = field(default_factory=set)


def partition(steps: Sequence[Step]) -> list[Subgraph]:
    """Sub-graphs in launch order; `waits` are indices into the returned list."""
    depends = dependencies(steps)
    crossed = {p for i, before in enumerate(depends) for p in before if steps[p].queue != steps[i].queue}
    return _launch_order(_joined(_cut(steps, depends, crossed)))


def dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """For every step the earlier steps that wrote bytes which it reads."""
    writers: dict[Value, list[tuple[int, int, int]]] = defaultdict(list)
    depends: list[set[int]] = []
    for number, step in enumerate(steps):
        before: set[int] = set()
        for read in step.reads:
            if isinstance(read, Value):
                start = read.base_offset()
                before |= {w for w, a, b in writers[read.base()] if a < start + read.bytes and b > start}
        for write in step.writes:
            start = write.base_offset()
            writers[write.base()].append((number, start, start + write.bytes))
        depends.append(before - {number})
    return depends


def _cut(steps: Sequence[Step], depends: Sequence[set[int]], crossed: set[int]) -> list[Subgraph]:
    """Groups steps in order. A sub-graph ends where another queue needs its result or its own queue must wait."""
    subgraphs: list[Subgraph] = []
    open_on: dict[int, int] = {}
    home: dict[int, int] = {}
    waited: dict[
        tuple[int, int], int
    ] = {}  # (queue, other queue) -> last sub-graph of the other queue it has waited for
    for number, step in enumerate(steps):
        queue = step.queue
        needed: dict[int, int] = {}
        for earlier in depends[number]:
            other = steps[earlier].queue
            if other != queue and home[earlier] > waited.get((queue, other), -1):
                needed[other] = max(needed.get(other, -1), home[earlier])
        if needed or queue not in open_on:
            open_on[queue] = len(subgraphs)
            subgraphs.append(Subgraph(queue, waits=set(needed.values())))
            waited.update({(queue, other): last for other, last in needed.items()})
        home[number] = open_on[queue]
        subgraphs[open_on[queue]].steps.append(number)
        if number in crossed:
            del open_on[queue]
    return subgraphs


def _joined(subgraphs: Sequence[Subgraph]) -> list[Subgraph]:
    """Joins successive sub-graphs of a queue if no sub-graph waits for the first and the second waits for none.

    They were cut for another queue that now waits for a later sub-graph. Starting and ending a sub-graph
    costs time, most of all on a device.
    """
    awaited = {wait for subgraph in subgraphs for wait in subgraph.waits}
    joined: list[Subgraph] = []
    place: list[int] = []
    last: dict[int, int] = {}  # queue -> its last sub-graph
    for number, subgraph in enumerate(subgraphs):
        before = last.get(subgraph.queue)
        last[subgraph.queue] = number
        if before is not None and before not in awaited and not subgraph.waits:
            place.append(place[before])
            joined[place[before]].steps += subgraph.steps
        else:
            place.append(len(joined))
            joined.append(Subgraph(subgraph.queue, [*subgraph.steps], {place[wait] for wait in subgraph.waits}))
    return joined


def _launch_order(subgraphs: Sequence[Subgraph]) -> list[Subgraph]:
    """A topological order: among sub-graphs that are ready, other queues before queue 0, then the given order."""
    previous: dict[int, int] = {}
    needs: list[set[int]] = []
    for i, subgraph in enumerate(subgraphs):
        needs.append(set(subgraph.waits) | ({previous[subgraph.queue]} if subgraph.queue in previous else set()))
        previous[subgraph.queue] = i
    order: list[int] = []
    left = list(range(len(subgraphs)))
    placed: set[int] = set()
    while left:
        ready = [i for i in left if needs[i] <= placed]
        chosen = min(ready, key=lambda i: (subgraphs[i].queue == 0, i))
        order.append(chosen)
        placed.add(chosen)
        left.remove(chosen)
    position = {old: new for new, old in enumerate(order)}
    return [Subgraph(subgraphs[i].queue, subgraphs[i].steps, {position[w] for w in subgraphs[i].waits}) for i in order]
