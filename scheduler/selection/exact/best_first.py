"""Best-first search over partial assignments: what Dijkstra and A* share.

A state is a number of decided nodes and the choices of those that later nodes still look at: whatever else was decided
makes no difference to what comes. On a chain these are the vertices of QS-DNN's graph (section IV-A), one per layer and
implementation.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.scheduler.selection.base import SearchResult
from nnstretch.scheduler.selection.bounds import moved
from nnstretch.scheduler.selection.exact.frontier import Stage, stages
from nnstretch.scheduler.selection.problem import Costs, Problem

_State = tuple[int, tuple[int, ...]]


def best_first(
    problem: Problem, costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs], bound: float, most: int
) -> SearchResult:
    """The cheapest path from no node decided to all.

    Args:
        problem: says what looks at what.
        costs: of its choices, or the same totals less `bound` in other places.
        edges: likewise.
        bound: seconds that every assignment costs beside these.
        most: states after which the search gives up; the least total on the way then bounds all assignments.
    """
    plan = stages(problem)
    start: _State = (0, ())
    reached: dict[_State, float] = {start: 0.0}
    came: dict[_State, tuple[_State, int]] = {}
    counter = itertools.count()
    queue: list[tuple[float, int, int, _State]] = [(0.0, 0, next(counter), start)]
    done: set[_State] = set()
    while queue:
        total, _, _, state = heapq.heappop(queue)
        if state in done:
            continue
        if state[0] == len(plan):
            return SearchResult(_traced(state, came), states=len(reached))
        if len(reached) > most:
            return SearchResult(None, bound + total, states=len(reached))
        done.add(state)
        stage = plan[state[0]]
        for choice, cost in enumerate(_step(stage, state[1], costs, edges)):
            if cost == np.inf:
                continue
            successor = (state[0] + 1, _remembered(stage, state[1], choice))
            if total + cost < reached.get(successor, np.inf):
                reached[successor] = total + cost
                came[successor] = (state, choice)
                heapq.heappush(queue, (total + cost, -successor[0], next(counter), successor))
    return SearchResult(None, np.inf, states=len(reached))


def promising_first(problem: Problem, most: int) -> SearchResult:
    """A*: the cheapest path, on which states are ordered by what they cost and what is proved to come at least."""
    relaxed = moved(problem.costs, problem.edges)
    return best_first(problem, relaxed.costs, relaxed.edges, relaxed.bound, most)


def _step(
    stage: Stage, choices: tuple[int, ...], costs: Sequence[Costs], edges: Mapping[tuple[int, int], Costs]
) -> list[float]:
    """What each choice of the next node adds."""
    total = costs[stage.node]
    for other in stage.reads:
        total = total + edges[other, stage.node][choices[stage.before.index(other)]]
    found: list[float] = total.tolist()
    return found


def _remembered(stage: Stage, choices: tuple[int, ...], choice: int) -> tuple[int, ...]:
    known = dict(zip(stage.before, choices, strict=True))
    known[stage.node] = choice
    return tuple(known[n] for n in stage.after)


def _traced(state: _State, came: Mapping[_State, tuple[_State, int]]) -> tuple[int, ...]:
    choices: list[int] = []
    while state in came:
        state, choice = came[state]
        choices.append(choice)
    return tuple(reversed(choices))
