"""Random search (QS-DNN, section VI-D): the best of many assignments drawn without learning."""

from __future__ import annotations

import numpy as np

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.baselines.episodes import Episodes, allowed, allowed_masks
from nnstretch.scheduler.selection.problem import Problem


class RandomSearch(HeuristicSearcher):
    """Draws each layer's choice among those compatible with earlier layers."""

    name = "random"

    def __init__(self, episodes: int = 1000) -> None:
        """`episodes`: number of assignments."""
        self._episodes = episodes

    def _search(self, problem: Problem) -> SearchResult:
        random = np.random.default_rng(problem.seed)
        masks = allowed_masks(problem)
        sizes = np.array(problem.sizes, dtype=np.int64)
        episodes = Episodes(problem)
        for _ in range(self._episodes):
            choices: list[int] = random.integers(0, sizes).tolist() if len(sizes) else []
            for node, mine in enumerate(masks):
                if mine:
                    options = np.flatnonzero(allowed(mine, choices, problem.sizes[node]))
                    choices[node] = int(options[choices[node] % len(options)])
            episodes.add(choices)
        return episodes.found()
