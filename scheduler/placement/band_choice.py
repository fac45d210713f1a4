"""The choice of sections that are computed in bands (`bands`): those that should gain most over the best plan so far."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnstretch.graph.bands import Band, can_be_in_bands, rows_of, shares_of_rows
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.placement.bands import Section, bands_of, need, sections
from nnstretch.scheduler.simulation.timing import InterferenceModel

_LEAST_GAIN = 0.03
"""Least gain, as a share of the network's time, of a section that is worth measuring."""
_TRIED = 20
"""Sections whose halos are worked out exactly."""


def shares_of_work(bands: Sequence[Mapping[str, Band]], graph: UnitGraph, section: Section) -> list[float]:
    """The work of each band as a share of the section's; their sum exceeds 1 by what is computed twice."""
    units = [graph.units[number] for number in section.units]
    total = sum(map(_work, units))
    return [
        sum(_work(unit) * some[unit.outputs[0]].rows / rows_of(unit.layer.outputs[0]) for unit in units) / total
        for some in bands
    ]


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of a graph's units, by which sections are chosen.

    Attributes:
        alone: (units, queues), without contention; infinite where a queue cannot compute a unit, or one that stays elsewhere.
        present: of every unit in the best plan so far, in which several queues may share it.
        interference: between the queues.
    """

    alone: NDArray[np.float64]
    present: NDArray[np.float64]
    interference: InterferenceModel


@dataclass(frozen=True)
class Promise:
    """A section in bands: the rows of each queue, and the seconds that it is expected to gain."""

    section: Section
    rows: Mapping[int, int]
    gain: float


def promising(graph: UnitGraph, seconds: LayerSeconds) -> list[Promise]:
    """Sections without common units that are expected to gain most over the best plan so far, one after another."""
    least = _LEAST_GAIN * float(seconds.present.sum())
    hopes = [hope for hope in _hopes(graph, seconds) if hope.gain > least]
    hopes.sort(key=lambda hope: -hope.gain)
    chosen: list[Promise] = []
    while best := max(_with_halos(graph, hopes[:_TRIED], seconds), key=lambda hope: hope.gain, default=None):
        if best.gain <= least:
            break
        chosen.append(best)
        taken = {*best.section.units}
        hopes = [hope for hope in hopes if taken.isdisjoint(hope.section.units)]
    return chosen


def units_of_sections(graph: UnitGraph, usable: Collection[int]) -> set[int]:
    """Numbers of the `usable` units that are part of a section which may be computed in bands."""
    able = [number in usable and _is_able(unit) for number, unit in enumerate(graph.units)]
    found: set[int] = set()
    for section in sections(graph, able):
        found.update(section.units)
    return found


def _hopes(graph: UnitGraph, seconds: LayerSeconds) -> Iterator[Promise]:
    """All sections on every group of queues, with halos as they are between halves of the image."""
    able = np.array([_is_able(unit) for unit in graph.units])
    blocked = np.isinf(seconds.alone) | ~able[:, None]
    alone, blocks, present = _sums(np.where(blocked, 0.0, seconds.alone)), _sums(blocked), _sums(seconds.present)
    repeated: dict[str, dict[str, float]] = {}
    for section in sections(graph, able.tolist()):
        begin, end = section.first, section.last + 1
        taken = {
            queue: float(alone[end, queue] - alone[begin, queue])
            for queue in range(alone.shape[1])
            if blocks[end, queue] == blocks[begin, queue] and alone[end, queue] > alone[begin, queue]
        }
        if len(taken) < 2:
            continue
        if section.sink not in repeated:
            repeated[section.sink] = _repeated_rows(graph, section, able)
        more = repeated[section.sink][section.source]
        for together in itertools.chain(*(itertools.combinations(taken, n) for n in range(2, len(taken) + 1))):
            rows = shares_of_rows(rows_of(graph.types[section.sink]), {queue: taken[queue] for queue in together})
            if rows is not None:
                total = 1 + (len(together) - 1) * more
                shares = [total * count / sum(rows.values()) for count in rows.values()]
                gain = float(present[end] - present[begin]) - _slowest(graph, section, rows, shares, seconds)
                yield Promise(section, rows, gain)


def _sums(values: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of the first 0, 1, 2, … rows."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), values.cumsum(axis=0, dtype=np.float64)])


def _is_able(unit: Unit) -> bool:
    """Whether a unit can be part of a section in bands."""
    return not unit.is_fallback and can_be_in_bands(unit.layer)


def _work(unit: Unit) -> float:
    """Multiply-adds of a unit, or its elements if it has none."""
    return float(unit.layer.macs or unit.layer.outputs[0].elements)


def _repeated_rows(graph: UnitGraph, section: Section, able: NDArray[np.bool_]) -> dict[str, float]:
    """For each tensor from which the section's last can be computed in bands, the share of its rows that both halves need."""
    rows = rows_of(graph.types[section.sink])
    upper, lower = {section.sink: (0, rows // 2)}, {section.sink: (rows // 2, rows)}
    for number in range(section.last, -1, -1):
        unit = graph.units[number]
        if not able[number]:
            break
        if unit.outputs[0] in upper:
            need(upper, unit)
            need(lower, unit)
    return {name: (upper[name][1] - lower[name][0]) / rows_of(graph.types[name]) for name in upper}


def _slowest(
    graph: UnitGraph, section: Section, rows: Mapping[int, int], work: Sequence[float], seconds: LayerSeconds
) -> float:
    """Seconds until all queues have done their shares of the section's work, and one of them has all rows."""
    alone = seconds.alone[section.first : section.last + 1].sum(axis=0)
    size = graph.types[section.sink].bytes
    everyone = frozenset(rows)
    return max(
        seconds.interference.contention_factor(queue, everyone - {queue}) * share * float(alone[queue])
        + seconds.interference.transfer_seconds(queue, everyone - {queue}, size)
        for queue, share in zip(rows, work, strict=True)
    )


def _with_halos(graph: UnitGraph, hopes: Sequence[Promise], seconds: LayerSeconds) -> Iterator[Promise]:
    """What sections gain with the halos of their bands; those that cannot be computed in bands are left out."""
    for hope in hopes:
        bands = bands_of(graph, hope.section, [*hope.rows.values()])
        if bands is not None:
            work = shares_of_work(bands, graph, hope.section)
            present = float(seconds.present[hope.section.first : hope.section.last + 1].sum())
            yield replace(hope, gain=present - _slowest(graph, hope.section, hope.rows, work, seconds))
