"""Choices of units, alone or in fusion groups: units that one routine may compute, as no other reads what lies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nnstretch.devices.base.routine import Layout, Parameters, Routine
from nnstretch.graph.layer import Layer, fused_layer
from nnstretch.graph.pointwise import is_pointwise
from nnstretch.scheduler.lowering.units import UnitGraph


@dataclass(frozen=True, eq=False)
class FusionGroup:
    """Units that are computed as one layer.

    Attributes:
        units: their numbers, ascending; the last one makes the group's outputs.
        layer: what they compute.
        reads: names of the tensors that the layer's inputs are.
        between_cuts: whether the group is everything between two cut points.
    """

    units: tuple[int, ...]
    layer: Layer
    reads: tuple[str, ...]
    between_cuts: bool

    def sources(self, unit: int) -> tuple[int, ...]:
        """For each input of a unit the index of the group's input, or a negative number for what another unit makes."""
        return self.layer.wiring[self.units.index(unit)]


def find_fusion_groups(graph: UnitGraph) -> list[FusionGroup]:
    """All fusion groups that are worth measuring.

    - Pairs: the second unit is the only reader of the first and reads it as its layer's input 0, or as any input of a sum.
    - Three convolutions in this way with a grouped one in the middle: inverted residual blocks (MobileNetV2).
    - Everything between two neighbouring cut points, where a single tensor passes.
    - Sequences of these with one image size: the segments of a branched network (NN-Stretch).
    - Everything from the first cut point to the last.
    - Pointwise units that make a rounded tensor of another one, and these with the unit that makes the latter.
    """
    readers = _readers(graph)
    sequences = {tuple(range(a + 1, b + 1)) for a, b in _sequences(graph, _cuts(graph))}
    pairs = _pairs(graph, readers)
    found = dict.fromkeys((*pairs, *_inverted_residuals(graph, pairs), *_pointwise(graph, readers), *sorted(sequences)))
    return [_fusion_group(graph, u, u in sequences) for u in found if len(u) > 1 and _is_closed(graph, u, readers)]


_Readers = Mapping[str, Sequence[int]]
"""For each tensor the units that read it, one entry per read."""


def _readers(graph: UnitGraph) -> _Readers:
    readers: dict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(graph.units):
        for name in unit.inputs:
            readers[name].append(number)
    return readers


def _pairs(graph: UnitGraph, readers: _Readers) -> list[tuple[int, ...]]:
    pairs: list[tuple[int, ...]] = []
    for number, unit in enumerate(graph.units):
        mine = readers[unit.outputs[0]]
        if len(mine) != 1:
            continue
        tail = graph.units[mine[0]]
        is_first = tail.layer.activations[0] == 0 and tail.inputs[0] == unit.outputs[0]
        if is_first or tail.layer.op == "Add":
            pairs.append((number, mine[0]))
    return pairs


