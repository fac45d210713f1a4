"""Split layers: several queues compute shares of a layer's channels at the same time, straight into one tensor.

Splitting keeps several processors busy in a chain of layers or in branches of unequal length. In a split
graph the shares are units that a concat joins. A share that needs only its own channels of an input reads a
slice of it. Concat and slices are views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import GraphNode
from nnstretch.graph.slices import (
    bounds,
    channels_of,
    concat_layer,
    even_shares,
    is_divisible,
    layer_share,
    share_name,
    slice_layer,
    sliced_inputs,
)
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.placement.problem import Part, Way


@dataclass(frozen=True)
class Division:
    """How a layer is split: queues in the order of their channels, and the number of channels of each."""

    queues: tuple[int, ...]
    channels: tuple[int, ...]

    def way(self, seconds: Sequence[float], size: int) -> Way:
        """The division as a way to compute a unit with a result of `size` bytes, whose parts take `seconds`."""
        each = size // sum(self.channels)
        return tuple(
            Part(queue, s, each * channels)
            for queue, s, channels in zip(self.queues, seconds, self.channels, strict=True)
        )


def even_division(unit: Unit, seconds: Mapping[int, float]) -> Division | None:
    """The division of a unit with which all queues end at the same time, as nearly as whole blocks allow.

    Args:
        unit: the unit.
        seconds: time of the whole unit by queue.

    Returns:
        None if the unit cannot be split or has too few channels.
    """
    if unit.is_fallback or not is_divisible(unit.layer):
        return None
    shares = even_shares(unit.layer.outputs[0].shape[1], seconds)
    return None if shares is None else Division(tuple(shares), tuple(shares.values()))


class Divisions:
    """Possible divisions of units of placement, and the expected or measured times of their shares."""

    def __init__(self, found: Mapping[int, Sequence[tuple[Division, Sequence[float]]]], sizes: Sequence[int]) -> None:
        """`found` has divisions by unit, each with the expected seconds of its shares, `sizes` the bytes of all results."""
        self._sizes = sizes
        self._divisions = {unit: [division for division, _ in some] for unit, some in found.items()}
        self._seconds = {unit: [tuple(seconds) for _, seconds in some] for unit, some in found.items()}
        self._known: set[tuple[int, int]] = set()

    def ways(self) -> tuple[tuple[Way, ...], ...]:
        """The splits of a placement problem."""
        return tuple(self._ways(unit) for unit in range(len(self._sizes)))

    def _ways(self, unit: int) -> tuple[Way, ...]:
        pairs = zip(self._divisions.get(unit, ()), self._seconds.get(unit, ()), strict=True)
        return tuple(division.way(seconds, self._sizes[unit]) for division, seconds in pairs)

    def division(self, unit: int, way: Way) -> Division:
        """The division behind a way of a unit."""
        return self._divisions[unit][self._ways(unit).index(way)]

    def learn(self, unit: int, way: Way, seconds: Sequence[float]) -> bool:
        """Records the seconds of the shares of a unit; True if they were unknown."""
        number = self._ways(unit).index(way)
        self._seconds[unit][number] = tuple(seconds)
        is_new = (unit, number) not in self._known
        self._known.add((unit, number))
        return is_new


@dataclass(frozen=True)
class Origin:
    """Origin of a unit of a split graph.

    Attributes:
        unit: the number of the unit of the whole graph.
        share: the number of the share that it computes, or makes a slice for; None for what is not split, and
            for concats.
        is_view: whether it is a slice or a concat that splitting needs.
    """

    unit: int
    share: int | None = None
    is_view: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the unit of the whole graph is this one."""
        return self.share is None and not self.is_view


@dataclass(frozen=True)
class Split:
    """A graph with split layers, and the origin of each of its units."""

    graph: UnitGraph
    origins: tuple[Origin, ...]


def split_graph(graph: UnitGraph, divisions: Mapping[int, Division]) -> Split:
    """The graph with some of its units, by number, split."""
    units: list[Unit] = []
    origins: list[Origin] = []
    types = dict(graph.types)
    for number, unit in enumerate(graph.units):
        made = [(unit, Origin(number))]
        if number in divisions:
            made = list(_split_unit(unit, number, divisions[number].channels))
        for new, origin in made:
            types.update(zip(new.outputs, new.layer.outputs, strict=True))
            units.append(new)
            origins.append(origin)
    return Split(replace(graph, units=tuple(units), types=types), tuple(origins))


def _split_unit(unit: Unit, number: int, channels: Sequence[int]) -> Iterator[tuple[Unit, Origin]]:
    """The units that replace a split unit: its shares, each after the slices that it reads, and the concat."""
    (node,) = unit.nodes
    names: list[str] = []
    for share, (begin, end) in enumerate(bounds(channels)):
        inputs = [*node.inputs]
        for row in node.layer.constants:
            inputs[row] = share_name(str(inputs[row]), begin, end)
        for row in sliced_inputs(node.layer):
            whole, tensor = str(node.inputs[row]), node.layer.type_of(row)
            inputs[row] = share_name(f"{unit.outputs[0]}/{row}/{whole}", begin, end)
            sliced = slice_layer(share_name(f"{unit.name}/{row}", begin, end), tensor, begin, end)
            yield _unit(node, sliced, (whole,), str(inputs[row])), Origin(number, share, is_view=True)
        names.append(share_name(unit.outputs[0], begin, end))
        yield _unit(node, layer_share(node.layer, begin, end), inputs, names[-1]), Origin(number, share)
    shares = [channels_of(node.layer.outputs[0], begin, end) for begin, end in bounds(channels)]
    yield (
        _unit(node, concat_layer(f"{unit.name}/concat", shares), names, unit.outputs[0]),
        Origin(number, is_view=True),
    )


def _unit(origin: GraphNode, layer: Layer, inputs: Sequence[str | None], output: str) -> Unit:
    """A unit of one layer that computes part of a node."""
    node = replace(origin, layer=layer, inputs=tuple(inputs), outputs=(output,))
    return Unit(layer.name, layer, (node,), tuple(str(inputs[i]) for i in layer.activations), (output,), None)
