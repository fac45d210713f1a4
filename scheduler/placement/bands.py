"""Sections in bands: several queues compute neighbouring rows of an image through many layers, and meet where the section ends.

Where images are large and channels are few, layers cannot be split by channels (`splitting`), and processors that split every
layer meet after each. A section between two tensors that alone connect it with the rest is computed in bands
(`nnstretch.graph.bands`) instead. Its processors compute the rows near the cuts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.graph.bands import (
    LEAST_ROWS,
    Band,
    band_after,
    band_name,
    cut_band,
    cut_layer,
    join_layer,
    layer_in_band,
    rows_before,
    rows_of,
    with_rows,
)
from nnstretch.graph.layer import Layer
from nnstretch.graph.slices import bounds
from nnstretch.scheduler.lowering.units import Unit, UnitGraph


@dataclass(frozen=True)
class Section:
    """Consecutive units of a graph that read one tensor of the rest; the rest reads one tensor of them.

    Attributes:
        first: number of the first unit.
        last: number of the last one.
        source: name of the tensor that the section reads.
        sink: name of the tensor that the rest reads.
    """

    first: int
    last: int
    source: str
    sink: str

    @property
    def units(self) -> range:
        """Numbers of its units."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True)
class BandedSection:
    """A section with the rows of the last tensor that each processor computes.

    Attributes:
        first: name of the first unit.
        last: name of the last one.
        processors: indices, from the top of the image to the bottom.
        rows: of each.
    """

    first: str
    last: str
    processors: tuple[int, ...]
    rows: tuple[int, ...]


def sections(graph: UnitGraph, usable: Sequence[bool]) -> Iterator[Section]:
    """All sections of `usable` units, by number, whose first and last tensor are images."""
    last_use = {name: number for number, unit in enumerate(graph.units) for name in unit.inputs}
    last_use |= dict.fromkeys(graph.outputs, len(graph.units))
    for first in range(len(graph.units)):
        read, made, wanted = set[str](), set[str](), set[str]()
        for last in range(first, len(graph.units)):
            unit = graph.units[last]
            read |= {name for name in unit.inputs if name not in made}
            if not usable[last] or len(unit.outputs) != 1 or len(read) > 1:
                break
            made |= {*unit.outputs}
            wanted = {name for name in {*wanted, *unit.outputs} if last_use.get(name, -1) > last}
            (sink,) = unit.outputs
            images = [graph.types[name] for name in (*read, sink)]
            if wanted == {sink} and len(read) == 1 and all(rows_of(image) >= 2 * LEAST_ROWS for image in images):
                yield Section(first, last, next(iter(read)), sink)


def bands_of(graph: UnitGraph, section: Section, rows: Sequence[int]) -> list[dict[str, Band]] | None:
    """For each share of the rows of the last tensor the smallest band of every tensor of the section.

    Returns:
        None if the section cannot be computed in bands.
    """
    whole = rows_of(graph.types[section.source])
    if _forward(graph, section, cut_band(0, whole)) is None:
        return None
    found = [_smallest(graph, section, begin, end) for begin, end in bounds(rows)]
    return None if None in found else [bands for bands in found if bands is not None]


def _forward(graph: UnitGraph, section: Section, band: Band) -> dict[str, Band] | None:
    """The bands of the section's tensors by name if `band` is cut from the first; None if a layer cannot be computed so."""
    bands = {section.source: band}
    for number in section.units:
        unit = graph.units[number]
        made = None if unit.is_fallback else band_after(unit.layer, [bands[name] for name in unit.inputs])
        if made is None:
            return None
        bands[unit.outputs[0]] = made
    return bands


def _smallest(graph: UnitGraph, section: Section, begin: int, end: int) -> dict[str, Band] | None:
    """The smallest bands that give rows `begin` up to `end` of the last tensor."""
    whole = rows_of(graph.types[section.source])
    top, bottom = _needed(graph, section, begin, end)

    def held(first: int, behind: int) -> dict[str, Band] | None:
        bands = _forward(graph, section, cut_band(first, behind))
        return bands if bands is not None and bands[section.sink].holds(begin, end) else None

    # Layers with a step fit to some rows only.
    first = next((row for row in range(top, -1, -1) if held(row, whole)), None)
    if first is None:
        return None
    return next((bands for row in range(bottom, whole + 1) if (bands := held(first, row))), None)


def _needed(graph: UnitGraph, section: Section, begin: int, end: int) -> tuple[int, int]:
    """The rows of the first tensor that rows `begin` up to `end` of the last one depend on."""
    needed = {section.sink: (begin, end)}
    for number in reversed(section.units):
        if graph.units[number].outputs[0] in needed:
            need(needed, graph.units[number])
    return needed[section.source]


