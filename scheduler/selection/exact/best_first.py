"""Best-first search over partial assignments: Dijkstra's algorithm and A* (QS-DNN, section VI-D).

A state is the number of decided nodes and the choices of those with edges to undecided nodes; other decisions have no effect
on the rest. On a chain the states are the vertices of QS-DNN's graph (section IV-A), one per layer and implementation.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.scheduler.selection.base import ExactSearcher, SearchResult
from nnstretch.scheduler.selection.bounds import reparametrised
from nnstretch.scheduler.selection.exact.tables import Stage, stages
from nnstretch.scheduler.selection.problem import Costs, Problem

_State = tuple[int, tuple[int, ...]]


def best_first(
    problem: Problem, costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], bound: float, most: int
) -> SearchResult:
    """The cheapest path from the empty to a complete assignment.

    Args:
        problem: gives the order of nodes and their edges.
        costs: the problem's costs of choices, or reparametrised ones.
        edges: the problem's costs of edges, or reparametrised ones.
        bound: seconds to add to the total of `costs` and `edges`.
        most: number of states after which the search stops; the least open total is then a bound.
    """
    order = stages(problem)
    start: _State = (0, ())
    reached: dict[_State, float] = {start: 0.0}
    predecessor: dict[_State, tuple[_State, int]] = {}
    counter = itertools.count()
    queue: list[tuple[float, int, int, _State]] = [(0.0, 0, next(counter), start)]
    done: set[_State] = set()
    while queue:
        total, _, _, state = heapq.heappop(queue)
        if state in done:
            continue
        if state[0] == len(order):
            return SearchResult(_traced(state, predecessor), states=len(reached))
        if len(reached) > most:
            return SearchResult(None, bound + total, states=len(reached))
        done.add(state)
        stage = order[state[0]]
        known = dict(zip(stage.before, state[1], strict=True))
        for choice, cost in enumerate(_step(stage, state[1], costs, edges)):
            if cost == np.inf:
                continue
            successor = (state[0] + 1, tuple(choice if n == stage.node else known[n] for n in stage.after))
            if total + cost < reached.get(successor, np.inf):
                reached[successor] = total + cost
                predecessor[successor] = (state, choice)
                heapq.heappush(queue, (total + cost, -successor[0], next(counter), successor))
    return SearchResult(None, np.inf, states=len(reached))


def a_star(problem: Problem, most: int) -> SearchResult:
    """A*: orders states by their cost and the proved lower bound of the rest; as `best_first`."""
    relaxed = reparametrised(problem.costs, problem.edges)
    return best_first(problem, relaxed.costs, relaxed.edges, relaxed.bound, most)


def _step(
    stage: Stage, choices: tuple[int, ...], costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]
) -> list[float]:
    """The cost that each choice of the next node adds."""
    total = costs[stage.node]
    for other in stage.reads:
        total = total + edges[other, stage.node][choices[stage.before.index(other)]]
    found: list[float] = total.tolist()
    return found


def _traced(state: _State, predecessor: Mapping[_State, tuple[_State, int]]) -> tuple[int, ...]:
    choices: list[int] = []
    while state in predecessor:
        state, choice = predecessor[state]
        choices.append(choice)
    return tuple(reversed(choices))


@dataclass
class AStar(ExactSearcher):
    """Exact: extends the partial assignment with the lowest estimated total first.

    The paper's heuristic looks two layers ahead and is nearly optimal. This one is the bound of
    `nnstretch.scheduler.selection.bounds`. Dijkstra's algorithm on the reparametrised costs equals A* with that
    heuristic, which is admissible and consistent because no remaining cost is negative.
    """

    name = "a-star"
    most: int = 100_000
    """Number of states after which the search falls back to PBQP."""

    def _search(self, problem: Problem) -> SearchResult:
        return a_star(problem, self.most)


@dataclass
class Dijkstra(ExactSearcher):
    """Exact: extends the cheapest partial assignment first.

    On branching networks a state holds the choices of all layers with undecided consumers.
    """

    name = "dijkstra"
    most: int = 100_000
    """Number of states after which the search falls back to PBQP."""

    def _search(self, problem: Problem) -> SearchResult:
        return best_first(problem, problem.costs, problem.edges, 0.0, self.most)
