"""Contraction: from a choice space to the units of a placement problem and their times on every queue.

Layers that are no steps are no units of placement: readers of a view read its sources, and a layer that is
fused with its reader is placed with it. The caller is the first unit, which makes the inputs, and the last,
which reads the outputs. Both are on queue 0 and take no time beyond layout changes.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.scheduler.lowering.choices import Choice, Fused
from nnstretch.scheduler.lowering.crossing import CrossingCosts, Passage
from nnstretch.scheduler.lowering.units import UnitGraph
from nnstretch.scheduler.planner import ChoiceSpace

_VIEWS = ("Concat", "Reshape", "Slice")
_LONGEST_GROUP = 2
"""Longest fusion group that is placed as one unit. Longer groups, of external engines, would leave nothing to place."""


@dataclass(frozen=True)
class Grouping:
    """Numbers units of a graph by groups, e.g. by units of placement.

    Attributes:
        group_of: for every unit of the graph its number; None for views.
        begin: number of the caller that makes the inputs.
        end: number of the caller that reads the outputs.
        count: number of groups.
    """

    group_of: tuple[int | None, ...]
    begin: int
    end: int
    count: int

    def seconds(self, space: ChoiceSpace, chosen: Sequence[Choice]) -> NDArray[np.float64]:
        """Seconds of every group with these choices, including layout changes of its results."""
        taken = np.zeros(self.count)
        for group, choice in zip(self.group_of, chosen, strict=True):
            if group is not None:
                taken[group] += choice.seconds or 0.0
        for group, seconds in self._adapts(space, chosen):
            taken[group] += seconds
        return taken

    def _adapts(self, space: ChoiceSpace, chosen: Sequence[Choice]) -> list[tuple[int, float]]:
        """Layout changes: the group that pays, and seconds. Each tensor and layout counts once; copies are no changes.

        The maker of a tensor pays for its layout changes, but a reader for those that its own queue makes.
        """
        graph, prices = space.graph, CrossingCosts(space.pool, space.costs, rounds=not space.graph.in_float32)
        home: dict[str, tuple[int | None, Layout, int]] = dict.fromkeys(graph.inputs, (self.begin, PLAIN, 0))
        found: list[tuple[int, float]] = []
        counted: set[tuple[str, Layout, int]] = set()

        def read(name: str, wanted: Layout, reader: int | None, reading: int, *, by_caller: bool = False) -> None:
            maker, made, making = home[name]
            if isinstance(made, Fused):
                return
            tensor = graph.types[name]
            passage = Passage(tensor, made, making, wanted, reading, by_caller or name in graph.inputs)
            domain = space.pool.backend(reading).domain(reading) if prices.has_several_ways(passage) else 0
            if (name, wanted, domain) in counted:
                return
            counted.add((name, wanted, domain))
            for change in prices.crossing(passage).changes:
                if change.before != change.after:
                    payers = (maker, reader) if change.queue == making else (reader, maker)
                    payer = next((p for p in payers if p is not None), self.end)
                    seconds = prices.change_seconds(tensor, change.before, change.after, change.queue)
                    found.append((payer, seconds if math.isfinite(seconds) else 0.0))

        for unit, group, choice in zip(graph.units, self.group_of, chosen, strict=True):
            for name, wanted in zip(unit.inputs, choice.inputs, strict=True):
                read(name, wanted, group, choice.queue)
            home.update({n: (group, made, choice.queue) for n, made in zip(unit.outputs, choice.outputs, strict=True)})
        for name in graph.outputs:
            read(name, PLAIN, self.end, 0, by_caller=True)
        return found

    def order(self, graph: UnitGraph) -> list[int]:
        """The units of the graph in the order of their groups; views come as early as possible."""
        makers = {name: number for number, unit in enumerate(graph.units) for name in unit.outputs}
        before = [{makers[name] for name in unit.inputs if name in makers} for unit in graph.units]
        waiting = [set(sources) for sources in before]
        readers: list[list[int]] = [[] for _ in waiting]
        for number, sources in enumerate(before):
            for source in sources:
                readers[source].append(number)

        def priority(number: int) -> tuple[int, int]:
            group = self.group_of[number]
            return (-1 if group is None else group, number)

        ready = [priority(number) for number, sources in enumerate(waiting) if not sources]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, number = heapq.heappop(ready)
            order.append(number)
            for reader in readers[number]:
                waiting[reader].discard(number)
                if not waiting[reader]:
                    heapq.heappush(ready, priority(reader))
        return order


@dataclass(frozen=True)
class Contraction:
    """The units of placement of a graph.

    Attributes:
        group_of: for every unit of the graph its unit of placement; None for views.
        reads: as in `PlacementProblem`, with the caller at both ends.
        sizes: bytes of results.
    """

    group_of: tuple[int | None, ...]
    reads: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @property
    def begin(self) -> int:
        """The caller's unit that makes the inputs."""
        return 0

    @property
    def end(self) -> int:
        """The caller's unit that reads the outputs."""
        return len(self.reads) - 1

    def seconds(self, space: ChoiceSpace, chosen: Sequence[Choice]) -> NDArray[np.float64]:
        """Seconds of every unit of placement, as `Grouping.seconds`."""
        return Grouping(self.group_of, self.begin, self.end, len(self.reads)).seconds(space, chosen)

    def alone(self) -> dict[int, int]:
        """Unit of placement -> unit of the graph, for those that are a single unit."""
        members: dict[int, list[int]] = defaultdict(list)
        for number, group in enumerate(self.group_of):
            if group is not None:
                members[group].append(number)
        return {group: found[0] for group, found in members.items() if len(found) == 1}


