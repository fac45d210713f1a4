"""Layers without branches that several processors compute one after another: each whole on one of them, or split by channels.

A split layer costs what its slowest share takes, and before it every processor fetches what the others made. All layers may be
computed in bands of rows instead. The scheduler does the same when a network is compiled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.branching.latency.prediction import LatencyPredictor
from nnstretch.branching.latency.workloads import LayerRow
from nnstretch.graph.bands import (
    can_be_in_bands,
    cut_layer,
    halo_share,
    join_layer,
    rows_of,
    shares_of_rows,
    with_rows,
)
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.slices import bounds, even_shares, is_divisible, layer_share

Home = tuple[int, ...]
"""The processors that hold a tensor, or have made parts of it, ascending."""

Meeting = Callable[[TensorType, Home, Home], float]
"""Tensor, its home, its readers -> seconds until these can read it."""


def processor_groups(processors: Sequence[int]) -> Iterator[Home]:
    """All combinations of two or more of some processors."""
    for size in range(2, len(processors) + 1):
        yield from itertools.combinations(processors, size)


@dataclass(frozen=True)
class SplitCost:
    """Seconds of layers on several processors, transfers included, and where the result lies."""

    seconds: float
    home: Home


@dataclass(frozen=True)
class InBands:
    """What bands of rows of consecutive layers cost.

    Layers take time in proportion to their rows. Halos are those of a chain, which are the largest that layers can have.

    Attributes:
        source: the tensor that they read.
        result: the one that they make.
        alone: seconds of all rows by processor; infinite where one cannot compute a layer.
        halo: the share of all rows that two neighbours compute both.
    """

    source: TensorType
    result: TensorType
    alone: Mapping[int, float]
    halo: float

    def then(self, following: InBands) -> InBands:
        """These layers and those that read their result."""
        alone = {p: seconds + following.alone[p] for p, seconds in self.alone.items()}
        return InBands(self.source, following.result, alone, self.halo + following.halo)


@dataclass(eq=False)
class SplitLayers:
    """Costs of rows of layers on groups of processors, by dynamic programming over the layers.

    Attributes:
        predictor: of layers and contention factors.
        meeting: costs of transfers.
        least: least seconds of a layer that is worth splitting; one that takes none never is.
        workloads: layers predicted so far, with the processor.
    """

    predictor: LatencyPredictor
    meeting: Meeting
    least: float
    workloads: set[tuple[int, str]]
    _ways: dict[tuple[str, Home], dict[Home, float]] = field(default_factory=dict)
    _cuts: dict[tuple[TensorType, int], float] = field(default_factory=dict)
    _joins: dict[tuple[TensorType, int, int], float] = field(default_factory=dict)

    def cost(self, row: LayerRow, group: Home, home: Home, *, is_last: bool = False) -> SplitCost:
        """The least seconds of a row of layers on a group of processors, from an input that lies at `home`.

        Of several homes of the result the one counts that is reached first. The result of the last layers of a network
        (`is_last`) must come to one processor.
        """
        reached: list[dict[Home, float]] = [{home: 0.0}, *({} for _ in row.layers)]
        for number, layer in enumerate(row.layers):
            ways = self._ways_of(layer, group)
            for held, seconds in reached[number].items():
                if not ways:
                    _keep_least(reached[number + 1], held, seconds)
                for to, taken in ways.items():
                    fetch = self._fetch(row, number, held, to)
                    _keep_least(reached[number + 1], to, seconds + fetch + taken)
                for processor in group if number in row.pairs else ():
                    taken = self.predictor.fused_seconds(row.joined[number], processor)
                    fetch = self._fetch(row, number, held, (processor,))
                    _keep_least(reached[number + 2], (processor,), seconds + fetch + taken)
        ends = reached[-1]
        part = self.in_bands(row, group)
        if part is not None:
            for together in processor_groups(group):
                _keep_least(ends, together, self.banded_seconds(part, together, home))
        if is_last and row.layers:
            gathered: dict[Home, float] = {}
            for held, seconds in ends.items():
                for processor in group:
                    passing = self.meeting(row.layers[-1].outputs[0], held, (processor,))
                    _keep_least(gathered, (processor,), seconds + passing)
            ends = gathered
        end = min(ends, key=lambda place: ends[place])
        return SplitCost(ends[end], end)

    def in_bands(self, row: LayerRow, processors: Iterable[int]) -> InBands | None:
        """What bands of a row of layers cost on some processors; None if a layer looks at too many rows."""
        if not row.layers or not all(map(can_be_in_bands, row.layers)):
            return None
        alone = {p: self._alone(row, p) for p in processors}
        return InBands(row.layers[0].type_of(0), row.layers[-1].outputs[0], alone, sum(map(halo_share, row.layers)))

    def banded_seconds(self, part: InBands, group: Home, home: Home) -> float:
        """Seconds of layers where each processor of a group computes a band of rows, from an input that lies at `home`.

        Infinite if a processor cannot compute a layer, or gets too few rows. Each processor holds what it made.
        """
        alone = {p: part.alone[p] for p in group}
        if not all(0 < seconds < math.inf for seconds in alone.values()):
            return math.inf
        rows = shares_of_rows(rows_of(part.result), alone)
        if rows is None:
            return math.inf
        repeated = 1 + (len(group) - 1) * part.halo
        seconds = 0.0
        for p, count in rows.items():
            share = repeated * count / rows_of(part.result)
            if share >= 1:
                return math.inf
            cuts = sum(self._cut_seconds(image, share, p) for image in (part.source, part.result))
            taken = share * alone[p] + cuts
            seconds = max(seconds, taken * self.predictor.contention_factor(p, frozenset(group) - {p}))
        gathering = self.meeting(part.result, group, group[:1]) + self._join_seconds(part.result, len(group), group[0])
        return self.meeting(part.source, home, group) + seconds + gathering

    def _cut_seconds(self, image: TensorType, share: float, processor: int) -> float:
        """Seconds of copying a share of the rows of an image: in proportion to half of them, which alone is predicted."""
        key = (image, processor)
        if key not in self._cuts:
            half = max(1, rows_of(image) // 2)
            seconds = self._seconds(cut_layer("cut", image, 0, half), processor)
            self._cuts[key] = seconds * rows_of(image) / half
        return share * self._cuts[key]

    def _join_seconds(self, image: TensorType, bands: int, processor: int) -> float:
        """Seconds of joining bands to an image, as if all had as many rows."""
        key = (image, bands, processor)
        if key not in self._joins:
            least, more = divmod(rows_of(image), bands)
            parts = [with_rows(image, least + (band < more)) for band in range(bands)]
            self._joins[key] = self._seconds(join_layer("join", parts), processor)
        return self._joins[key]

    def _alone(self, row: LayerRow, processor: int) -> float:
        """Seconds of a row of layers on one processor, some of them fused in pairs."""
        reached = [0.0, *(math.inf for _ in row.layers)]
        for number, layer in enumerate(row.layers):
            taken = reached[number] + self._seconds(layer, processor)
            reached[number + 1] = min(reached[number + 1], taken)
            if number in row.pairs:
                fused = reached[number] + self.predictor.fused_seconds(row.joined[number], processor)
                reached[number + 2] = min(reached[number + 2], fused)
        return reached[-1]

    def _fetch(self, row: LayerRow, number: int, held: Home, to: Home) -> float:
        """Seconds of the transfer before a layer; an input that was read before is not fetched again where it was read."""
        return 0.0 if to == held and number in row.rereads else self.meeting(row.layers[number].type_of(0), held, to)

    def _ways_of(self, layer: Layer, group: Home) -> dict[Home, float]:
        """Seconds of a layer whole or split, by the processors that compute it; empty if it takes no time on any.

        That is so for views. Operators without a prediction count as zero, as everywhere.
        """
        key = (layer.workload, group)
        if key not in self._ways:
            whole = self._whole(layer, group)
            ways = {(p,): s for p, s in whole.items()} | self._split(layer, whole)
            self._ways[key] = ways if any(ways.values()) else {}
        return self._ways[key]

    def _whole(self, layer: Layer, group: Home) -> dict[int, float]:
        """Seconds of a layer on the processors of a group that can compute it."""
        times = {p: self._seconds(layer, p) for p in group}
        return {p: seconds for p, seconds in times.items() if math.isfinite(seconds)}

    def _seconds(self, layer: Layer, processor: int) -> float:
        self.workloads.add((processor, layer.workload))
        return self.predictor.seconds([layer], processor)

    def _split(self, layer: Layer, whole: Mapping[int, float]) -> dict[Home, float]:
        """Seconds of a layer split over every group of the processors that can compute it."""
        return {
            together: max(
                self._seconds(share, p) * self.predictor.contention_factor(p, frozenset(together) - {p})
                for p, share in zip(together, shares, strict=True)
            )
            for together, shares in self._divisions(layer, whole)
        }

    def _divisions(self, layer: Layer, whole: Mapping[int, float]) -> Iterator[tuple[Home, list[Layer]]]:
        """The shares of a layer for every group of the processors that can compute it, if it is worth splitting."""
        fastest = min(whole.values(), default=0.0)
        if fastest <= 0 or fastest < self.least or not is_divisible(layer):
            return
        for together in processor_groups(sorted(whole)):
            channels = even_shares(layer.outputs[0].shape[1], {p: whole[p] for p in together})
            if channels is not None:
                yield together, [layer_share(layer, *bound) for bound in bounds(list(channels.values()))]

    def shares(self, row: LayerRow, group: Home) -> dict[int, list[Layer]]:
        """The shares of a row of layers, by the processor of the group that may compute them."""
        found: dict[int, list[Layer]] = {p: [] for p in group}
        for layer in row.layers:
            for together, shares in self._divisions(layer, self._whole(layer, group)):
                for p, share in zip(together, shares, strict=True):
                    found[p].append(share)
        return found


def _keep_least(ends: dict[Home, float], home: Home, seconds: float) -> None:
    ends[home] = min(ends.get(home, math.inf), seconds)
