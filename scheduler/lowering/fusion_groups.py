"""Runs: units that one routine may compute as one, because nobody else sees what lies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nnstretch.graph.layer import Layer, run_of_layers
from nnstretch.scheduler.lowering.units import UnitGraph


@dataclass(frozen=True, eq=False)
class Run:
    """Units as one layer.

    Attributes:
        units: their numbers, ascending; the last makes what is seen outside.
        layer: what they compute.
        reads: the tensors that the layer's inputs are.
        between_cuts: whether it is all that lies between two cut points; else it is a pair.
    """

    units: tuple[int, ...]
    layer: Layer
    reads: tuple[str, ...]
    between_cuts: bool

    def sources(self, unit: int) -> tuple[int, ...]:
        """For each input of a unit of the run the layer's input that it is, or a negative number if it never leaves the run."""
        return self.layer.wiring[self.units.index(unit)]


def find_runs(graph: UnitGraph) -> list[Run]:
    """All runs that a routine may be written for, or that are worth measuring as one.

    These are pairs of which the second unit alone reads the first, as its layer's input 0; what lies between two neighbouring
    cut points, where one tensor is all that passes; stretches of these whose images are of one size, the segments of a branched
    network (NN-Stretch); and everything from the first cut point to the last.
    """
    readers = _readers(graph)
    stretches = {tuple(range(a + 1, b + 1)) for a, b in _stretches(graph, _cuts(graph))}
    found = dict.fromkeys((*_pairs(graph, readers), *sorted(stretches)))
    return [_run(graph, u, u in stretches) for u in found if len(u) > 1 and _is_closed(graph, u, readers)]


_Readers = Mapping[str, Sequence[int]]
"""For each tensor the units that read it, once per time that they do."""


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
        if tail.layer.activations[0] == 0 and tail.inputs[0] == unit.outputs[0]:
            pairs.append((number, mine[0]))
    return pairs


def _is_closed(graph: UnitGraph, units: Sequence[int], readers: _Readers) -> bool:
    """Whether all that all but the last unit make is read, and by the others alone."""
    inside = set(units)
    made = [name for number in units[:-1] for name in graph.units[number].outputs]
    return all(name not in graph.outputs and readers[name] and set(readers[name]) <= inside for name in made)


def _cuts(graph: UnitGraph) -> list[int]:
    """Units after which one tensor, which they make, is all that later ones and the caller still want; -1 for the start.

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


def _stretches(graph: UnitGraph, cuts: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pairs of cut points: neighbours, ends of segments, and the first and the last."""
    yield from pairwise(cuts)
    sizes = [_size(graph, cut) for cut in cuts]
    begin = 0
    for end in range(1, len(cuts)):
        if end + 1 == len(cuts) or sizes[end + 1] != sizes[end]:
            yield cuts[begin], cuts[end]
            begin = end
    if len(cuts) > 1:
        yield cuts[0], cuts[-1]


def _size(graph: UnitGraph, cut: int) -> tuple[int, ...]:
    """Height and width of what passes a cut point; of nothing but an image, nothing."""
    return graph.types[graph.units[cut].outputs[0]].shape[2:] if cut >= 0 else ()


def _run(graph: UnitGraph, units: tuple[int, ...], between_cuts: bool) -> Run:
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
    return Run(units, run_of_layers(links, wiring), tuple(reads), between_cuts)
