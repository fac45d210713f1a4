"""Routine selection as pure data: which choice for every layer minimises the sum of layer and edge costs.

The problem of SoftNeuro, section IV, and NeoCPU, section 3.3: every layer has a few choices with known costs, and neighbours
with different schemas pay for an adapt layer between them. QS-DNN, section IV-C, adds limits: a choice also needs memory or
has an error, and the sum over the network is limited. A problem is independent of devices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nnstretch.errors import SelectionError

Costs = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative difference that sums of the same numbers in another order may have."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Costs of choices, with the amounts of resources that they need and the limits of these.

    Attributes:
        costs: for each node the cost of each of its choices, seconds; at least one choice per node. Infinite: forbidden.
        edges: (u, v) with u < v -> cost matrix of shape (choices of u, choices of v), seconds. Infinite: forbidden together.
        amounts: resource -> for each node the amount that each choice needs; finite, summed over the nodes.
        limits: resource -> largest total amount of an assignment.
        seed: seed of selectors that draw random numbers.
        names: names of the nodes for messages; may be empty.

    Raises:
        SelectionError: shapes do not match, or a number is negative or NaN.
    """

    costs: tuple[Costs, ...]
    edges: Mapping[tuple[int, int], Costs]
    amounts: Mapping[str, tuple[Costs, ...]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_nodes(self)
        _check_edges(self)
        _check_resources(self)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of choices of each node."""
        return tuple(len(c) for c in self.costs)

    def cost(self, choices: Sequence[int]) -> float:
        """Total cost of an assignment, seconds; infinite if it is forbidden."""
        nodes = sum(float(c[i]) for c, i in zip(self.costs, choices, strict=True))
        return nodes + sum(float(m[choices[u], choices[v]]) for (u, v), m in self.edges.items())

    def amount(self, resource: str, choices: Sequence[int]) -> float:
        """Amount of a resource that an assignment needs."""
        return sum(float(a[i]) for a, i in zip(self.amounts[resource], choices, strict=True))

    def keeps_limits(self, choices: Sequence[int]) -> bool:
        """Whether an assignment keeps all limits."""
        return all(self.amount(r, choices) <= loosened(limit) for r, limit in self.limits.items())

    def name(self, node: int) -> str:
        """Name of a node for messages."""
        return self.names[node] if self.names else f"number {node}"


def loosened(limit: float) -> float:
    """A limit with tolerance for the rounding of sums."""
    return limit + _ROUNDING * abs(limit)


@dataclass(frozen=True)
class Assignment:
    """An answer to a problem: one choice per node.

    Attributes:
        choices: one index per node.
        cost: seconds.
        optimal: whether the cost is proved minimal, up to rounding.
        gap: (cost - proved lower bound) / cost; 0 for a proven optimum.
        amounts: resource -> amount that the assignment needs.
        states: number of partial or whole assignments that the search visited; 0 if not counted.
        curve: (step, cost of its assignment) of searches that try one assignment per step.
    """

    choices: tuple[int, ...]
    cost: float
    optimal: bool
    gap: float
    amounts: Mapping[str, float] = field(default_factory=dict)
    states: int = 0
    curve: tuple[tuple[int, float], ...] = ()


def assignment(
    problem: Problem,
    choices: Sequence[int],
    bound: float | None,
    states: int = 0,
    curve: tuple[tuple[int, float], ...] = (),
) -> Assignment:
    """An assignment with its cost, amounts and gap.

    Args:
        problem: the problem.
        choices: one index per node.
        bound: proved lower bound, seconds; None if `choices` are optimal.
        states: see `Assignment`.
        curve: see `Assignment`.
    """
    cost = problem.cost(choices)
    gap = 0.0 if bound is None or cost <= 0 else max(0.0, (cost - bound) / cost)
    optimal = gap <= _ROUNDING
    amounts = {r: problem.amount(r, choices) for r in problem.amounts}
    return Assignment(tuple(int(i) for i in choices), cost, optimal, 0.0 if optimal else gap, amounts, states, curve)


class Selector(ABC):
    """Solves problems; deterministic, by the problem's seed.

    Attributes:
        name: in `SELECTORS`.
        resources: whose amounts it compares, of `resources.RESOURCES`; `nnstretch tune` computes them for it.
    """

    name: str
    resources: tuple[str, ...] = ()

    @abstractmethod
    def select(self, problem: Problem) -> Assignment:
        """A legal assignment within the limits.

        Raises:
            SelectionError: there is none.
        """

    def aim(self, answer: Assignment) -> float:
        """What the selector minimises, of a legal answer; of several answers, the one with the least is taken.

        Seconds, unless a subclass weighs the amounts of its `resources` against them.
        """
        return answer.cost


def _check_nodes(problem: Problem) -> None:
    if problem.names and len(problem.names) != len(problem.costs):
        raise SelectionError(
            f"{len(problem.names)} names for {len(problem.costs)} nodes; give one name per node or none"
        )
    for node, costs in enumerate(problem.costs):
        if costs.ndim != 1 or not len(costs):
            raise SelectionError(
                f"node {problem.name(node)} has no list of choices; give each node the cost of at least one"
            )
        if not np.all(costs >= 0):
            raise SelectionError(f"a cost of node {problem.name(node)} is negative or not a number; measure it again")


def _check_edges(problem: Problem) -> None:
    count = len(problem.costs)
    for (u, v), matrix in problem.edges.items():
        if not 0 <= u < v < count:
            raise SelectionError(
                f"edge ({u}, {v}) does not lead forward between {count} nodes; number them in their order"
            )
        wanted = (len(problem.costs[u]), len(problem.costs[v]))
        if matrix.shape != wanted:
            raise SelectionError(f"the costs of edge ({u}, {v}) have shape {matrix.shape}; {wanted} is wanted")
        if not np.all(matrix >= 0):
            raise SelectionError(f"a cost of edge ({u}, {v}) is negative or not a number; measure it again")


def _check_resources(problem: Problem) -> None:
    for resource, amounts in problem.amounts.items():
        if tuple(len(a) for a in amounts) != problem.sizes:
            raise SelectionError(f"amounts of {resource} do not fit the choices; give one per choice of every node")
        if not all(np.all((a >= 0) & np.isfinite(a)) for a in amounts):
            raise SelectionError(f"an amount of {resource} is negative, infinite or not a number; give finite ones")
    for resource, limit in problem.limits.items():
        if resource not in problem.amounts:
            known = ", ".join(problem.amounts) or "nothing"
            raise SelectionError(f"{resource} is limited, but only amounts of {known} are known; drop the limit")
        if math.isnan(limit):
            raise SelectionError(f"the limit of {resource} is not a number; give one")