def need(needed: dict[str, tuple[int, int]], unit: Unit) -> None:
    """Adds to `needed` the rows of a unit's inputs on which those of its output depend that are `needed`."""
    rows = rows_before(unit.layer, *needed[unit.outputs[0]])
    for name in unit.inputs:
        first, last = needed.get(name, rows)
        needed[name] = min(first, rows[0]), max(last, rows[1])


def banded_graph(graph: UnitGraph, split: Sequence[BandedSection]) -> UnitGraph | None:
    """The graph with some sections in bands; None if one cannot be: there is no such section, or it does not have the rows."""
    numbers = {unit.name: number for number, unit in enumerate(graph.units)}
    by_ends = {(one.first, one.last): one for one in sections(graph, [not unit.is_fallback for unit in graph.units])}
    units: list[Unit] = []
    begin = 0
    for one in sorted(split, key=lambda one: numbers.get(one.first, -1)):
        section = by_ends.get((numbers.get(one.first, -1), numbers.get(one.last, -1)))
        if section is None or section.first < begin or not _are_shares(one, rows_of(graph.types[section.sink])):
            return None
        bands = bands_of(graph, section, one.rows)
        if bands is None:
            return None
        units += [*graph.units[begin : section.first], *_in_bands(graph, section, one, bands)]
        begin = section.last + 1
    units += graph.units[begin:]
    types = {name: type_ for unit in units for name, type_ in zip(unit.outputs, unit.layer.outputs, strict=True)}
    repeated = graph.repeated_macs + _macs(units) - _macs(graph.units)
    return replace(graph, units=tuple(units), types=graph.types | types, repeated_macs=repeated)


def _macs(units: Sequence[Unit]) -> int:
    return sum(node.layer.macs - node.layer.product_macs for unit in units for node in unit.nodes)


def _are_shares(split: BandedSection, rows: int) -> bool:
    """Whether every processor has some of the rows, and they have all together."""
    return len(split.processors) == len(split.rows) and min(split.rows, default=0) > 0 and sum(split.rows) == rows


def _in_bands(
    graph: UnitGraph, section: Section, split: BandedSection, bands: Sequence[Mapping[str, Band]]
) -> Iterator[Unit]:
    """The units that replace a section: for every band the cut, its layers and the cut of the halo; then the join."""
    source, whole = graph.types[section.source], graph.types[section.sink]
    first, last = graph.units[section.first], graph.units[section.last]
    joined: list[str] = []
    shares = zip(split.processors, bounds(split.rows), bands, strict=True)
    for number, (processor, (begin, end), some) in enumerate(shares):
        names = {name: band_name(name, number, band) for name, band in some.items()}
        cut, made = some[section.source], some[section.sink]
        names[section.source] = f"{section.sink}/{names[section.source]}"  # another section may cut the same tensor
        layer = cut_layer(names[section.source], source, cut.begin, cut.end)
        yield _mover(first, layer, (section.source,), names[section.source], processor)
        for unit in graph.units[section.first : section.last + 1]:
            (output,) = unit.outputs
            title = band_name(unit.name, number, some[output])
            layer = layer_in_band(title, unit.layer, [some[name] for name in unit.inputs], some[output])
            yield _part(unit, layer, tuple(names[name] for name in unit.inputs), names[output], processor)
        joined.append(names[section.sink])
        if (made.begin, made.end) != (begin, end):
            joined[-1] = f"{band_name(section.sink, number, cut_band(begin, end))}/kept"
            layer = cut_layer(joined[-1], with_rows(whole, made.rows), begin - made.begin, end - made.begin)
            yield _mover(last, layer, (names[section.sink],), joined[-1], processor)
    join = join_layer(f"{section.sink}/joined", [with_rows(whole, rows) for rows in split.rows])
    yield _mover(last, join, tuple(joined), section.sink, None)


def _part(origin: Unit, layer: Layer, inputs: tuple[str, ...], output: str, placement: int) -> Unit:
    """The unit that computes a band of a unit's output."""
    (node,) = origin.nodes
    names: list[str | None] = list(node.inputs)
    for row, name in zip(layer.activations, inputs, strict=True):
        names[row] = name
    made = replace(node, layer=layer, inputs=tuple(names), outputs=(output,))
    return Unit(layer.name, layer, (made,), inputs, (output,), placement)


def _mover(near: Unit, layer: Layer, inputs: tuple[str, ...], output: str, placement: int | None) -> Unit:
    """The unit that cuts or joins bands beside a unit."""
    made = replace(near.nodes[0], layer=layer, inputs=inputs, outputs=(output,))
    return Unit(layer.name, layer, (made,), inputs, (output,), placement)
