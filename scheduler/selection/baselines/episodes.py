"""Episodes: assignments that are drawn layer by layer, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.base import SearchResult
from nnstretch.scheduler.selection.problem import Problem

Mask = NDArray[np.bool_]


@dataclass
class Episodes:
    """All episodes of a search: their costs, and the best of those that are not forbidden and break no limit."""

    problem: Problem
    _best: tuple[float, Sequence[int]] | None = None
    _costs: list[float] = field(default_factory=list)

    def add(self, choices: Sequence[int]) -> None:
        """One episode."""
        cost = self.problem.cost(choices)
        self._costs.append(cost)
        rated = cost if self.problem.keeps_limits(choices) else np.inf
        if self._best is None or rated < self._best[0]:
            self._best = (rated, choices)

    def found(self) -> SearchResult:
        """The best episode, and the curve of all that were not forbidden."""
        assert self._best is not None
        curve = tuple((step, cost) for step, cost in enumerate(self._costs, 1) if np.isfinite(cost))
        return SearchResult(self._best[1], states=len(self._costs) * len(self.problem.costs), curve=curve)


def allowed_masks(problem: Problem) -> list[list[tuple[int, Mask]]]:
    """For each node the edges from nodes before it that forbid some pair: (node, which pairs are allowed)."""
    masks: list[list[tuple[int, Mask]]] = [[] for _ in problem.costs]
    for (u, v), matrix in problem.edges.items():
        if not np.all(np.isfinite(matrix)):
            masks[v].append((u, np.isfinite(matrix)))
    return masks


def allowed(masks: Sequence[tuple[int, Mask]], choices: Sequence[int], size: int) -> Mask:
    """Which choices of a node go with those before it; all of them if none does (the episode is lost then)."""
    mask = np.ones(size, dtype=bool)
    for other, pairs in masks:
        mask &= pairs[choices[other]]
    return mask if mask.any() else np.ones(size, dtype=bool)
