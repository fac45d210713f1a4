"""Direct search (QS-DNN, section VI-D): takes the cheapest choice of one layer after another."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nnstretch.scheduler.selection.base import HeuristicSearcher, SearchResult
from nnstretch.scheduler.selection.problem import Costs, Problem


class _Direct(HeuristicSearcher):
    """Base of both direct searches. Avoids forbidden pairs while a layer has another choice."""

    def _search(self, problem: Problem) -> SearchResult:
        incoming: list[list[tuple[int, Costs]]] = [[] for _ in problem.costs]
        for (u, v), matrix in problem.edges.items():
            incoming[v].append((u, matrix))
        choices: list[int] = []
        for node, costs in enumerate(problem.costs):
            penalties = np.zeros(len(costs))
            for other, matrix in incoming[node]:
                penalties = penalties + matrix[choices[other]]
            choices.append(int(self._estimated(costs, penalties).argmin()))
        return SearchResult(choices, states=sum(problem.sizes))

    @abstractmethod
    def _estimated(self, costs: Costs, penalties: Costs) -> Costs:
        """Estimated costs of a layer's choices, from their own costs and the penalties on edges from earlier layers."""


class Greedy(_Direct):
    """The paper's DS: ignores the costs of adapt layers."""

    name = "greedy"

    def _estimated(self, costs: Costs, penalties: Costs) -> Costs:
        return np.where(np.isfinite(penalties), costs, np.inf)


class GreedyWithPenalties(_Direct):
    """The paper's DS+: adds the costs of adapt layers from earlier layers."""

    name = "greedy-penalties"

    def _estimated(self, costs: Costs, penalties: Costs) -> Costs:
        return costs + penalties
