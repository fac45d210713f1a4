"""Random search (QS-DNN, section VI-D): the best of many episodes, assignments drawn layer by layer, without learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.problem import Problem

Mask = NDArray[np.bool_]


@dataclass
class Episodes:
    """The costs of all episodes of a search, and the best legal episode."""

    problem: Problem
    _best: tuple[float, Sequence[int]] | None = None
    _costs: list[float] = field(default_factory=list)

    def add(self, choices: Sequence[int]) -> None:
        """Records an episode."""
        cost = self.problem.cost(choices)
        self._costs.append(cost)
        rated = cost if self.problem.keeps_limits(choices) else np.inf
        if self._best is None or rated < self._best[0]:
            self._best = (rated, choices)

    def found(self) -> SearchResult:
        """The best episode, and the curve of all episodes of finite cost."""
        assert self._best is not None
        curve = tuple((step, cost) for step, cost in enumerate(self._costs, 1) if np.isfinite(cost))
        return SearchResult(self._best[1], states=len(self._costs) * len(self.problem.costs), curve=curve)


def allowed_masks(problem: Problem) -> list[list[tuple[int, Mask]]]:
    """For each node its incoming edges with forbidden pairs: (source node, mask of allowed pairs)."""
    masks: list[list[tuple[int, Mask]]] = [[] for _ in problem.costs]
    for (u, v), matrix in problem.edges.items():
        if not np.all(np.isfinite(matrix)):
            masks[v].append((u, np.isfinite(matrix)))
    return masks


def allowed(masks: Sequence[tuple[int, Mask]], choices: Sequence[int], size: int) -> Mask:
    """Mask of a node's choices that are compatible with earlier ones; all of them if none is (the episode is then illegal)."""
    mask = np.ones(size, dtype=bool)
    for other, pairs in masks:
        mask &= pairs[choices[other]]
    return mask if mask.any() else np.ones(size, dtype=bool)


@dataclass
class RandomSearch(HeuristicSearcher):
    """Draws each layer's choice among those compatible with earlier layers."""

    name = "random"
    episodes: int = 1000
    """Number of assignments."""

    def _search(self, problem: Problem) -> SearchResult:
        random = np.random.default_rng(problem.seed)
        masks = allowed_masks(problem)
        sizes = np.array(problem.sizes, dtype=np.int64)
        episodes = Episodes(problem)
        for _ in range(self.episodes):
            choices: list[int] = random.integers(0, sizes).tolist() if len(sizes) else []
            for node, mine in enumerate(masks):
                if mine:
                    options = np.flatnonzero(allowed(mine, choices, problem.sizes[node]))
                    choices[node] = int(options[choices[node] % len(options)])
            episodes.add(choices)
        return episodes.found()