def contract(space: ChoiceSpace, plans: Sequence[Sequence[Choice]]) -> Contraction:
    """The contraction of a space by the choices of some plans: units that are views in all of them are left out."""
    units = space.graph.units
    whole = list(range(len(units)))  # the last unit of the group that a unit belongs to
    for chosen in plans:
        for number in reversed(range(len(units))):
            between = chosen[number].outputs[0]
            if isinstance(between, Fused) and len(between.units) <= _LONGEST_GROUP:
                whole[number] = max(whole[number], whole[between.units[-1]])
    is_view = [
        unit.layer.op in _VIEWS and all(not plan[i].seconds and not plan[i].is_head for plan in plans)
        for i, unit in enumerate(units)
    ]
    heads = sorted({whole[number] for number in range(len(units)) if not is_view[number]})
    index = {last: 1 + place for place, last in enumerate(heads)}
    group_of = tuple(None if is_view[number] else index[whole[number]] for number in range(len(units)))
    return _connected(space, group_of, 1 + len(heads))


def _connected(space: ChoiceSpace, group_of: tuple[int | None, ...], end: int) -> Contraction:
    graph = space.graph
    made_by: dict[str, frozenset[int]] = {name: frozenset({0}) for name in graph.inputs}
    reads: list[set[int]] = [set() for _ in range(end + 1)]
    sizes = [0] * (end + 1)
    sizes[0] = sum(PLAIN.bytes(graph.types[name]) for name in graph.inputs)
    floats = Layout(dtype=DEFAULT_DTYPE)
    for unit, group in zip(graph.units, group_of, strict=True):
        sources = frozenset[int]().union(*(made_by[name] for name in unit.inputs))
        if group is not None:
            reads[group] |= sources - {group}
            made = [graph.types[name] for name in unit.outputs]
            sizes[group] = sum((floats if graph.in_float32 and t.quantization else PLAIN).bytes(t) for t in made)
        made_by.update(dict.fromkeys(unit.outputs, sources if group is None else frozenset({group})))
    reads[end] = set(frozenset[int]().union(*(made_by[name] for name in graph.outputs)))
    for group in range(1, end):  # units without inputs begin with the caller
        reads[group] = reads[group] or {0}
    return Contraction(group_of, tuple(tuple(sorted(sources)) for sources in reads), tuple(sizes))
