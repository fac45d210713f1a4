"""Ways to branch a head: which of its towers runs on which processor, and how wide."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import fx

from nnstretch.branching.design.blueprint import Blueprint, HeadChoice
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import State, head_prediction, head_transfer

_MOST_UNITS = 6  # towers beyond this number are not placed by themselves
_MOST_COMBINATIONS = 1 << 19  # of processors and widths; grids of widths are thinned to stay below
_WIDTHS = 16  # width ratios are k / 16

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeadCandidate:
    """One way to compute a head.

    Attributes:
        branches: empty: the whole head on one processor.
        seconds: from the last meeting point to the network's output.
        macs: multiply-accumulates for one sample beyond those of the original head; mostly below zero.
    """

    branches: tuple[HeadChoice, ...]
    seconds: float
    macs: int


def head_candidates(
    latencies: LatencyTable, limits: SearchLimits, states: Mapping[fx.Node, State]
) -> list[HeadCandidate]:
    """The whole head, and the ways to branch it that meet the limits, as far as they are on the front of latency and MACs.

    A branch takes at most `beta`, and the meeting point at most `alpha`, of what all towers take on their fastest processor.
    The branches have at least `min_macs` of the towers' MACs.

    Args:
        latencies: predictions.
        limits: constraints, with the family's defaults.
        states: by the tensor that is read; the one of the head's source among them.
    """
    found = [HeadCandidate((), head_prediction(latencies, states).seconds, 0)]
    if latencies.blueprint.tower_count:
        space = _HeadSpace(latencies, limits, states)
        for group in processor_groups(range(latencies.processors)):
            found += space.candidates(group)
    front: list[HeadCandidate] = []
    for candidate in sorted(found, key=lambda one: (one.seconds, -one.macs)):
        if not front or candidate.macs > front[-1].macs:
            front.append(candidate)
    return front


def head_units(blueprint: Blueprint) -> list[tuple[int, ...]]:
    """Towers that are placed together: each by itself, the smallest ones together where there are many."""
    macs = [blueprint.head_cost(HeadChoice(0, (tower,), 1.0)).macs for tower in range(blueprint.tower_count)]
    units: list[tuple[int, tuple[int, ...]]] = [(work, (tower,)) for tower, work in enumerate(macs)]
    while len(units) > _MOST_UNITS:
        units.sort()
        (first, some), (second, others), *rest = units
        units = [(first + second, tuple(sorted(some + others))), *rest]
    return sorted(towers for _, towers in units)


class _HeadSpace:
    """All assignments of towers to the processors of a group, and all their widths, evaluated as arrays."""

    def __init__(self, latencies: LatencyTable, limits: SearchLimits, states: Mapping[fx.Node, State]) -> None:
        self.latencies, self.limits, self.states = latencies, limits, states
        self.units = head_units(latencies.blueprint)
        every = tuple(range(latencies.blueprint.tower_count))
        choices = [HeadChoice(processor, every, 1.0) for processor in range(latencies.processors)]
        self.fastest = min(latencies.towers(choice, states) for choice in choices)
        self.original_macs = latencies.blueprint.head_cost(choices[0], states).macs

    def candidates(self, group: Sequence[int]) -> list[HeadCandidate]:
        """Candidates within the limits on a group of processors, which all work."""
        meeting = self.latencies.head_meeting(tuple(group))
        if meeting > self.limits.alpha * self.fastest:
            return []
        owners = _assignments(len(self.units), len(group))
        widths = self._widths(len(owners), len(group))
        macs = self._unit_macs(widths)
        mine = [owners == place for place in range(len(group))]
        seconds = [
            (part @ self._unit_seconds(processor, group, widths)).reshape(len(owners), *_axis(place, len(group)))
            for place, (part, processor) in enumerate(zip(mine, group, strict=True))
        ]
        work = [(part @ macs).reshape(len(owners), *_axis(place, len(group))) for place, part in enumerate(mine)]
        slowest, total = seconds[0], work[0]
        for more, further in zip(seconds[1:], work[1:], strict=True):
            slowest, total = np.maximum(slowest, more), total + further
        allowed = (slowest <= self.limits.beta * self.fastest) & (total >= self.limits.min_macs * self.original_macs)
        rest = head_transfer(self.latencies, self.states, group) + meeting + self.latencies.tail(self.states)
        return [
            HeadCandidate(
                self._choices(group, owners[place[0]], [widths[i] for i in place[1:]]),
                float(slowest[place]) + rest,
                round(float(total[place])) - self.original_macs,
            )
            for place in _front(slowest, total, allowed)
        ]

    def _widths(self, assignments: int, processors: int) -> list[float]:
        """Width ratios from the smallest that is allowed up to 1, fewer where there are many processors."""
        least = self.limits.min_width or 1.0 / _WIDTHS
        grid = [k / _WIDTHS for k in range(1, _WIDTHS + 1) if k / _WIDTHS >= least]
        while len(grid) > 1 and assignments * len(grid) ** processors > _MOST_COMBINATIONS:
            grid = grid[::-2][::-1]
        return grid

    def _unit_seconds(self, processor: int, group: Sequence[int], widths: Sequence[float]) -> _Numbers:
        """Seconds of every unit (row) at every width (column) while the whole group works."""
        factor = self.latencies.head_contention_factor(processor, group)
        return factor * np.array(
            [
                [self.latencies.towers(HeadChoice(processor, unit, width), self.states) for width in widths]
                for unit in self.units
            ]
        )

    def _unit_macs(self, widths: Sequence[float]) -> _Numbers:
        cost = self.latencies.blueprint.head_cost
        return np.array(
            [[float(cost(HeadChoice(0, unit, width), self.states).macs) for width in widths] for unit in self.units]
        )

    def _choices(
        self, group: Sequence[int], owners: npt.NDArray[np.int64], widths: Sequence[float]
    ) -> tuple[HeadChoice, ...]:
        return tuple(
            HeadChoice(
                processor,
                tuple(
                    sorted(t for unit, owner in zip(self.units, owners, strict=True) if owner == place for t in unit)
                ),
                width,
            )
            for place, (processor, width) in enumerate(zip(group, widths, strict=True))
        )


def _assignments(units: int, processors: int) -> npt.NDArray[np.int64]:
    """All ways to give every unit to a processor, one per row, in which every processor has one or more."""
    rows = [row for row in itertools.product(range(processors), repeat=units) if len(set(row)) == processors]
    return np.array(rows, dtype=np.int64).reshape(len(rows), units)


def _axis(place: int, count: int) -> list[int]:
    """Shape in which the widths of processor `place` of `count` are on an axis of their own."""
    return [-1 if other == place else 1 for other in range(count)]


def _front(seconds: _Numbers, macs: _Numbers, allowed: npt.NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Positions on the front of latency and MACs."""
    flat = np.flatnonzero(allowed & np.isfinite(seconds))
    order = flat[np.lexsort((-macs.reshape(-1)[flat], seconds.reshape(-1)[flat]))]
    most = np.maximum.accumulate(macs.reshape(-1)[order])
    kept = order[np.flatnonzero(np.diff(most, prepend=-1.0) > 0)]
    return [tuple(int(i) for i in np.unravel_index(place, seconds.shape)) for place in kept]
