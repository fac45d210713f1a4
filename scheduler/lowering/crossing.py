"""Crossings: how a tensor gets from the queue that makes it to one that reads it, in which type, and who changes its layout.

Layouts of one type are changed by the queue that makes the tensor. Where types differ (float16 of a device, or floats that int8
tensors are stored as) or a tensor is stored as floats and changes memories, there are several ways: the maker or the reader
converts, or both, and what crosses in between may be int8, a quarter of the bytes of floats. The cheapest way is taken: seconds
of all layout changes and of the transfer. Of ways that cost the same, the one that carries the tensor's own type is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnstretch.devices.base.float_form import FloatFormRoutine
from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.calls import crossing_seconds
from nnstretch.scheduler.lowering.choices import Choice, Fused
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.plan.schema import QueuePool

_CALLER = 0
"""Queue of the caller's arrays."""


@dataclass(frozen=True)
class LayoutChange:
    """A layout change on a queue; a copy if both layouts are equal."""

    queue: int
    before: Layout
    after: Layout


@dataclass(frozen=True)
class Crossing:
    """A way from the queue that makes a tensor to one that reads it.

    Attributes:
        carried: layout in which it leaves the maker's memory, or its queue where both share memory.
        changes: layout changes in order; those after `carried` are the reader's.
    """

    carried: Layout
    changes: tuple[LayoutChange, ...] = ()


TensorRead = tuple[str, Layout, int]
"""A tensor, the layout in which it is read, and the memory domain of its readers."""

Crossings = Mapping[TensorRead, Crossing]
"""The crossings of tensors that are converted to another type or stored as floats; others have one way only."""


@dataclass(frozen=True)
class Passage:
    """From the maker of a tensor to a reader.

    Attributes:
        tensor: its type.
        before: layout in which it is made.
        source: queue that makes it.
        after: layout in which it is read.
        target: queue that reads it.
        of_caller: whether the maker, or the reader, is the caller, whose arrays lie where no device reaches them.
    """

    tensor: TensorType
    before: Layout
    source: int
    after: Layout
    target: int
    of_caller: bool = False

    @property
    def has_floats(self) -> bool:
        """Whether it is stored in another type than its own at one of its ends."""
        return self.before.dtype is not None or self.after.dtype is not None

    @property
    def changes_type(self) -> bool:
        """Whether the types at its ends differ."""
        return self.before.element(self.tensor) != self.after.element(self.tensor)


