"""The candidates for a layer: which are known, and which are worth measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nnstretch.graph.layer import Layer
from nnstretch.scheduler.costmodel.costs import Candidate

_OUT_OF_REACH = 1.6
"""A routine whose first setting takes this many times the fastest first setting wins with none of its settings."""


class CandidateSet:
    """The candidates for a layer, with the known seconds of some.

    Candidates of one routine with the same layouts are a family. Its head is the first one, with the setting that the routine
    recommends most. If the head is far behind the head of another family with the same layouts, the family is eliminated.
    """

    def __init__(self, layer: Layer, candidates: Sequence[Candidate], *, exhaustive: bool) -> None:
        """Knows no seconds yet.

        Args:
            layer: what all candidates compute.
            candidates: those of a routine in the order in which it recommends their settings.
            exhaustive: eliminate none.
        """
        self.candidates = candidates
        self.seconds: dict[int, float | None] = {}
        self._layouts = [c.routine.layouts(layer, c.parameters) for c in candidates]
        families = [(id(c.routine), *layouts) for c, layouts in zip(candidates, self._layouts, strict=True)]
        heads: dict[object, int] = {}
        for number, family in enumerate(families):
            heads.setdefault(family, number)
        self._head = list(range(len(candidates))) if exhaustive else [heads[family] for family in families]

    @property
    def best(self) -> int | None:
        """The number of the fastest known candidate; None if none is known."""
        return min((n for n, s in self.seconds.items() if s is not None), key=self._known, default=None)

    def unknown_heads(self) -> list[int]:
        """Heads of families without known seconds."""
        return [n for n, head in enumerate(self._head) if n == head and n not in self.seconds]

    def worth_measuring(self, head_seconds: Mapping[int, float]) -> list[int]:
        """Unknown candidates that are not eliminated.

        Args:
            head_seconds: preliminary seconds of heads, from a few runs.
        """
        times = {**head_seconds, **{n: s for n, s in self.seconds.items() if s is not None}}
        least: dict[object, float] = {}
        for head in set(self._head):
            layouts = self._layouts[head]
            least[layouts] = min(least.get(layouts, math.inf), times.get(head, math.inf))

        def in_reach(number: int) -> bool:
            head = self._head[number]
            return number == head or times.get(head, 0.0) <= _OUT_OF_REACH * least[self._layouts[head]]

        return [n for n in range(len(self.candidates)) if n not in self.seconds and in_reach(n)]

    def _known(self, number: int) -> float:
        return self.seconds[number] or 0.0
