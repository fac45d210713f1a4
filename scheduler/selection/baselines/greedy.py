"""Direct search (QS-DNN, section VI-D): one layer after another, each takes what is cheapest there and then."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.problem import Costs, Problem


class _Direct(HeuristicSearcher):
    """What the two kinds of direct search share: forbidden pairs are avoided as long as a layer has another choice."""

    def _search(self, problem: Problem) -> SearchResult:
        arriving: list[list[tuple[int, Costs]]] = [[] for _ in problem.costs]
        for (u, v), matrix in problem.edges.items():
            arriving[v].append((u, matrix))
        choices: list[int] = []
        for node, costs in enumerate(problem.costs):
            penalties = np.zeros(len(costs))
            for other, matrix in arriving[node]:
                penalties = penalties + matrix[choices[other]]
            choices.append(int(self._seen(costs, penalties).argmin()))
        return SearchResult(choices, states=sum(problem.sizes))

    @abstractmethod
    def _seen(self, costs: Costs, penalties: Costs) -> Costs:
        """What a layer's choices seem to cost, given their own costs and what they add on edges to layers before it."""


class Greedy(_Direct):
    """The paper's DS: adapt layers are not looked at."""

    name = "greedy"

    def _seen(self, costs: Costs, penalties: Costs) -> Costs:
        return np.where(np.isfinite(penalties), costs, np.inf)


class GreedyWithPenalties(_Direct):
    """The paper's DS+: a choice costs what adapting to the layers before it takes, too."""

    name = "greedy-penalties"

    def _seen(self, costs: Costs, penalties: Costs) -> Costs:
        return costs + penalties