@dataclass
class CrossingCosts:
    """Finds the cheapest crossings between the queues of a pool.

    Attributes:
        pool: the queues.
        costs: seconds of layout changes and transfers.
        rounds: whether tensors that both ends store as floats may cross as int8.
    """

    pool: QueuePool
    costs: CostModel
    rounds: bool
    _change_seconds: dict[tuple[TensorType, Layout, Layout, int], float] = field(default_factory=dict)
    _found: dict[Passage, tuple[Crossing, float]] = field(default_factory=dict)

    def seconds(self, passage: Passage) -> float:
        """Seconds of the cheapest crossing: its layout changes and its transfer; infinite if there is none."""
        return self._cheapest(passage)[1]

    def crossing(self, passage: Passage) -> Crossing:
        """The cheapest crossing."""
        return self._cheapest(passage)[0]

    def crosses(self, passage: Passage) -> bool:
        """Whether a tensor changes memories."""
        ends = (passage.source, passage.target)
        return passage.source != passage.target and any(self.pool.backend(queue).own_memory for queue in ends)

    def has_several_ways(self, passage: Passage) -> bool:
        """Whether there may be more than the maker's layout change."""
        if not passage.has_floats or passage.source == passage.target:
            return False
        return self.crosses(passage) or passage.changes_type

    def change_seconds(self, tensor: TensorType, before: Layout, after: Layout, queue: int) -> float:
        """Seconds of a layout change on a queue, or on queue 0 for one that changes none; infinite if it is not possible."""
        key = (tensor, before, after, queue)
        if key not in self._change_seconds:
            processor = self.pool.processors[self.pool.reordering(queue)]
            seconds = self.costs.reorder_seconds(processor, tensor, before, after)
            self._change_seconds[key] = math.inf if seconds is None else seconds
        return self._change_seconds[key]

    def _cheapest(self, passage: Passage) -> tuple[Crossing, float]:
        if passage not in self._found:
            ways = self._ways(passage) if self.has_several_ways(passage) else [self._usual(passage)]
            priced = [(way, self._seconds_of(way, passage)) for way in ways]
            self._found[passage] = min(priced, key=lambda pair: pair[1])
        return self._found[passage]

    def _seconds_of(self, way: Crossing, passage: Passage) -> float:
        tensor = passage.tensor
        changes = (self.change_seconds(tensor, one.before, one.after, one.queue) for one in way.changes)
        return self._transfer_seconds(way.carried, passage) + sum(changes)

    def _transfer_seconds(self, carried: Layout, passage: Passage) -> float:
        """Seconds of a transfer between two queues, and of entering and leaving calls."""
        source, target = passage.source, passage.target
        backends = [self.pool.backend(queue) for queue in (source, target)]
        if source == target or not (self.costs.all_cross or any(backend.synchronises for backend in backends)):
            return 0.0
        one, other = (self.pool.processors[queue] for queue in (source, target))
        stored = _as_stored(passage.tensor, carried)
        entering = sum(crossing_seconds(processor, passage.tensor, self.costs) for processor in (one, other))
        return self.costs.transfer(one, other, stored) + entering

    def _usual(self, passage: Passage) -> Crossing:
        """The maker changes the layout. Between two devices the host copies, and from or to the caller a device does."""
        before, after = passage.before, passage.after
        crosses = self.crosses(passage)
        if crosses and all(self.pool.backend(queue).own_memory for queue in (passage.source, passage.target)):
            return Crossing(before, (LayoutChange(_CALLER, before, after),))
        if before != after or (passage.of_caller and crosses):
            return Crossing(after, (LayoutChange(passage.source, before, after),))
        return Crossing(before)

    def _ways(self, passage: Passage) -> list[Crossing]:
        """All ways of a passage whose tensor is stored in another type than its own at one end."""
        source, target = passage.source, passage.target
        devices = [self.pool.backend(queue).own_memory for queue in (source, target)]
        copied = all(devices) and source != target
        if copied and passage.tensor.quantization is None:
            return [Crossing(passage.before, (LayoutChange(_CALLER, passage.before, passage.after),))]  # not possible
        ways = []
        for carried in dict.fromkeys(self._carried(passage)):
            changes = []
            if passage.before != carried:
                changes.append(LayoutChange(source, passage.before, carried))
            if copied or (passage.of_caller and self._is_array(passage, carried)):
                changes.append(LayoutChange(_CALLER, carried, carried))
            if carried != passage.after:
                changes.append(LayoutChange(target, carried, passage.after))
            ways.append(Crossing(carried, tuple(changes)))
        return ways

    def _is_array(self, passage: Passage, carried: Layout) -> bool:
        """Whether what crosses is the caller's array, which the host copies, as no device reaches it."""
        return self.crosses(passage) and carried == (passage.before if passage.source == _CALLER else passage.after)

    def _carried(self, passage: Passage) -> Iterator[Layout]:
        """The layouts in which a tensor may cross, its own type first.

        The host neither reads nor makes float16. It changes no types but those of int8 tensors.
        """
        before, after = passage.before, passage.after
        if passage.tensor.quantization is None:
            yield after if self.pool.backend(passage.source).own_memory else before
            return
        ends = [one for one in (after, before) if one.dtype is None]
        if self.rounds and not ends:
            ends = [Layout(after.block), Layout(before.block)]
        elif ends:
            ends += [Layout(one.block) for one in (after, before)]
        yield from ends
        yield from (one for one in (after, before) if one.dtype in (None, DEFAULT_DTYPE))


def _as_stored(tensor: TensorType, layout: Layout) -> TensorType:
    """A tensor of the elements that a layout stores."""
    return tensor if layout.dtype is None else replace(tensor, dtype=layout.dtype, quantization=None)


def crossings_of(
    graph: UnitGraph, choices: Sequence[Choice], pool: QueuePool, costs: CostModel
) -> dict[TensorRead, Crossing]:
    """The crossings of a plan that may have several ways, by the cheapest.

    Several queues in host memory that read a tensor in one layout share what is made for the first of them.

    Args:
        graph: the units in topological order.
        choices: one per unit.
        pool: the plan's queues.
        costs: seconds of layout changes and transfers.
    """
    prices = CrossingCosts(pool, costs, rounds=not graph.in_float32 and _computes_integers(graph, choices))
    homes: dict[str, tuple[Layout, int]] = dict.fromkeys(graph.inputs, (PLAIN, _CALLER))
    found: dict[TensorRead, Crossing] = {}
    seen: set[TensorRead] = set()

    def read(name: str, wanted: Layout, queue: int, *, by_caller: bool = False) -> None:
        key = (name, wanted, pool.backend(queue).domain(queue))
        if isinstance(wanted, Fused) or key in seen:
            return
        seen.add(key)
        made, maker = homes[name]
        passage = Passage(graph.types[name], made, maker, wanted, queue, by_caller or name in graph.inputs)
        if prices.has_several_ways(passage):
            found[key] = prices.crossing(passage)

    for unit, choice in zip(graph.units, choices, strict=True):
        for name, wanted in zip(unit.inputs, choice.inputs, strict=True):
            read(name, wanted, choice.queue)
        homes.update({name: (made, choice.queue) for name, made in zip(unit.outputs, choice.outputs, strict=True)})
    for name in graph.outputs:
        read(name, PLAIN, _CALLER, by_caller=True)
    return found


def _computes_integers(graph: UnitGraph, choices: Sequence[Choice]) -> bool:
    """Whether a plan computes some layer in int8; one that does not rounds nothing."""
    return any(
        unit.layer.is_int8 and not isinstance(choice.routine, FloatFormRoutine)
        for unit, choice in zip(graph.units, choices, strict=True)
    )