def _inverted_residuals(graph: UnitGraph, pairs: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Pairs of convolutions that share a grouped one in the middle."""
    following = {
        first: second
        for first, second in pairs
        if graph.units[first].layer.op == graph.units[second].layer.op == "Conv"
    }
    for first, middle in following.items():
        if middle in following and graph.units[middle].layer.attributes["groups"] != 1:
            yield first, middle, following[middle]


def _pointwise(graph: UnitGraph, readers: _Readers) -> Iterator[tuple[int, ...]]:
    """Pointwise units between a rounded tensor and a later one: as many as the last of them depends on; with its producer."""
    producers = {unit.outputs[0]: number for number, unit in enumerate(graph.units)}
    behind: dict[str, tuple[str, frozenset[int]]] = {}  # tensor -> the rounded tensor it depends on, the units between
    largest: dict[str, frozenset[int]] = {}
    for number, unit in enumerate(graph.units):
        if not is_pointwise(unit.layer):
            continue
        origins = {behind.get(name, (name, frozenset()))[0] for name in unit.inputs}
        origin = origins.pop()
        if origins or graph.types[origin].quantization is None:
            continue
        units = frozenset({number}).union(*(behind[name][1] for name in unit.inputs if name in behind))
        behind[unit.outputs[0]] = origin, units
        if graph.types[unit.outputs[0]].quantization is not None and _is_closed(graph, sorted(units), readers):
            largest[origin] = max(largest.get(origin, units), units, key=len)
    for origin, units in largest.items():
        yield tuple(sorted(units))
        if origin in producers:
            yield tuple(sorted({producers[origin], *units}))


def _is_closed(graph: UnitGraph, units: Sequence[int], readers: _Readers) -> bool:
    """Whether everything that all units but the last one make is read, and by units of the group only."""
    inside = set(units)
    made = [name for number in units[:-1] for name in graph.units[number].outputs]
    return all(name not in graph.outputs and readers[name] and set(readers[name]) <= inside for name in made)


def _cuts(graph: UnitGraph) -> list[int]:
    """Units whose single output is all that later units and the caller still read; -1 is the network's input.

    A network with several inputs starts with its first cut point.
    """
    last = {name: len(graph.units) for name in graph.outputs}
    for number, unit in enumerate(graph.units):
        for name in unit.inputs:
            last[name] = max(number, last.get(name, -1))
    live = {name for name in graph.inputs if name in last}
    cuts = [-1] if len(live) == 1 else []
    for number, unit in enumerate(graph.units):
        live = {name for name in {*live, *unit.outputs} if last.get(name, -1) > number}
        if len(live) == 1 and live <= set(unit.outputs):
            cuts.append(number)
    return cuts


def _sequences(graph: UnitGraph, cuts: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pairs of cut points: neighbours, ends of segments, and the first and the last."""
    yield from pairwise(cuts)
    # Height and width at each cut point; empty at the network's input and for tensors that are no images.
    sizes = [graph.types[graph.units[cut].outputs[0]].shape[2:] if cut >= 0 else () for cut in cuts]
    begin = 0
    for end in range(1, len(cuts)):
        if end + 1 == len(cuts) or sizes[end + 1] != sizes[end]:
            yield cuts[begin], cuts[end]
            begin = end
    if len(cuts) > 1:
        yield cuts[0], cuts[-1]


def _fusion_group(graph: UnitGraph, units: tuple[int, ...], between_cuts: bool) -> FusionGroup:
    made = [name for number in units for name in graph.units[number].outputs]
    position = {name: place for place, name in enumerate(made)}
    reads: dict[str, int] = {}
    wiring: list[list[int]] = []
    links: list[Layer] = []
    for number in units:
        unit = graph.units[number]
        links.append(unit.layer)
        wiring.append(
            [-1 - position[name] if name in position else reads.setdefault(name, len(reads)) for name in unit.inputs]
        )
    return FusionGroup(units, fused_layer(links, wiring), tuple(reads), between_cuts)


@dataclass(frozen=True)
class Fused(Layout):
    """Layout of a tensor inside a fusion group, which is never stored.

    Equal only for the same units and the same choice, so that all units of a group take the fused routine or none does.
    """

    units: tuple[int, ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Choice:
    """A unit's routine, parameters and queue.

    Every unit of a fusion group has a choice of its own, and tensors between them are `Fused`. The last unit's choice has
    the `group` and its whole cost; the other units, the heads, cost nothing and become no step.

    Attributes:
        queue: index of the queue.
        routine: the routine; None for the fallback.
        parameters: of the routine.
        inputs: layouts of the unit's inputs.
        outputs: layouts of its outputs.
        seconds: cost; None if unknown.
        group: the fusion group that the unit ends.
    """

    queue: int
    routine: Routine | None
    parameters: Parameters
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    seconds: float | None = None
    group: FusionGroup | None = None

    @property
    def is_head(self) -> bool:
        """Whether the unit is computed with its consumers."""
        return isinstance(self.outputs[0], Fused)
